"""See what enters and what leaves every output projection while a model runs: the heads' outputs, and their sum."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from oattn_hub.adapters import AttentionSite
from oattn_hub.types import Args, Function, Kwargs

if TYPE_CHECKING:
    # a site, the heads' outputs (..., features of all heads), and what the projection made of them, as it is
    See = Callable[[AttentionSite, torch.Tensor, torch.Tensor], None]


@contextmanager
def watched_projections(model: nn.Module, sites: Sequence[AttentionSite], see: See) -> Iterator[None]:
    """Call ``see(site, features, output)`` whenever a forward call runs a layer's output projection."""
    modules = [site for site in sites if site.output_module is not None]
    parameters = [site for site in sites if site.output_module is None]
    with ExitStack() as stack:
        for turns in _by_module(modules):
            stack.enter_context(_watched_module(model, turns, see))
        if parameters:
            stack.enter_context(_ParameterWatch(parameters, see))
        yield


def features_last(site: AttentionSite, tensor: torch.Tensor) -> torch.Tensor:
    """Channels of a feature map come second; everywhere else features come last already."""
    return tensor.movedim(1, -1) if isinstance(site.output_module, nn.Conv1d | nn.Conv2d) else tensor


def _by_module(sites: Sequence[AttentionSite]) -> list[list[AttentionSite]]:
    groups: dict[int, list[AttentionSite]] = {}
    for site in sites:
        groups.setdefault(id(site.output_module), []).append(site)
    return list(groups.values())


@contextmanager
def _watched_module(model: nn.Module, turns: Sequence[AttentionSite], see: See) -> Iterator[None]:
    """One module may serve several layers: the first call within a forward call is the first layer's."""
    module = turns[0].output_module
    assert module is not None
    calls = [0]

    def restart(*_: object) -> None:
        calls[0] = 0

    def hook(_: nn.Module, args: Args, output: torch.Tensor) -> None:
        site = turns[calls[0] % len(turns)]
        calls[0] += 1
        see(site, features_last(site, args[0]), output)

    handles = [model.register_forward_pre_hook(restart), module.register_forward_hook(hook)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _ParameterWatch(TorchFunctionMode):
    """Sees output projections that are read as parameters: torch's own attention, and an einsum (XLNet)."""

    def __init__(self, sites: Sequence[AttentionSite], see: See) -> None:
        super().__init__()
        self.sites = {id(site.output_tensor[0]): site for site in sites}
        self.see = see

    def __torch_function__(
        self, func: Function, types: Collection[type], args: Args = (), kwargs: Kwargs | None = None
    ) -> object:
        kwargs = kwargs or {}
        if func is functional.multi_head_attention_forward:
            return self._multihead(func, args, kwargs)
        result = func(*args, **kwargs)
        if func is torch.einsum:
            site = next((self.sites[id(one)] for one in args if id(one) in self.sites), None)
            if site is not None:
                features = next(one for one in args[1:] if id(one) not in self.sites)
                self.see(site, features.flatten(-2), result)
        return result

    def _multihead(self, func: Function, args: Args, kwargs: Kwargs) -> object:
        """With the identity as its output projection, torch's attention returns the outputs of its heads."""
        bound = inspect.signature(func).bind(*args, **kwargs)
        site = self.sites.get(id(bound.arguments["out_proj_weight"]))
        if site is None:
            return func(*args, **kwargs)
        weight, bias = bound.arguments["out_proj_weight"], bound.arguments["out_proj_bias"]
        bound.arguments["out_proj_weight"] = torch.eye(len(weight), dtype=weight.dtype, device=weight.device)
        bound.arguments["out_proj_bias"] = None
        features, attention = func(*bound.args, **bound.kwargs)
        output = functional.linear(features, weight, bias)
        self.see(site, features, output)
        return output, attention
