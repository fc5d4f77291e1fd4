"""Silence heads without cutting them: their slice of the output projection's input becomes zero."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from oattn_hub.adapters import Adapter, AttentionSite
from oattn_hub.attention.hooks import as_written
from oattn_hub.models.offloaded import replaced_weight
from oattn_hub.pruning.projections import output_owner
from oattn_hub.pruning.sites import Head, check_heads, head_sites, heads_of
from oattn_hub.types import Args

if TYPE_CHECKING:
    import torch
    from torch import nn

    #: Given the input of an output projection; what it returns takes that input's place.
    See = Callable[[torch.Tensor], torch.Tensor | None]


@contextmanager
def masked(model: nn.Module, heads: Collection[Head], adapter: Adapter | str | None = None) -> Iterator[nn.Module]:
    """Run ``model`` with these heads silenced; the model is as before when the block ends."""
    sites = head_sites(model, adapter)
    check_heads(sites, heads)
    with masked_sites(model, sites, heads):
        yield model


@contextmanager
def masked_sites(model: nn.Module, sites: Sequence[AttentionSite], heads: Collection[Head]) -> Iterator[None]:
    """:func:`masked` for a caller who has the sites already."""
    with ExitStack() as stack:
        stack.enter_context(as_written())
        shared: dict[int, list[AttentionSite]] = {}
        for site in sites:
            if not heads_of(site.layer, heads):
                continue
            if site.output_module is None:
                stack.enter_context(_zero_weight(site, heads_of(site.layer, heads)))
            else:
                shared.setdefault(id(site.module), []).append(site)
        for turns in shared.values():
            stack.enter_context(_zero_input(model, turns, heads))
        yield


@contextmanager
def watched_outputs(model: nn.Module, site: AttentionSite, see: See) -> Iterator[None]:
    """Call ``see(input)`` whenever this pass reaches the output projection; what it returns takes the input's place."""
    module = site.output_module
    assert module is not None
    turn = _TurnCounter(site.n_turns)

    def hook(_: nn.Module, args: Args) -> Args | None:
        if turn.next() != site.turn:
            return None
        changed = see(args[0])
        return None if changed is None else (changed, *args[1:])

    handles = [model.register_forward_pre_hook(turn.restart), module.register_forward_pre_hook(hook)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


class _TurnCounter:
    """Counts the passes through a shared module within one forward call."""

    def __init__(self, n_turns: int) -> None:
        self.n_turns, self.turn = n_turns, -1

    def restart(self, *_: object) -> None:
        self.turn = -1

    def next(self) -> int:
        self.turn = (self.turn + 1) % self.n_turns
        return self.turn


@contextmanager
def _zero_input(model: nn.Module, turns: Sequence[AttentionSite], heads: Collection[Head]) -> Iterator[None]:
    with ExitStack() as stack:
        for site in turns:
            stack.enter_context(watched_outputs(model, site, _silencer(site, heads_of(site.layer, heads))))
        yield


def _silencer(site: AttentionSite, heads: Sequence[int]) -> See:
    import torch

    silent = torch.zeros(site.output_weight.shape[0], dtype=torch.bool)
    silent[site.features(heads)] = True

    if isinstance(site.output_module, torch.nn.Conv1d | torch.nn.Conv2d):  # of feature maps: channels come first
        silent = silent.view(-1, *(1 for _ in site.output_module.kernel_size))
    # masked_fill and not a product: zero times infinity is no zero
    return lambda features: features.masked_fill(silent.to(features.device), 0)


@contextmanager
def _zero_weight(site: AttentionSite, heads: Sequence[int]) -> Iterator[None]:
    """For modules that read their output projection as a parameter: its rows are zero while the block runs."""
    axis, rows = site.output_tensor[1], site.features(heads)

    def silenced(weight: torch.Tensor) -> torch.Tensor:
        new = weight.clone()
        new.movedim(axis, 0)[rows] = 0
        return new

    with replaced_weight(*output_owner(site), silenced):
        yield
