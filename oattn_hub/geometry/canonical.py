"""Orders that come from the content of the data, never from rounding or from the numbering of the points.

Numbers that differ by less than their own error are equal; between equals the next property decides: the size of a
folder, the mean of the tensor over it, then higher moments. The index decides only between points that are equal in
all of it, and such points can be exchanged without changing a result.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from oattn_hub.geometry.checks import Floats

# Properties of the content closer than this (in units of the tensor's root mean square) are equal. Far above rounding
# (float32 rows of probabilities add up to 1 within 1e-7), far below what distinguishes two tokens (about 1e-3).
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
    groups = groups_of_content(sizes, content)
    ranks = np.empty_like(groups)
    ranks[np.argsort(groups, kind="stable")] = np.arange(len(groups))
    return ranks


def groups_of_content(sizes: NDArray[np.intp], content: Matrix) -> NDArray[np.intp]:
    """The same for folders of equal size and content, rising in the canonical order."""
    groups = np.zeros(len(sizes), dtype=np.intp)
    for values in (sizes.astype(np.float64), *content.T):
        order = np.lexsort((-values, groups))
        parted = (-np.diff(values[order]) > SAME) | (np.diff(groups[order]) > 0)
        groups[order] = np.append(0, np.cumsum(parted))
        if groups[order[-1]] == len(sizes) - 1:
            break  # all are distinguished
    return groups


def content_of_folders(content: Matrix, labels: NDArray[np.integer[Any]]) -> tuple[NDArray[np.intp], Matrix]:
    """The number of points of each folder, and the mean of their content: the moments of the tensor over the folder."""
    sizes = np.bincount(labels)
    sums = [np.bincount(labels, weights=column) for column in content.T]
    return sizes, np.stack(sums, axis=1) / sizes[:, None]


def content_of_tensor(tensor: Floats, has_gaps: bool = False) -> tuple[Matrix, ...]:
    """For each axis the (n, 3) mean, mean square and mean cube of every slice, in units of the root mean square.

    Missing entries (NaN, if ``has_gaps``) are left out; a slice without any has content 0.
    """
    slabs = tensor.reshape(*tensor.shape[:2], -1)
    largest = largest_magnitude(slabs) or 1.0  # powers of numbers up to 1 do not overflow
    sums = [np.zeros((_MOMENTS, n)) for n in slabs.shape]
    counts = [np.full(n, slabs.size / n) for n in slabs.shape]
    if has_gaps:
        counts = [np.maximum(np.count_nonzero(~np.isnan(slabs), axis=axes), 1) for axes in ((1, 2), (0, 2), (0, 1))]
    step = max(1, _BLOCK // slabs[0].size)
    for start in range(0, len(slabs), step):
        some = np.divide(slabs[start : start + step], largest, dtype=np.float64)
        if has_gaps:
            np.nan_to_num(some, copy=False)
        power = some.copy()
        for place in range(_MOMENTS):
            _add([total[place] for total in sums], start, power)
            power *= some
    unit = float(np.sqrt(sums[0][1].sum() / slabs.size)) or 1.0
    units = unit ** np.arange(1, 1 + _MOMENTS)
    return tuple((total / count).T / units for total, count in zip(sums, counts, strict=True))[: tensor.ndim]


def largest_magnitude(slabs: Floats) -> float:
    """Of the entries that are not missing; fmax and fmin pass over NaN."""
    largest = max(float(np.fmax.reduce(slabs, axis=None)), -float(np.fmin.reduce(slabs, axis=None)))
    return largest if largest == largest else 0.0


def content_of_affinity(affinity: Matrix) -> Matrix:
    """(n, 3) the same for the rows of an affinity: what distinguishes points when nothing else is known of them."""
    return content_of_tensor(affinity)[0]


def _add(totals: list[Matrix], start: int, values: Matrix) -> None:
    """Add the values of some queries, from ``start`` on, to the sums of every query, key and head."""
    n_queries, n_keys, n_heads = values.shape
    lines = values.reshape(-1, n_heads)
    by_pair = (lines @ np.ones(n_heads)).reshape(n_queries, n_keys)
    totals[0][start : start + n_queries] += by_pair.sum(axis=1)
    totals[1] += by_pair.sum(axis=0)
    totals[2] += np.ones(len(lines)) @ lines
