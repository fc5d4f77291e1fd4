"""Seeing attention where it is computed, with the model left as it is.

A ``TorchFunctionMode`` is on while the model runs. Forward hooks say which attention layer is at work; a fused kernel
or a softmax met there is an attention call, handed over with its inputs. What the model computes is not touched, so
its output is bit-identical.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.overrides import TorchFunctionMode, _pop_mode, _push_mode

from oattn_hub.attention import native
from oattn_hub.attention.calls import AttentionCall, DotProductCall, Heads, SoftmaxCall, UnexpectedShape
from oattn_hub.attention.masks import MASKED_BELOW, TRACED, MaskTrace
from oattn_hub.attention.written import STEPS, WrittenSoftmax, dimension
from oattn_hub.types import Args, Function, Kwargs

if TYPE_CHECKING:
    from oattn_hub.adapters import AttentionSite

Seen = TypeVar("Seen", bound=AttentionCall)
#: frame of the call, shape (…, head, query, key), number of key/value heads
Unclaimed = Callable[[FrameType, Sequence[int], int], "SitePass | None"]

_SOFTMAX = {"softmax", "_softmax", "softmax1"}
_FUSED = "scaled_dot_product_attention"
_FUNCTION_OF_TORCH = "multi_head_attention_forward"
_HIDDEN = {"flex_attention", "flash_attn_func", "flash_attn_varlen_func"}
# What mixes the weights of several heads before they meet the values.
_LAYERS = {"linear", "conv2d", "layer_norm", "batch_norm"}
# Where weights are multiplied with values, and what may happen to them before.
_PRODUCTS = {"matmul", "bmm", "__matmul__", "einsum", "baddbmm", "mm"}
_ON_THE_WAY = {
    *("dropout", "to", "type", "type_as", "float", "half", "bfloat16", "contiguous", "clone", "nan_to_num"),
    *("view", "reshape", "transpose", "permute", "flatten", "unflatten", "squeeze", "unsqueeze", "expand", "movedim"),
    *("mul", "__mul__", "__rmul__", "masked_fill", "where", "__getitem__", "narrow", "cat", "pad", "swapaxes"),
    *("dropout_", "alpha_dropout", "masked_fill_", "div", "__truediv__", "add", "__add__", "view_as", "detach"),
}


@dataclass
class SitePass:
    """One run of one attention module: what it computed so far.

    Attributes:
        rows: How many tokens it was given, counted along the last axis and along the second (feature maps).
        calls: Attention whose weights were multiplied with values.
        pending: Softmax results of which that is not known.
        idle: Whether it has computed nothing at all: cross attention without anything to attend to.
    """

    site: AttentionSite
    calls: list[AttentionCall] = field(default_factory=list)
    rows: tuple[int, ...] = ()
    pending: list[AttentionCall] = field(default_factory=list)
    unrecognised: list[str] = field(default_factory=list)  # what it computed that is not attention by heads
    idle: bool = True

    def __post_init__(self) -> None:
        self.trace = MaskTrace(self.site.masked_below)


@dataclass
class _Weights:
    """The result of a softmax on its way to the values, and the call that it is the result of, if it looks like one."""

    tensor: torch.Tensor  # kept alive, so that its id stays its own
    call: SoftmaxCall | None
    problem: str
    owner: SitePass
    mixed: bool = False  # with other weights on the way: what meets the values is no longer the softmax's result
    times: bool = False  # multiplied entry by entry with something that may be values


class Tap(TorchFunctionMode):
    """Adds every attention call to the pass that is open.

    Args:
        needs_scores: Whether masks must be told apart from position terms (costs one more look at the scores).
        unclaimed: Gives a pass for a call made while none is open, from the frame and the shapes of the call; None if
            the call cannot be placed.
    """

    def __init__(self, needs_scores: bool, unclaimed: Unclaimed) -> None:
        super().__init__()
        self._needs_scores = needs_scores
        self._unclaimed = unclaimed
        self._passes: list[SitePass] = []
        self._weights: dict[int, _Weights] = {}
        self._written = WrittenSoftmax()
        self._between = MaskTrace(MASKED_BELOW)  # masks put on while no pass is open
        self.outside: list[str] = []  # attention that could not be placed or seen

    def open(self) -> None:
        """Watch from now on."""
        self.outside.clear()
        self._forget()
        _push_mode(self)

    def close(self) -> None:
        """Watch no more, wherever other modes have put themselves since."""
        self._passes.clear()
        self._forget()
        _STEPPED_ASIDE.taps = [tap for tap in _STEPPED_ASIDE.taps if tap is not self]
        above = []
        while torch._C._len_torch_function_stack():
            mode = _pop_mode()
            if mode is self:
                break
            above.append(mode)
        for mode in reversed(above):
            _push_mode(mode)

    def enter(self, site: AttentionSite, rows: tuple[int, ...]) -> None:
        """Attention met from now on belongs to ``site``."""
        self._passes.append(SitePass(site, rows=rows))

    def leave(self) -> SitePass:
        """The pass that ends."""
        ended = self._passes.pop()
        self._weights = {key: weights for key, weights in self._weights.items() if weights.owner is not ended}
        return ended

    def __torch_function__(
        self, func: Function, types: Collection[type], args: Args = (), kwargs: Kwargs | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if self._needs_scores and name in TRACED:
            result = self._trace.run(name, func, args, kwargs)
        else:
            result = func(*args, **kwargs)
        if self._passes and self._passes[-1].idle and isinstance(result, torch.Tensor) and result.is_floating_point():
            self._passes[-1].idle = False
        if name == _FUSED:
            self._fused(args, kwargs)
        elif name in _SOFTMAX:
            self._softmax(result, args, kwargs)
        elif name == _FUNCTION_OF_TORCH:
            self._function_of_torch(args, kwargs)
        elif name in _HIDDEN:
            self.outside.append(name)
        elif name in STEPS and (ended := self._written.ended_by(name, args, kwargs, result)) is not None:
            self._softmax(result, ended, {})
        elif self._weights and name in _PRODUCTS:
            self._confirm(args, result)
        elif self._weights and name == "sum":
            self._confirm_sum(args)
        elif self._weights and (name in _ON_THE_WAY or name in _LAYERS):
            self._follow(args, result, mixing=name in _LAYERS)
        return result

    def _function_of_torch(self, args: Args, kwargs: Kwargs) -> None:
        """``functional.multi_head_attention_forward`` without the module around it, as CLIP's pooling calls it."""
        given = native.arguments(torch.nn.functional.multi_head_attention_forward, args, kwargs)
        query, key, n_heads = given["query"], given["key"], given["num_heads"]
        contexts = query.shape[1] if query.ndim == 3 else 1
        owner = self._pass_for((contexts, n_heads, query.shape[0], key.shape[0]), n_heads)
        if owner is None:
            self.outside.append(f"queries {tuple(query.shape)}")
            return
        with torch.no_grad(), torch._C.DisableTorchFunction():
            owner.calls.append(native.call_of_function(given))

    @property
    def _trace(self) -> MaskTrace:
        return self._passes[-1].trace if self._passes else self._between

    def _forget(self) -> None:
        self._weights.clear()
        self._written.clear()
        self._between.clear()

    def _pass_for(self, shape: Sequence[int], n_kv_heads: int) -> SitePass | None:
        if self._passes:
            return self._passes[-1]
        return self._unclaimed(sys._getframe(2), shape, n_kv_heads)

    def _fused(self, args: Args, kwargs: Kwargs) -> None:
        given = dict(zip(("query", "key", "value", "attn_mask", "dropout_p", "is_causal"), args, strict=False))
        query, key = ({**given, **kwargs}[name] for name in ("query", "key"))
        owner = self._pass_for((*query.shape[:-1], key.shape[-2]), key.shape[-3] if key.ndim > 3 else 0)
        if owner is None:
            self.outside.append(f"queries {tuple(query.shape)}")
            return
        with torch.no_grad(), torch._C.DisableTorchFunction():
            try:
                options = {**given, **kwargs}
                call = DotProductCall.from_sdpa(**options, heads=_heads(owner.site), trace=self._trace)
                owner.calls.append(_distinct(call, owner.site))
            except UnexpectedShape as error:
                owner.unrecognised.append(str(error))
        self._trace.clear()

    def _softmax(self, result: torch.Tensor, args: Args, kwargs: Kwargs) -> None:
        dim = dimension(args, kwargs)
        if result.ndim < 3 or (dim % result.ndim != result.ndim - 1 and result.shape[-1] == 1):
            return  # not between tokens: classes, or the kernel of a convolution (ConvBERT)
        owner = self._pass_for(result.shape, result.shape[-3] if result.ndim > 3 else 0)
        if owner is None:
            return
        logits = args[0] if args else kwargs["input"]
        call, problem = None, ""
        with torch.no_grad(), torch._C.DisableTorchFunction():
            try:
                trace = self._trace if self._needs_scores else None
                seen = SoftmaxCall.from_softmax(logits, result.detach(), dim, _heads(owner.site), trace)
                call = _distinct(seen, owner.site)
                owner.pending.append(call)
            except UnexpectedShape as error:
                problem = str(error)
        self._trace.clear()
        self._weights[id(result)] = _Weights(result, call, problem, owner)

    def _follow(self, args: Args, result: object, mixing: bool = False) -> None:
        operands = [*args, *(args[0] if args and isinstance(args[0], list | tuple) else ())]
        found = [self._weights[id(arg)] for arg in operands if id(arg) in self._weights]
        if not found or not isinstance(result, torch.Tensor) or result.ndim < 2:
            return
        if mixing and result.shape[-2:] != found[0].tensor.shape[-2:] and result.ndim < 4:
            return  # a layer that reads the weights as features
        others = [arg for arg in args if isinstance(arg, torch.Tensor) and id(arg) not in self._weights]
        self._weights[id(result)] = replace(
            found[0],
            tensor=result,
            mixed=mixing or any(one.mixed or one.call is not found[0].call for one in found),
            times=found[0].times or (result.ndim > 4 and any(other.ndim == result.ndim for other in others)),
        )

    def _confirm(self, args: Args, result: torch.Tensor) -> None:
        """Weights that are multiplied with values are attention; a product with a parameter is a layer."""
        operands = [*args, *(args[1] if len(args) > 1 and isinstance(args[1], list | tuple) else ())]
        found = next((self._weights[id(arg)] for arg in operands if id(arg) in self._weights), None)
        if found is None:
            return
        if any(isinstance(arg, torch.nn.Parameter) for arg in operands):
            if result.shape == found.tensor.shape and result.ndim > 3:  # heads that talk to each other
                self._weights[id(result)] = replace(found, tensor=result, mixed=True)
        elif found.call is None:
            found.owner.unrecognised.append(found.problem)
        else:
            keys = found.tensor.shape[-1] if found.tensor.ndim > 2 else found.call.shape[3]
            sinks = 0 < found.call.shape[3] - keys <= 2
            self._is_attention(found, found.call.first_keys(keys) if sinks else self._as_mixed(found))

    def _confirm_sum(self, args: Args) -> None:
        """A product that is written as entry by entry, then summed."""
        found = self._weights.get(id(args[0])) if args else None
        if found is not None and found.times and found.call is not None:
            self._is_attention(found, found.call)

    def _is_attention(self, found: _Weights, call: SoftmaxCall) -> None:
        owner = found.owner
        if any(pending is found.call for pending in owner.pending):
            owner.pending = [pending for pending in owner.pending if pending is not found.call]
            owner.calls.append(call)

    def _as_mixed(self, found: _Weights) -> SoftmaxCall:
        """Weights that are a mean of several softmaxes (ConViT) are read where they meet the values."""
        assert found.call is not None
        weights = found.tensor.detach()
        with torch.no_grad(), torch._C.DisableTorchFunction():
            if not found.mixed or bool(((weights.sum(-1) - 1).abs() > 1e-3).any()) or bool((weights < 0).any()):
                return found.call
            try:
                heads = _heads(found.owner.site)
                call = SoftmaxCall.from_softmax(weights.log(), weights, -1, heads, MaskTrace(MASKED_BELOW))
                return _distinct(call, found.owner.site)
            except UnexpectedShape:
                return found.call


def _distinct(call: Seen, site: AttentionSite) -> Seen:
    """Without the copies of heads that a cut layer computes to keep its groups even."""
    return call if site.copies is None else call.only(site.copies["places"])


def _heads(site: AttentionSite) -> Heads:
    return Heads(site.n_heads if site.copies is None else site.copies["count"], site.head_axis)


@dataclass
class _Aside:
    depth: int = 0
    taps: list[Tap] = field(default_factory=list)


_STEPPED_ASIDE = _Aside()


def step_aside() -> None:
    """Take all taps away for a module that leaves its fast path when it is watched; blocks nest."""
    _STEPPED_ASIDE.depth += 1
    while length := torch._C._len_torch_function_stack():
        if not isinstance(torch._C._get_function_stack_at(length - 1), Tap):
            break
        _STEPPED_ASIDE.taps.append(_pop_mode())


def come_back() -> None:
    """Put the taps back when the last of the nested blocks ends."""
    _STEPPED_ASIDE.depth -= 1
    while _STEPPED_ASIDE.depth == 0 and _STEPPED_ASIDE.taps:
        _push_mode(_STEPPED_ASIDE.taps.pop())
