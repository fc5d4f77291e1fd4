"""Seeing attention where it is computed, with the model left as it is.

A ``TorchFunctionMode`` is on while the model runs. Forward hooks say which attention layer is at work; a fused kernel
or a softmax met there is an attention call, handed over with its inputs. What the model computes is not touched, so
its output is bit-identical.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch.overrides import TorchFunctionMode, _pop_mode, _push_mode

from oattn_hub.attention.calls import AttentionCall, DotProductCall, Heads, SoftmaxCall, UnexpectedShape
from oattn_hub.attention.masks import TRACED, MaskTrace

if TYPE_CHECKING:
    from oattn_hub.adapters import AttentionSite

_SOFTMAX = {"softmax", "_softmax"}
_FUSED = "scaled_dot_product_attention"


@dataclass
class SitePass:
    """One run of one attention module: what it computed so far."""

    site: AttentionSite
    calls: list[AttentionCall] = field(default_factory=list)
    unrecognised: list[str] = field(default_factory=list)  # what it computed that is not attention by heads

    def __post_init__(self) -> None:
        self.trace = MaskTrace(self.site.masked_below)


class Tap(TorchFunctionMode):
    """Adds every attention call to the pass that is open.

    Args:
        needs_scores: Whether masks must be told apart from position terms (costs one more look at the scores).
    """

    def __init__(self, needs_scores: bool) -> None:
        super().__init__()
        self._needs_scores = needs_scores
        self._passes: list[SitePass] = []
        self.outside: list[str] = []  # attention calls made while no pass was open

    def open(self) -> None:
        """Watch from now on."""
        self.outside.clear()
        _push_mode(self)

    def close(self) -> None:
        """Watch no more, wherever other modes have put themselves since."""
        self._passes.clear()
        _STEPPED_ASIDE.taps = [tap for tap in _STEPPED_ASIDE.taps if tap is not self]
        above = []
        while torch._C._len_torch_function_stack():
            mode = _pop_mode()
            if mode is self:
                break
            above.append(mode)
        for mode in reversed(above):
            _push_mode(mode)

    def enter(self, site: AttentionSite) -> SitePass:
        """Attention met from now on belongs to ``site``."""
        self._passes.append(SitePass(site))
        return self._passes[-1]

    def leave(self) -> SitePass:
        """The pass that ends."""
        return self._passes.pop()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if not self._passes:
            if name == _FUSED:
                self.outside.append(f"queries {tuple(args[0].shape)}" if args else name)
            return func(*args, **kwargs)
        current = self._passes[-1]
        if self._needs_scores and name in TRACED:
            return current.trace.run(name, func, args, kwargs)
        result = func(*args, **kwargs)
        if name == _FUSED:
            self._keep(current, lambda: _fused(current, args, kwargs))
        elif name in _SOFTMAX:
            self._keep(current, lambda: self._softmax(current, result, args, kwargs))
        return result

    def _keep(self, current: SitePass, read: Callable[[], AttentionCall]) -> None:
        # Our own softmax is not the model's: another capture around this one must not see it.
        with torch.no_grad(), torch._C.DisableTorchFunction():
            try:
                call = read()
                current.calls.append(call if current.site.copies is None else call.only(current.site.copies["places"]))
            except UnexpectedShape as error:
                current.unrecognised.append(str(error))
        current.trace.clear()

    def _softmax(
        self, current: SitePass, result: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> AttentionCall:
        logits = args[0] if args else kwargs["input"]
        dim = kwargs.get("dim", args[1] if len(args) > 1 else -1)
        trace = current.trace if self._needs_scores else None
        return SoftmaxCall.from_softmax(logits, result.detach(), dim, _heads(current.site), trace)


def _fused(current: SitePass, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AttentionCall:
    return DotProductCall.from_sdpa(*args, **kwargs, heads=_heads(current.site), trace=current.trace)


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
