"""Very long axes that nobody asked for, such as the 1,500 frames of a speech encoder, read as means over neighbours."""

from __future__ import annotations

import numpy as np

from oattn_hub.attention.reading import give_back
from oattn_hub.attention.store import AttentionStore
from oattn_hub.types import Array

LONG = 1024  # positions of an axis from which on it is read as means,
_LEFT = 512  # and how many are left at most


class PooledStore(AttentionStore):
    """A store whose long axes are read as means over neighbouring positions.

    Time grows with the cube of the positions. An axis of as many positions as were asked for (``tokens``) is left.
    """

    def __init__(self, store: AttentionStore) -> None:
        super().__init__(store.folder, store._index)
        self._sound = store._sound
        self._whole = store

    def pooled(self, batch: int, group: str | None = None) -> tuple[int, int]:
        """How many neighbouring queries, and how many keys, are read as one."""
        longest = max(LONG, self.info.tokens or 0)
        queries, keys, _ = self._whole.shape(batch, group)
        return _factor(queries, longest), _factor(keys, longest)

    def shape(self, batch: int, group: str | None = None) -> tuple[int, int, int]:
        """(queries, keys, heads) as they are read."""
        queries, keys, heads = self._whole.shape(batch, group)
        by_query, by_key = self.pooled(batch, group)
        return -(-queries // by_query), -(-keys // by_key), heads

    def tensor(self, batch: int, kind: str | None = None, group: str | None = None) -> Array:
        """X[query, key, head] of one batch: mapped as it is, or in memory if it had to be pooled."""
        X = self._whole.tensor(batch, kind, group)
        sizes = self.pooled(batch, group)
        if sizes == (1, 1):
            return X
        return pooled_tensor(X, self._whole._kind_name(kind), *sizes)


def _factor(length: int, longest: int) -> int:
    return 1 if length <= longest else -(-length // _LEFT)


def pooled_tensor(X: Array, kind: str, by_query: int, by_key: int) -> Array:
    """A tensor with so many consecutive positions merged into one, head by head.

    Queries are averaged. Keys are averaged for scores and logits (missing entries left out) and summed for probs, so
    that rows still sum to 1. The last block may be shorter.

    >>> pooled_tensor(np.full((4, 4, 1), 0.25), "probs", 2, 2)[:, :, 0].tolist()
    [[0.5, 0.5], [0.5, 0.5]]
    """
    n_queries, n_keys, n_heads = X.shape
    rows, columns = np.arange(0, n_queries, by_query), np.arange(0, n_keys, by_key)
    pooled = np.empty((len(rows), len(columns), n_heads), dtype=np.promote_types(X.dtype, np.float32))
    for head in range(n_heads):
        values = np.asarray(X[:, :, head], dtype=np.float64)
        present = ~np.isnan(values)
        sums = _blocks(np.where(present, values, 0.0), rows, columns)
        counts = _blocks(present.astype(np.float64), rows, columns)
        if kind == "probs":  # summed over the keys, so only the queries are divided by
            counts = np.where(counts > 0, np.diff(np.append(rows, n_queries))[:, None], 0)
        pooled[:, :, head] = np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)
        give_back(X)
    return pooled


def _blocks(values: Array, rows: Array, columns: Array) -> Array:
    return np.asarray(np.add.reduceat(np.add.reduceat(values, rows, axis=0), columns, axis=1))
