"""Telling a mask from a position term.

Models mix the two: T5 puts its position bias and its mask into one tensor, Swin adds a shift mask of -100 to a learned
bias, XLNet subtracts 1e30 times a mask. ``scores`` are what there was *before* the mask, and once -1e38 has been added
to a number, the number is lost. So the additions, fills and choices inside an attention module are remembered as
they happen, and undone from the softmax backwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from oattn_hub.types import Args, Function, Kwargs

#: An additive mask entry at or below this value means "masked"; values above it are position terms.
MASKED_BELOW = -1e4

# Functions that can put a mask on, by the name under which a TorchFunctionMode sees them.
_ADD = {"add", "__add__", "__radd__", "add_", "__iadd__"}
_SUB = {"sub", "__sub__", "sub_", "__isub__"}
_FILL = {"masked_fill", "masked_fill_"}
_WHERE = {"where"}
# Functions that keep every element, in order.
_SAME = {
    "to",
    "float",
    "type",
    "type_as",
    "contiguous",
    "view",
    "reshape",
    "clone",
    "unsqueeze",
    "squeeze",
    "__getitem__",
}
_IN_PLACE = {"add_", "__iadd__", "sub_", "__isub__", "masked_fill_"}
TRACED = _ADD | _SUB | _FILL | _WHERE | _SAME


class Unmasked(NamedTuple):
    """A tensor without its mask, and where the mask was (None: nowhere)."""

    values: Tensor
    masked: Tensor | None


@dataclass
class _Step:
    result: Tensor  # kept alive, so that its id stays its own
    name: str
    args: Args


class MaskTrace:
    """Remembers how the tensors of one attention call were put together.

    Args:
        masked_below: An additive entry at or below this value is a mask, anything above it a position term.
    """

    def __init__(self, masked_below: float) -> None:
        self._masked_below = masked_below
        self._steps: dict[int, _Step] = {}

    def run(self, name: str, func: Function, args: Args, kwargs: Kwargs) -> Any:
        """Call ``func`` and remember what it made of what."""
        traced = args
        if name in _IN_PLACE and isinstance(args[0], Tensor):
            traced = (self._snapshot(args[0]), *args[1:])
        result = func(*args, **kwargs)
        scaled = bool(kwargs) and name in _ADD | _SUB  # alpha= scales an operand: not how masks are put on
        unchanged = name not in _IN_PLACE and bool(args) and result is args[0]  # contiguous() of what is contiguous
        if name == "__getitem__" and not _adds_axes_only(args[1]):
            return result
        if isinstance(result, Tensor) and not scaled and not unchanged:
            self._steps[id(result)] = _Step(result, name, (*traced, *kwargs.values()))
        return result

    def clear(self) -> None:
        """Forget everything, and let the tensors go."""
        self._steps.clear()

    def unmask(self, tensor: Tensor) -> Unmasked:
        """Undo the masks that were put on ``tensor``."""
        step = self._steps.get(id(tensor))
        if step is None:
            return self._split_by_value(tensor)
        if step.name in _SAME:
            return self._unmask_same(tensor, step)
        if step.name in _FILL:
            values, mask, _ = step.args
            return _merge(tensor.shape, self.unmask(values), mask)
        if step.name in _WHERE:
            return self._unmask_where(tensor, step)
        return self._unmask_sum(tensor, step)

    # ------------------------------------------------------------------------------------------------------------------

    def _snapshot(self, tensor: Tensor) -> Tensor:
        copy = tensor.detach().clone()
        if (step := self._steps.get(id(tensor))) is not None:
            self._steps[id(copy)] = _Step(copy, step.name, step.args)
        return copy

    def _split_by_value(self, tensor: Tensor) -> Unmasked:
        if tensor.dtype == torch.bool:
            return Unmasked(torch.zeros_like(tensor, dtype=torch.float32), ~tensor)
        masked = tensor <= self._masked_below
        if not bool(masked.any()):
            return Unmasked(tensor, None)
        return Unmasked(tensor.masked_fill(masked, 0.0), masked)

    def _unmask_same(self, tensor: Tensor, step: _Step) -> Unmasked:
        source = step.args[0]
        if not isinstance(source, Tensor) or source is tensor or source.dtype == torch.bool:
            return self._split_by_value(tensor)
        values, masked = self.unmask(source)
        shape = tensor.shape
        return Unmasked(values.reshape(shape), None if masked is None else masked.expand(source.shape).reshape(shape))

    def _unmask_where(self, tensor: Tensor, step: _Step) -> Unmasked:
        condition, chosen, other = step.args
        if self._is_fill(other) and isinstance(chosen, Tensor):
            return _merge(tensor.shape, self.unmask(chosen), ~condition)
        if self._is_fill(chosen) and isinstance(other, Tensor):
            return _merge(tensor.shape, self.unmask(other), condition)
        return self._split_by_value(tensor)

    def _unmask_sum(self, tensor: Tensor, step: _Step) -> Unmasked:
        left, right = step.args[:2]
        if not (isinstance(left, Tensor) and isinstance(right, Tensor)):
            return self._split_by_value(tensor)
        first, second = self.unmask(left), self.unmask(-right if step.name in _SUB else right)
        if first.masked is None and second.masked is None:
            return Unmasked(tensor, None)
        return _merge(tensor.shape, Unmasked(first.values + second.values, first.masked), second.masked)

    def _is_fill(self, value: object) -> bool:
        if isinstance(value, Tensor):
            return value.numel() == 1 and float(value) <= self._masked_below
        return isinstance(value, int | float) and value <= self._masked_below


def _adds_axes_only(index: object) -> bool:
    """Whether ``tensor[index]`` keeps every element, as ``tensor[None]`` and ``tensor[:, None]`` do."""
    parts = index if isinstance(index, tuple) else (index,)
    return all(part is None or part is Ellipsis or (isinstance(part, slice) and part == slice(None)) for part in parts)


def _merge(shape: torch.Size, found: Unmasked, mask: Tensor | None) -> Unmasked:
    """Add ``mask`` to the masks already found."""
    masks = [m.broadcast_to(shape) for m in (found.masked, mask) if m is not None]
    masked = masks[0] | masks[1] if len(masks) == 2 else masks[0] if masks else None
    return Unmasked(found.values.broadcast_to(shape), masked)
