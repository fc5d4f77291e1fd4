"""``AttentionSite``: one attention layer of one model, and where its heads lie."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from oattn_hub.adapters.layout import HeadAxis, HeadLayout
from oattn_hub.errors import SurgeryError

if TYPE_CHECKING:
    import torch
    from torch import nn

#: An additive mask entry at or below this value means "masked"; values above it are position terms.
MASKED_BELOW = -1e4  # also in attention/masks.py, which this file cannot import: it needs torch

#: Where a cut module says that it computes copies of heads to keep groups of queries even: how many heads attention
#: runs with, and the places of the real ones among them.
COPIES = "oattn_head_copies"


@dataclass(frozen=True)
class AttentionSite:
    """One attention layer of one model.

    ``layer`` counts the attention layers of the whole model in model order, so ``(layer, head)`` names a head
    everywhere. A module that serves several layers (ALBERT) gives one site per pass, named ``…#0``, ``…#1`` and so on.

    Attributes:
        name: Dotted name of the module, with the pass if there are several.
        group: Layers of one group have the same kind of queries and keys.
        kind: What the adapter calls this kind of module.
        head_axis: Axis of the heads in the queries.
        masked_below: See ``Adapter.masked_below``.
        streams: See ``Adapter.streams``.
        described: Where the heads lie, as the adapter says; None if nobody said so.
        turn: Which pass through a shared module this is, of ``n_turns``.
    """

    name: str
    module: nn.Module
    group: str
    layer: int
    n_heads: int
    n_kv_heads: int
    head_dim: int | None
    kind: str = "self"
    head_axis: int = -3
    masked_below: float = MASKED_BELOW
    streams: tuple[str, ...] = ()
    described: HeadLayout | None = field(default=None, compare=False)
    turn: int = 0
    n_turns: int = 1

    @property
    def copies(self) -> Mapping[str, Any] | None:
        """``count`` and ``places`` of the heads of a cut module that computes some of them twice, else None."""
        return getattr(self.module, COPIES, None)

    @property
    def module_name(self) -> str:
        """The dotted name of the module, without the pass."""
        return self.name.split("#")[0]

    @property
    def layout(self) -> HeadLayout:
        """Where the heads lie; raises if nobody knows."""
        if self.described is None:
            raise SurgeryError(
                f"Nobody says where the heads of {self.name} ({type(self.module).__qualname__}) lie in its "
                "projections. Add a HeadLayout to its adapter (see adapters/layout.py)."
            )
        return self.described

    def find(self, path: str) -> Any:
        """The module, parameter or attribute at ``path`` below the attention module, or None."""
        return find_below(self.module, path)

    @cached_property
    def output_module(self) -> nn.Module | None:
        """The output projection if it is called as a module; None if its weight is read as a parameter."""
        found = self.find(self.layout.output.path)
        return found if self.layout.output.axis == "in" else None

    @cached_property
    def output_weight(self) -> torch.Tensor:
        """The output projection's weight as (features of all heads, model width)."""
        weight, axis = self.output_tensor
        heads_first: torch.Tensor = weight.movedim(axis, 0)
        return heads_first.flatten(1)

    @property
    def output_tensor(self) -> tuple[torch.Tensor, int]:
        """The output projection's weight as it is, and the number of its head axis."""
        found = self.find(self.layout.output.path)
        if found is None:
            raise SurgeryError(
                f"{self.name} has no {self.layout.output.path}; its adapter does not describe this model."
            )
        return getattr(found, "weight", found), weight_axis(found, self.layout.output.axis)

    def features(self, heads: Iterable[int]) -> list[int]:
        """Positions of the heads' outputs among the output projection's input features."""
        weight, axis = self.output_tensor
        ranges = self.ranges(self.layout.output, weight.shape[axis], sorted(heads), ())
        return [index for start, stop in ranges for index in range(start, stop)]

    def ranges(self, axis: HeadAxis, size: int, kept: Sequence[int], kept_kv: Sequence[int]) -> list[tuple[int, int]]:
        """Index ranges of the kept heads along ``axis`` of length ``size``."""
        return axis.ranges(n_heads=self.n_heads, n_kv_heads=self.n_kv_heads, size=size, kept=kept, kept_kv=kept_kv)


def weight_axis(owner: Any, axis: int | str) -> int:
    """Axis number of ``"in"`` or ``"out"`` in the weight of a linear module; numbers stay as they are."""
    if isinstance(axis, int):
        return axis
    transposed = hasattr(owner, "nf")  # transformers' Conv1D
    return int((axis == "out") == transposed)


def find_below(owner: Any, path: str) -> Any:
    """The attribute at a dotted path, or None."""
    for name in path.split("."):
        owner = getattr(owner, name, None)
        if owner is None:
            return None
    return owner
