"""Orders that come from the content of the data, never from rounding or from the numbering of the points.

Numbers that differ by less than their own error are equal; between equals the next property decides: the size of a
folder, the mean of the tensor over it, then higher moments. The index decides only between points that are equal in
all of it, and such points can be exchanged without changing a result.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from oattn_hub.geometry.checks import AXES, Floats

# Properties of the content closer than this (in units of the tensor's root mean square) are equal. Far above rounding
# (float32 rows of probabilities add up to 1 within 1e-7), far below what tells two tokens apart (about 1e-3).
SAME = 1e-6

_MOMENTS = 3
_BLOCK = 1 << 18  # entries raised to powers together: they stay in the cache

Matrix = NDArray[np.float64]


def tied(sorted_values: Matrix, tolerance: float) -> NDArray[np.intp]:
    """The group of each of some ascending numbers: neighbours closer than ``tolerance`` are in the same group.

    >>> tied(np.array([0.0, 1e-9, 0.5, 1.0]), 1e-6).tolist()
    [0, 0, 1, 2]
    """
    return np.concatenate([[0], np.cumsum(np.diff(sorted_values) > tolerance)]) if len(sorted_values) else np.arange(0)


def canonical_ranks(sizes: NDArray[np.intp], content: Matrix) -> NDArray[np.intp]:
    """The place of each folder among all: larger first, then by falling content, then by index.

    >>> canonical_ranks(np.array([1, 2, 1]), np.array([[0.5], [0.1], [0.7]])).tolist()
    [2, 0, 1]
    """
    group = np.zeros(len(sizes), dtype=np.intp)
    for values, tolerance in ((-sizes, 0.0), *((-column, SAME) for column in content.T)):
        order = np.lexsort((values, group))
        parted = (np.diff(values[order]) > tolerance) | (np.diff(group[order]) > 0)
        group[order] = np.append(0, np.cumsum(parted))
        if group[order[-1]] == len(sizes) - 1:  # no two are equal any more
            return group
    ranks = np.empty_like(group)
    ranks[np.argsort(group, kind="stable")] = np.arange(len(group))
    return ranks


def content_of_folders(content: Matrix, labels: NDArray[np.intp]) -> tuple[NDArray[np.intp], Matrix]:
    """The number of points of each folder, and the mean of their content: the moments of the tensor over the folder."""
    sizes = np.bincount(labels)
    sums = [np.bincount(labels, weights=column) for column in content.T]
    return sizes, np.stack(sums, axis=1) / sizes[:, None]


def content_of_tensor(tensor: Floats) -> tuple[Matrix, ...]:
    """For each axis the (n, 3) mean, mean square and mean cube of every slice, in units of the root mean square.

    Missing entries (NaN) are left out; a slice without any has content 0.
    """
    slabs = tensor.reshape(*tensor.shape[:2], -1)
    # powers of numbers up to 1 do not overflow, whatever the size of the tensor
    largest = max(float(np.nanmax(slabs)), -float(np.nanmin(slabs))) if not np.isnan(slabs).all() else 0.0
    sums = [np.zeros((1 + _MOMENTS, n)) for n in slabs.shape]  # first the number of entries present
    step = max(1, _BLOCK // slabs[0].size)
    for start in range(0, len(slabs), step):
        some = slabs[start : start + step].astype(np.float64) / (largest or 1.0)
        power = (~np.isnan(some)).astype(np.float64)
        some = np.nan_to_num(some, copy=False)
        for place in range(1 + _MOMENTS):
            _add([total[place] for total in sums], start, power)
            power *= some
    unit = np.sqrt(sums[0][2].sum() / max(sums[0][0].sum(), 1.0)) or 1.0
    units = unit ** np.arange(1, 1 + _MOMENTS)
    return tuple((total[1:] / np.maximum(total[0], 1.0)).T / units for total in sums)[: tensor.ndim]


def by_place(tensor: Floats, axis: str, other: str, places: Matrix) -> Matrix:
    """(n,) mean over each slice along ``axis`` of its entries times their places on another axis, missing ones as 0."""
    first, second = AXES.index(axis), AXES.index(other)
    rest = tuple(number for number in range(tensor.ndim) if number not in (first, second))
    sums = np.nansum(tensor, axis=rest, dtype=np.float64)  # the two axes that are left stand in their old order
    sizes = np.abs(sums).max(initial=0.0) or 1.0
    return np.asarray((sums if first < second else sums.T) @ places / len(places) / sizes)


def content_of_affinity(affinity: Matrix) -> Matrix:
    """(n, 3) the same for the rows of an affinity: what tells points apart when nothing else is known of them."""
    return content_of_tensor(affinity)[0]


def _add(totals: list[Matrix], start: int, values: Matrix) -> None:
    """Add the values of some queries, from ``start`` on, to the sums of every query, key and head."""
    n_queries, n_keys, n_heads = values.shape
    lines = values.reshape(-1, n_heads)
    by_pair = (lines @ np.ones(n_heads)).reshape(n_queries, n_keys)
    totals[0][start : start + n_queries] += by_pair.sum(axis=1)
    totals[1] += by_pair.sum(axis=0)
    totals[2] += np.ones(len(lines)) @ lines
