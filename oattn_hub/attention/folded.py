"""In which order heads and contexts lie on one axis, where a model folds the two together.

Most models write (context * head, token, width); some write (head * context, token, width), with
``torch.cat(x.split(d, 2))`` as the Set Transformer or ``permute(2, 0, 1, 3)`` and ``view``. The shape does not tell
them apart, so the step that folds is watched.
"""

from __future__ import annotations

import weakref
from collections import deque

import torch

from oattn_hub.types import Args, Kwargs

_JOIN = {"cat", "concat", "concatenate"}
_RESHAPE = {"view", "reshape", "flatten"}
_COPY = {"contiguous", "clone", "stack"}
FOLDS = _JOIN | _RESHAPE | _COPY


class Folds:
    """The last fold of every size, and whether its outer axis holds the heads."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[int, int, bool]] = {}  # folded size -> outer size, inner size, heads outside
        self._copies: deque[tuple[weakref.ref[torch.Tensor], bool]] = deque(maxlen=8)

    def clear(self) -> None:
        """Forget all folds."""
        self._seen.clear()
        self._copies.clear()

    def note(self, name: str, args: Args, kwargs: Kwargs, result: object) -> None:
        """Look at one step of the model; ``name`` is one of ``FOLDS``."""
        if not isinstance(result, torch.Tensor) or not args:
            return
        given, parts = args[0], args[0] if isinstance(args[0], list | tuple) else ()
        axis = kwargs.get("dim", args[1] if len(args) > 1 else 0)
        if parts and axis == 0 and _are_slices(parts):
            if name == "stack" and result.ndim == 4:
                self._copies.append((weakref.ref(result), True))
            elif name in _JOIN and result.ndim == 3:
                self._seen[result.shape[0]] = (len(parts), parts[0].shape[0], True)
        elif isinstance(given, torch.Tensor) and given.ndim == 4:
            if name in _COPY and result is not given:
                self._copies.append((weakref.ref(result), _inside_out(given)))
            elif name in _RESHAPE and result.shape == (given.shape[0] * given.shape[1], *given.shape[2:]):
                outside = next((outside for copy, outside in self._copies if copy() is given), _inside_out(given))
                self._seen[result.shape[0]] = (given.shape[0], given.shape[1], outside)

    def heads_first(self, size: int, count: int) -> bool:
        """Whether an axis of this size holds all contexts of the first of ``count`` heads, then those of the second."""
        outer, inner, outside = self._seen.get(size, (0, 0, False))
        return outer == count and (inner != count or outside)


def _inside_out(given: torch.Tensor) -> bool:
    """Whether the second axis takes larger steps in memory than the first: heads of one token lie side by side."""
    return given.shape[0] > 1 and given.shape[1] > 1 and given.stride(0) < given.stride(1)


def _are_slices(parts: object) -> bool:
    """Whether tensors are equally wide slices of one: its heads."""
    tensors = [part for part in parts if isinstance(part, torch.Tensor)] if isinstance(parts, list | tuple) else []
    alike = len({tuple(part.shape) for part in tensors}) == 1 and len(tensors) > 1 and tensors[0].ndim == 3
    return alike and len({part.untyped_storage().data_ptr() for part in tensors}) == 1
