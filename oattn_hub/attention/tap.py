"""Seeing attention where it is computed, with the model left as it is.

A ``TorchFunctionMode`` is on while the model runs. Whoever stands around an attention module says which layer is at
work; a fused kernel or a softmax met there is an attention call, handed over with its inputs. What the model computes
is not touched, so its output is bit-identical.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from oattn_hub.adapters import AttentionSite
from oattn_hub.attention.calls import AttentionCall, DotProductCall, Heads, SoftmaxCall, UnexpectedShape
from oattn_hub.attention.masks import TRACED, MaskTrace

_SOFTMAX = {"softmax", "_softmax"}
_FUSED = "scaled_dot_product_attention"


class Tap(TorchFunctionMode):
    """Hands every attention call made inside an open site to ``emit``.

    Args:
        emit: Called with the site and the call, while the call's tensors are alive.
        masked_below: See ``Adapter.masked_below``.
        needs_scores: Whether masks must be told apart from position terms (costs one more look at the scores).
    """

    def __init__(self, emit: Callable[[AttentionSite, AttentionCall], None], masked_below: float, needs_scores: bool):
        super().__init__()
        self._emit = emit
        self._trace = MaskTrace(masked_below)
        self._needs_scores = needs_scores
        self._site: AttentionSite | None = None
        self._is_on = False
        self.unrecognised: dict[str, str] = {}  # site name -> what it computed that is not attention by heads
        self.outside: list[str] = []

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Watch while the model's forward call lasts."""
        self.outside.clear()
        self.unrecognised.clear()
        self._is_on = True
        try:
            with self:
                yield
        finally:
            self._is_on = False

    @contextmanager
    def looking_away(self) -> Iterator[None]:
        """Leave the stage to a module that behaves differently when watched; blocks nest."""
        if not self._is_on:
            yield
            return
        self._is_on = False
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        try:
            yield
        finally:
            self.__enter__()  # type: ignore[no-untyped-call]
            self._is_on = True

    @contextmanager
    def at(self, site: AttentionSite) -> Iterator[None]:
        """Attention met in this block belongs to ``site``."""
        self._site = site
        try:
            yield
        finally:
            self._site = None
            self._trace.clear()

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if self._site is None:
            if name == _FUSED:
                self.outside.append(f"queries {tuple(args[0].shape)}" if args else name)
            return func(*args, **kwargs)
        if self._needs_scores and name in TRACED:
            return self._trace.run(name, func, args, kwargs)
        result = func(*args, **kwargs)
        if name == _FUSED:
            self._hand_over(lambda site: self._fused(site, args, kwargs))
        elif name in _SOFTMAX:
            self._hand_over(lambda site: self._softmax(site, result, args, kwargs))
        return result

    def _hand_over(self, read: Callable[[AttentionSite], AttentionCall]) -> None:
        assert self._site is not None
        # Our own softmax is not the model's: another capture around this one must not see it.
        with torch.no_grad(), torch._C.DisableTorchFunction():
            try:
                call = read(self._site)
            except UnexpectedShape as error:
                self.unrecognised[self._site.name] = str(error)
                return
            self._emit(self._site, call)
        self._trace.clear()

    def _fused(self, site: AttentionSite, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AttentionCall:
        return DotProductCall.from_sdpa(*args, **kwargs, heads=Heads(site.n_heads, site.head_axis), trace=self._trace)

    def _softmax(
        self, site: AttentionSite, result: torch.Tensor, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> AttentionCall:
        logits = args[0] if args else kwargs["input"]
        dim = kwargs.get("dim", args[1] if len(args) > 1 else -1)
        trace = self._trace if self._needs_scores else None
        return SoftmaxCall.from_softmax(logits, result, dim, Heads(site.n_heads, site.head_axis), trace)
