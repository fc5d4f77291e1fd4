"""One run of one attention module: what it was given, and the attention it computed so far."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from oattn_hub.attention.calls import AttentionCall, Heads, SoftmaxCall
from oattn_hub.attention.masks import MaskTrace

if TYPE_CHECKING:
    from oattn_hub.adapters import AttentionSite


@dataclass(frozen=True)
class Given:
    """What the arguments of a module say of its tokens.

    Attributes:
        rows: How many there are, counted along the last axis and along the second (feature maps).
        tokens: The same of the arguments that are sequences or maps of features, without doubt.
        widths: How many features these have.
        contexts: How many contexts these are.
    """

    rows: tuple[int, ...] = ()
    tokens: tuple[int, ...] = ()
    widths: tuple[int, ...] = ()
    contexts: tuple[int, ...] = ()


@dataclass
class SitePass:
    """One run of one attention module: what it computed so far.

    Attributes:
        given: What it was given.
        calls: Attention whose weights were multiplied with values.
        pending: Softmax results of which that is not known.
        idle: Whether it has computed nothing at all: cross attention without anything to attend to.
        heads_first: Whether heads come before contexts where the two are one axis.
    """

    site: AttentionSite
    calls: list[AttentionCall] = field(default_factory=list)
    given: Given = Given()
    pending: list[AttentionCall] = field(default_factory=list)
    unrecognised: list[str] = field(default_factory=list)  # what it computed that is not attention by heads
    idle: bool = True
    heads_first: bool = False

    def __post_init__(self) -> None:
        self.trace = MaskTrace(self.site.masked_below)
        self._columns: dict[int, tuple[int, int, int]] = {}  # id of a softmax -> its call's place, columns in use

    def heads(self, tensor: torch.Tensor) -> Heads:
        """How heads lie in queries or weights; three axes with a row for every token are those of one head."""
        one = tensor.ndim == 3 and tensor.shape[0] * tensor.shape[1] in self.given.tokens
        return Heads(1) if one and self._loops_over_heads(tensor) else self.all_heads()

    def all_heads(self) -> Heads:
        """How heads lie in what has all of them."""
        site = self.site
        count = site.n_heads if site.copies is None else site.copies["count"]
        return Heads(count, site.head_axis, self.heads_first)

    def _loops_over_heads(self, tensor: torch.Tensor) -> bool:
        """Whether the last calls were of one head as well, or this is not as many heads as there should be."""
        before = [*self.calls, *self.pending]
        alone = all(call.shape[1] == 1 for call in before)
        return alone and (
            bool(before) or tensor.shape[0] % self.site.n_heads != 0 or tensor.shape[0] in self.given.contexts
        )

    def confirm(self, seen: AttentionCall, call: AttentionCall, columns: tuple[int, int] | None) -> None:
        """What the softmax ``seen`` gave is multiplied with values, these columns of it; ``call`` is what to keep."""
        start, stop = columns or (0, seen.shape[3])
        if any(pending is seen for pending in self.pending):
            self.pending = [pending for pending in self.pending if pending is not seen]
            self._columns[id(seen)] = (len(self.calls), start, stop)
            self.calls.append(call)
        elif id(seen) in self._columns:
            place, first, last = self._columns[id(seen)]
            self._columns[id(seen)] = (place, min(first, start), max(last, stop))

    def without_sinks(self) -> None:
        """Drop the columns, one or two, that take weight and have no values."""
        for place, start, stop in self._columns.values():
            call = self.calls[place]
            if isinstance(call, SoftmaxCall) and 0 < call.shape[3] - (stop - start) <= 2:
                self.calls[place] = call.only_keys(start, stop)
        self._columns.clear()
