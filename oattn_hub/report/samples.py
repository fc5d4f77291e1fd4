"""Matrices small enough to be looked at, for the theory's pictures: block means, one byte per entry.

Code 0 is a missing (masked) entry; codes 1 to 255 run linearly from the head's smallest to its largest value, of
the square root for ``probs``, because attention spans orders of magnitude and a linear scale would show one bright dot.
Nothing is computed from these bytes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from oattn_hub.types import Array

DISPLAY_SIDE = 64
_MISSING, _LOWEST, _HIGHEST = 0, 1, 255


def display_matrix(
    X: Array, kind: str, query_order: Array | None = None, key_order: Array | None = None, side: int = DISPLAY_SIDE
) -> Array:
    """(head, q, k) of a (query, key, head) tensor: ordered, reduced to block means, and rooted for ``probs``."""
    values = np.moveaxis(np.asarray(X), -1, 0)
    if query_order is not None:
        values = values[:, query_order]
    if key_order is not None:
        values = values[:, :, key_order]
    values = _block_means(_block_means(values.astype(np.float64), 1, side), 2, side)
    return np.sqrt(np.maximum(values, 0.0)) if kind == "probs" else values


def value_range(*matrices: Array) -> tuple[Array, Array]:
    """(H,) smallest and largest value of each head over all given (head, q, k) arrays; 0 where all is missing."""
    values = np.concatenate([matrix.reshape(len(matrix), -1) for matrix in matrices], axis=1)
    present = ~np.isnan(values)
    low = np.where(present, values, np.inf).min(axis=1)
    high = np.where(present, values, -np.inf).max(axis=1)
    empty = ~present.any(axis=1)
    return np.where(empty, 0.0, low).astype(np.float32), np.where(empty, 0.0, high).astype(np.float32)


def encode(values: Array, low: Array, high: Array) -> NDArray[np.uint8]:
    """Codes of (head, q, k) values on each head's range.

    >>> values = display_matrix(np.array([[[0.0], [1.0]], [[np.nan], [0.25]]]), "probs")
    >>> encode(values, *value_range(values))[0].tolist()
    [[1, 255], [0, 128]]
    """
    present = ~np.isnan(values)
    spread = np.where(high > low, high - low, 1.0)[:, None, None]
    scaled = _LOWEST + (np.where(present, values, 0.0) - low[:, None, None]) * (_HIGHEST - _LOWEST) / spread
    return np.where(present, np.clip(np.rint(scaled), _LOWEST, _HIGHEST), _MISSING).astype(np.uint8)


def decode(codes: Array, low: float, high: float, kind: str) -> Array:
    """One head's values back from its codes, NaN where missing; exact to 1/254 of the head's (rooted) range."""
    values = low + (codes.astype(np.float64) - _LOWEST) * (high - low) / (_HIGHEST - _LOWEST)
    values = np.square(values) if kind == "probs" else values
    return np.where(codes == _MISSING, np.nan, values)


def _block_means(values: Array, axis: int, side: int) -> Array:
    """Means over consecutive blocks that leave at most ``side`` of them; blocks with no value stay missing."""
    n = values.shape[axis]
    if n <= side:
        return values
    starts = np.arange(side) * n // side
    present = ~np.isnan(values)
    totals = np.add.reduceat(np.where(present, values, 0.0), starts, axis=axis)
    counts = np.add.reduceat(present, starts, axis=axis, dtype=np.int64)
    return np.divide(totals, counts, out=np.full_like(totals, np.nan), where=counts > 0)
