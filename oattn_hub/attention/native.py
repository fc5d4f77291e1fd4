"""torch's own attention modules, which must not be looked into while they run.

``nn.TransformerEncoder``, its layers and ``nn.MultiheadAttention`` take a fused fast path in eval mode, and leave it
when a ``TorchFunctionMode`` watches: the output would change in its last bits. So the tap steps aside while they run,
and their attention is computed from the arguments they were called with.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from oattn_hub.attention.calls import AttentionCall, DotProductCall, Heads
from oattn_hub.attention.masks import MaskTrace
from oattn_hub.errors import CaptureError
from oattn_hub.types import Args, Function, Kwargs


def arguments(forward: Function, args: Args, kwargs: Kwargs) -> dict[str, Any]:
    """The arguments of a call of ``forward`` by name, defaults included."""
    try:
        bound = inspect.signature(forward).bind(*args, **kwargs)
    except (TypeError, ValueError):  # a forward that hides its signature; only given names are known
        return dict(kwargs)
    bound.apply_defaults()
    named = dict(bound.arguments)
    return {**named, **named.pop("kwargs", {})}


def takes_other_arguments(module: nn.Module) -> bool:
    """Whether this is one of torch's attention modules in a class that calls torch's forward from one of its own."""
    name = {nn.MultiheadAttention: "query", nn.TransformerEncoderLayer: "src"}
    needed = next((argument for kind, argument in name.items() if isinstance(module, kind)), None)
    return needed is not None and needed not in inspect.signature(module.forward).parameters


class InnerForwards:
    """Hands over calls of torch's own forwards from inside forwards with other arguments, until :meth:`restore`.

    Such a call is written ``super().forward(…)``, which only the class that it is looked up in can show.

    Args:
        modules: The modules whose calls are handed over.
        run: Takes the module, its torch forward and the arguments; gives what that forward returns.
    """

    def __init__(self, modules: Iterable[nn.Module], run: Callable[[nn.Module, Function, Args, Kwargs], Any]) -> None:
        self._modules = {module for module in modules if takes_other_arguments(module)}
        self._run = run
        self._kept: dict[type[nn.Module], Function] = {}
        for kind in (nn.MultiheadAttention, nn.TransformerEncoderLayer):
            if any(isinstance(module, kind) for module in self._modules):
                self._kept[kind] = kind.forward
                setattr(kind, "forward", self._through(kind.forward))  # noqa: B010

    def _through(self, torchs: Function) -> Function:
        @functools.wraps(torchs)
        def forward(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if module in self._modules:
                return self._run(module, functools.partial(torchs, module), args, kwargs)
            return torchs(module, *args, **kwargs)

        return forward

    def restore(self) -> None:
        """Torch's classes as they were; a second time does nothing."""
        for kind, forward in self._kept.items():
            kind.forward = forward
        self._kept.clear()


def call_of_module(module: nn.MultiheadAttention, given: Kwargs) -> AttentionCall:
    """The attention of one call of ``nn.MultiheadAttention``."""
    query, key = given["query"], given["key"]
    if query.ndim == 2:
        query, key = query.unsqueeze(0), key.unsqueeze(0)
    elif not module.batch_first:
        query, key = query.transpose(0, 1), key.transpose(0, 1)
    return _call(module, query, key, given["attn_mask"], given["key_padding_mask"])


def call_of_function(given: Kwargs) -> AttentionCall:
    """The attention of one call of ``functional.multi_head_attention_forward``, which takes a module's weights."""
    names = ("num_heads", "in_proj_weight", "in_proj_bias", "bias_k", "add_zero_attn", "q_proj_weight", "k_proj_weight")
    weights: Any = SimpleNamespace(
        **{name: given[name] for name in names},
        embed_dim=given["query"].shape[-1],
        batch_first=False,
        _qkv_same_embed_dim=not given["use_separate_proj_weight"],
    )
    return call_of_module(weights, given)


def call_of_layer(layer: nn.TransformerEncoderLayer, given: Kwargs) -> AttentionCall:
    """The attention of one encoder layer that took the fast path, where its attention module never runs."""
    source, padding = given["src"], given["src_key_padding_mask"]
    if source.is_nested:  # how nn.TransformerEncoder hands padded text to its fast path
        lengths = torch.tensor([len(context) for context in source.unbind()], device=source.device)
        source = source.to_padded_tensor(0.0)
        padding = torch.arange(source.shape[1], device=source.device)[None] >= lengths[:, None]
    elif not layer.self_attn.batch_first:
        source = source.transpose(0, 1)
    source = layer.norm1(source) if layer.norm_first else source
    return _call(layer.self_attn, source, source, given["src_mask"], padding)


def _call(
    module: nn.MultiheadAttention,
    query: Tensor,
    key: Tensor,
    attn_mask: Tensor | None,
    padding: Tensor | None,
) -> AttentionCall:
    if module.bias_k is not None or module.add_zero_attn:
        raise CaptureError(
            "This nn.MultiheadAttention adds a key of its own (add_bias_kv or add_zero_attn), which is not a token. "
            "Build it without."
        )
    q, k = (x.unflatten(-1, (module.num_heads, -1)).transpose(1, 2) for x in _project(module, query, key))
    mask = _merge(attn_mask, padding, len(q), module.num_heads)
    trace = MaskTrace(-torch.inf)  # torch's masks are -inf; any finite value is a position term
    return DotProductCall.from_sdpa(q, k, k, attn_mask=mask, heads=Heads(module.num_heads), trace=trace)


def _project(module: nn.MultiheadAttention, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    width = module.embed_dim
    bias = module.in_proj_bias
    q_bias, k_bias = (None, None) if bias is None else (bias[:width], bias[width : 2 * width])
    if module._qkv_same_embed_dim:
        q_weight, k_weight = module.in_proj_weight[:width], module.in_proj_weight[width : 2 * width]
    else:
        q_weight, k_weight = module.q_proj_weight, module.k_proj_weight
    return functional.linear(query, q_weight, q_bias), functional.linear(key, k_weight, k_bias)


def _merge(attn_mask: Tensor | None, padding: Tensor | None, contexts: int, heads: int) -> Tensor | None:
    """One additive mask from torch's two, where True means masked."""
    parts = []
    if attn_mask is not None:
        mask = _additive(attn_mask)
        parts.append(mask.unflatten(0, (contexts, heads)) if mask.ndim == 3 else mask[None, None])
    if padding is not None:
        mask = _additive(padding)
        parts.append(mask.reshape(contexts, 1, 1, -1))
    return torch.stack(torch.broadcast_tensors(*parts)).sum(0) if parts else None


def _additive(mask: Tensor) -> Tensor:
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, device=mask.device).masked_fill(mask, -torch.inf)
