"""Missing entries (NaN), such as the masked half of causal logits.

One rule everywhere: a missing entry says nothing. Means run over the entries that are present, and where a number is
needed in its place (Haar coefficients), it is the mean of the smallest folder around it that has one.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oattn_hub.errors import InvalidInput
from oattn_hub.geometry.checks import Floats, as_tensor_with_gaps
from oattn_hub.geometry.tree import PartitionTree

_BLOCK = 1 << 19  # entries filled together: bounds the memory whatever the size of the tensor


def fill_missing(X: ArrayLike, trees: Mapping[str, PartitionTree]) -> Floats:
    """``X`` with every missing entry replaced by the mean of the smallest folder pair around it that has entries.

    The folder pairs around an entry are those of its query and its key on the same level counted from the leaves; the
    largest is the whole head. Such a filling adds no detail finer than what is known. Heads are filled one by one.
    Without missing entries ``X`` itself is returned.

    >>> two = PartitionTree.dyadic(2)
    >>> fill_missing([[1.0, np.nan], [2.0, 3.0]], {"query": two, "key": two}).tolist()
    [[1.0, 2.0], [2.0, 3.0]]
    """
    tensor, missing = as_tensor_with_gaps(X)
    if not missing:
        return tensor
    heads = np.array(tensor).reshape(*tensor.shape[:2], -1)
    step = max(1, _BLOCK // heads[:, :, 0].size)
    for start in range(0, heads.shape[2], step):
        heads[:, :, start : start + step] = _filled(heads[:, :, start : start + step], trees["query"], trees["key"])
    empty = np.flatnonzero(np.isnan(heads).any(axis=(0, 1)))
    if empty.size:
        raise InvalidInput(f"Head {empty[0]} of X has no entry that is not missing. Leave it out.")
    return heads.reshape(tensor.shape)


def _filled(heads: Floats, query: PartitionTree, key: PartitionTree) -> NDArray[np.float64]:
    """Heads with their missing entries filled; a head without any entry stays missing."""
    present = ~np.isnan(heads)
    values = np.where(present, heads, 0.0).astype(np.float64)
    counts = present.astype(np.float64)
    filled = np.where(present, values, np.nan)
    for height in range(1, max(query.n_levels, key.n_levels)):
        rows = query.labels[max(query.n_levels - 1 - height, 0)]
        columns = key.labels[max(key.n_levels - 1 - height, 0)]
        sums, entries = _folder_sums(values, rows, columns), _folder_sums(counts, rows, columns)
        means = np.divide(sums, entries, out=np.full_like(sums, np.nan), where=entries > 0)
        filled = np.where(np.isnan(filled), means[np.ix_(rows, columns)], filled)
    return filled


def _folder_sums(
    values: NDArray[np.float64], rows: NDArray[np.int32], columns: NDArray[np.int32]
) -> NDArray[np.float64]:
    """(row folders, column folders, heads) sums over the folder pairs of one level."""
    for axis, labels in ((0, rows), (1, columns)):
        starts = np.cumsum(np.bincount(labels)) - np.bincount(labels)
        values = np.add.reduceat(np.take(values, np.argsort(labels, kind="stable"), axis=axis), starts, axis=axis)
    return values
