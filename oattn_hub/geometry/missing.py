"""Missing entries (NaN), such as the masked half of causal logits.

One rule everywhere: a missing entry says nothing. Means run over the entries that are present, and where a number is
needed in its place (Haar coefficients), it is the mean of the smallest folder around it that has one.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oattn_hub.errors import InvalidInput
from oattn_hub.geometry.checks import AXES, Floats, as_tensor
from oattn_hub.geometry.tree import PartitionTree


def fill_missing(X: ArrayLike, trees: Mapping[str, PartitionTree]) -> Floats:
    """``X`` with every missing entry replaced by the mean of the smallest folder pair around it that has entries.

    The folder pairs around an entry are those of its query and its key on the same level counted from the leaves; the
    largest is the whole head. Such a filling adds no detail finer than what is known. Heads are filled one by one.
    Without missing entries ``X`` itself is returned.

    >>> two = PartitionTree.dyadic(2)
    >>> fill_missing([[1.0, np.nan], [2.0, 3.0]], {"query": two, "key": two}).tolist()
    [[1.0, 2.0], [2.0, 3.0]]
    """
    tensor = as_tensor(X)
    missing = np.isnan(tensor)
    if not missing.any():
        return tensor
    values = np.where(missing, 0.0, tensor).astype(np.float64).reshape(*tensor.shape[:2], -1)
    counts = (~missing).astype(np.float64).reshape(values.shape)
    filled = np.where(missing.reshape(values.shape), np.nan, values)
    query, key = trees["query"], trees["key"]
    for height in range(max(query.n_levels, key.n_levels)):
        rows = query.labels[max(query.n_levels - 1 - height, 0)]
        columns = key.labels[max(key.n_levels - 1 - height, 0)]
        means = _block_means(values, counts, rows, columns)
        filled = np.where(np.isnan(filled), means[np.ix_(rows, columns)], filled)
        if not np.isnan(filled).any():
            return filled.reshape(tensor.shape).astype(tensor.dtype, copy=False)
    empty = int(np.flatnonzero(np.isnan(filled).all(axis=(0, 1)))[0])
    raise InvalidInput(f"{AXES[2].capitalize()} {empty} of X has no entry that is not missing. Leave it out.")


def _block_means(
    values: NDArray[np.float64], counts: NDArray[np.float64], rows: NDArray[np.int32], columns: NDArray[np.int32]
) -> NDArray[np.float64]:
    """(row folders, column folders, heads) mean of the present entries; NaN where there is none."""
    sums = _block_sums(values, rows, columns)
    present = _block_sums(counts, rows, columns)
    return np.divide(sums, present, out=np.full_like(sums, np.nan), where=present > 0)


def _block_sums(
    values: NDArray[np.float64], rows: NDArray[np.int32], columns: NDArray[np.int32]
) -> NDArray[np.float64]:
    by_row = np.zeros((int(rows.max()) + 1, *values.shape[1:]))
    np.add.at(by_row, rows, values)
    by_both = np.zeros((by_row.shape[0], int(columns.max()) + 1, values.shape[2]))
    np.add.at(by_both, (slice(None), columns), by_row)
    return by_both
