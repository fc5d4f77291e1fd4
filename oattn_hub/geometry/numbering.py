"""A numbering of queries, keys and heads that comes from the tensor alone, for data full of exact ties.

Where moments of the slices distinguish all points, nothing is needed. Elsewhere (hard attention, attention by relative
position only, repeated tokens) points get colours: equal ones share a colour, and a point's colour is refined by how it
attends to the colours of the other axes. What no refinement distinguishes is symmetric: then any one of them gets
a colour of its own, and the rest follows from that choice. The outcome is the same whatever the numbering was before.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from oattn_hub.geometry.canonical import SAME, Matrix, groups_of_content, largest_magnitude
from oattn_hub.geometry.checks import Floats

_BLOCK = 1 << 18  # entries looked at together
_GOLDEN = (5.0**0.5 - 1) / 2
_MISSING = -0.731  # a missing entry counts as this, in units of the root mean square: as good as any that is rare

Colours = NDArray[np.intp]
Orders = tuple[NDArray[np.intp], ...]


def canonical_orders(tensor: Floats, content: Sequence[Matrix]) -> Orders | None:
    """For each axis the order that puts its points in canonical places; None where their content already does.

    Args:
        tensor: (query, key, head) or (query, key); NaN entries are missing.
        content: For each axis the (n, moments) content of its slices.

    >>> shifts = np.subtract.outer(np.arange(4), np.arange(4)) % 4.0
    >>> other = shifts[[2, 0, 3, 1]][:, [1, 0, 3, 2]]
    >>> first, second = (X[np.ix_(*canonical_orders(X, [np.ones((4, 1))] * 2))] for X in (shifts, other))
    >>> np.array_equal(first, second)
    True
    """
    colours = [groups_of_content(np.zeros(len(own), dtype=np.intp), own) for own in content]
    if all(map(_settled, colours)):
        return None
    slabs = tensor.reshape(*tensor.shape[:2], -1)
    colours += [np.zeros(1, dtype=np.intp)] * (3 - len(colours))
    largest = largest_magnitude(slabs) or 1.0
    squares = sum(float(np.vdot(some, some)) for _, some in _blocks(slabs, largest, 0.0))
    unit = largest * (np.sqrt(squares / slabs.size) or 1.0)
    colours = _refined(slabs, unit, colours)
    while (cell := _symmetric_cell(slabs, unit, colours)) is not None:
        colours = _refined(slabs, unit, _with_one_apart(colours, *cell))
    return tuple(np.argsort(own, kind="stable") for own in colours[: tensor.ndim])


def _settled(colours: Colours) -> bool:
    return int(colours.max()) == len(colours) - 1


def _refined(slabs: Floats, unit: float, colours: list[Colours]) -> list[Colours]:
    """The colours after points were distinguished by what they are to the colours of the other axes, until none is."""
    while not all(map(_settled, colours)):
        refined = [
            groups_of_content(-own, message[:, None])
            for own, message in zip(colours, _messages(slabs, unit, colours), strict=True)
        ]
        if all(int(new.max()) == int(old.max()) for new, old in zip(refined, colours, strict=True)):
            break
        colours = refined
    return colours


def _messages(slabs: Floats, unit: float, colours: list[Colours]) -> tuple[Matrix, Matrix, Matrix]:
    """For each point the sum of its entries, each times a weight for the colours of the two other axes."""
    queries, keys, heads = (0.5 + (own + 1) * _GOLDEN % 1.0 for own in colours)
    sums = tuple(np.zeros(n) for n in slabs.shape)
    for start, some in _blocks(slabs, unit, _MISSING):
        rows = slice(start, start + len(some))
        by_pair = some @ heads
        sums[0][rows] = by_pair @ keys
        sums[1][:] += queries[rows] @ by_pair
        sums[2][:] += np.outer(queries[rows], keys).ravel() @ some.reshape(-1, slabs.shape[2])
    # noise of independent entries grows with the root of their number, so messages are measured in that
    by_query, by_key, by_head = (total / np.sqrt(slabs.size / len(total)) for total in sums)
    return by_query, by_key, by_head


def _symmetric_cell(slabs: Floats, unit: float, colours: list[Colours]) -> tuple[int, int] | None:
    """The axis and colour of points that are alike but not equal; None if there are none left.

    Points with equal slices can be exchanged without changing anything, so any order of them will do.
    """
    for axis, own in enumerate(colours):
        for colour in np.flatnonzero(np.bincount(own) > 1):
            if not _twins(slabs, unit, axis, np.flatnonzero(own == colour)):
                return axis, int(colour)
    return None


def _twins(slabs: Floats, unit: float, axis: int, points: NDArray[np.intp]) -> bool:
    """Whether the slices of all these points are equal."""

    def known(point: int) -> Matrix:
        return np.asarray(np.nan_to_num(np.take(slabs, point, axis=axis).astype(np.float64), nan=_MISSING * unit))

    first, *others = points.tolist()
    return all(bool(np.all(np.abs(known(point) - known(first)) <= SAME * unit)) for point in others)


def _with_one_apart(colours: list[Colours], axis: int, colour: int) -> list[Colours]:
    """The first of the points of a colour comes before the others of it."""
    one = int(np.flatnonzero(colours[axis] == colour)[0])
    own = colours[axis] + (colours[axis] >= colour)
    own[one] = colour
    return [*colours[:axis], own, *colours[axis + 1 :]]


def _blocks(slabs: Floats, unit: float, missing: float) -> Iterator[tuple[int, Matrix]]:
    """Some queries at a time in float64, divided by ``unit``, missing entries filled."""
    step = max(1, _BLOCK // slabs[0].size)
    for start in range(0, len(slabs), step):
        some = np.divide(slabs[start : start + step], unit, dtype=np.float64)
        yield start, np.nan_to_num(some, copy=False, nan=missing)
