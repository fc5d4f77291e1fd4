"""Attention matrices small enough to be looked at: block means of at most 64 x 64, one byte an entry.

A report keeps one batch's matrices of every head for display. Code 0 is a missing (masked) entry; codes 1 to 255 run
linearly from the head's smallest to its largest value, of the square root for ``probs``, because attention spans
orders of magnitude and a linear scale would show one bright dot. Nothing is computed from these bytes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from oattn_hub.report.group import Array

DISPLAY_SIDE = 64
_MISSING, _LOWEST, _HIGHEST = 0, 1, 255


def display_samples(
    X: Array, kind: str, query_order: Array | None = None, key_order: Array | None = None, side: int = DISPLAY_SIDE
) -> tuple[NDArray[np.uint8], Array, Array]:
    """Codes (head, q, k) of a (query, key, head) tensor in the given orders, and each head's values of code 1 and 255.

    >>> codes, low, high = display_samples(np.array([[[0.0], [1.0]], [[np.nan], [0.25]]]), "probs")
    >>> codes[0].tolist(), low.tolist(), high.tolist()
    ([[1, 255], [0, 128]], [0.0], [1.0])
    """
    values = np.moveaxis(np.asarray(X, dtype=np.float64), -1, 0)
    if query_order is not None:
        values = values[:, query_order]
    if key_order is not None:
        values = values[:, :, key_order]
    values = _block_means(_block_means(values, 1, side), 2, side)
    if kind == "probs":
        values = np.sqrt(np.maximum(values, 0.0))
    return _encode(values)


def decode(codes: Array, low: float, high: float, kind: str) -> Array:
    """One head's values back from its codes, NaN where missing; exact to 1/254 of the head's range."""
    values = low + (codes.astype(np.float64) - _LOWEST) * (high - low) / (_HIGHEST - _LOWEST)
    values = np.square(values) if kind == "probs" else values
    return np.where(codes == _MISSING, np.nan, values)


def _block_means(values: Array, axis: int, side: int) -> Array:
    """Means over consecutive blocks that leave at most ``side`` of them; blocks with no value stay missing."""
    n = values.shape[axis]
    if n <= side:
        return values
    starts = np.unique(np.arange(side) * n // side)
    present = ~np.isnan(values)
    totals = np.add.reduceat(np.where(present, values, 0.0), starts, axis=axis)
    counts = np.add.reduceat(present, starts, axis=axis, dtype=np.int64)
    return np.divide(totals, counts, out=np.full_like(totals, np.nan), where=counts > 0)


def _encode(values: Array) -> tuple[NDArray[np.uint8], Array, Array]:
    present = ~np.isnan(values)
    low = np.where(present, values, np.inf).min(axis=(1, 2))
    high = np.where(present, values, -np.inf).max(axis=(1, 2))
    empty = ~present.any(axis=(1, 2))
    low, high = np.where(empty, 0.0, low), np.where(empty, 0.0, high)
    spread = np.where(high > low, high - low, 1.0)[:, None, None]
    scaled = _LOWEST + (np.where(present, values, 0.0) - low[:, None, None]) * (_HIGHEST - _LOWEST) / spread
    codes = np.where(present, np.rint(scaled), _MISSING).astype(np.uint8)
    return codes, low.astype(np.float32), high.astype(np.float32)
