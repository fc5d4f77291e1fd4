"""Affinities between the slices of an array along one axis."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oattn_hub.geometry.checks import Floats, as_tensor, as_tensor_with_gaps, at_least, axis_index

_NOTHING = 1e-8  # slices smaller than this part of the largest have no direction but that of rounding
_BLOCK = 1 << 19  # entries looked at together: bounds the memory whatever the size of the tensor


def cosine_affinity(X: ArrayLike, axis: str | int = 0, *, zero_is_missing: bool = False) -> NDArray[np.float64]:
    """Cosine similarity of the slices along ``axis``, negative values set to 0 (Algorithm 1, line 5).

    A missing entry (NaN) counts for neither slice: the inner product and both norms run over the entries present in
    both. Slices that share no entry, or of norm 0 there, have affinity 0, and 1 with themselves; a norm below 1e-8 of
    the largest is 0 but for rounding.

    Args:
        X: (query, key) or (query, key, head).
        axis: Name or number of the axis whose slices are compared.
        zero_is_missing: Treat exact zeros as missing too, as the authors' code does.

    >>> cosine_affinity([[1.0, 0.0], [2.0, 0.0], [0.0, 3.0]])
    array([[1., 1., 0.],
           [1., 1., 0.],
           [0., 0., 1.]])
    """
    tensor, missing = as_tensor_with_gaps(X)
    position = axis_index(axis, tensor.ndim)
    n = tensor.shape[position]
    whole = not (missing or zero_is_missing)
    inner, squares = np.zeros((n, n)), np.zeros((n, n))
    for block in _blocks(tensor, position):
        if whole:
            inner += block @ block.T
            continue
        present = ~np.isnan(block) & ((block != 0.0) | (not zero_is_missing))
        known = np.where(present, block, 0.0)
        inner += known @ known.T
        squares += known**2 @ present.T.astype(np.float64)
    if whole:
        squares = np.repeat(np.diag(inner)[:, None], n, axis=1)
    norms = np.sqrt(squares * squares.T)
    there = squares > _NOTHING**2 * squares.max()
    affinity = np.divide(inner, norms, out=np.zeros_like(inner), where=there & there.T & (norms > 0.0))
    np.fill_diagonal(affinity, 1.0)
    return np.clip((affinity + affinity.T) / 2, 0.0, 1.0)


def gaussian_affinity(X: ArrayLike, axis: str | int = 0, *, scale: float = 1.0) -> NDArray[np.float64]:
    """exp(-d^2 / (scale * median d)^2) of the Euclidean distances d between the slices along ``axis``.

    With missing entries (NaN) the squared distance runs over the entries present in both slices, scaled up to all.
    Slices that share no entry have affinity 0. The median is over the pairs of different slices.
    """
    at_least("scale", scale, 1e-12)
    tensor = as_tensor(X)
    position = axis_index(axis, tensor.ndim)
    n = tensor.shape[position]
    total, shared = np.zeros((n, n)), np.zeros((n, n))
    for block in _blocks(tensor, position):
        present = (~np.isnan(block)).astype(np.float64)
        known = np.nan_to_num(block)
        squares = known**2 @ present.T
        total += squares + squares.T - 2.0 * known @ known.T
        shared += present @ present.T
    scaled = np.maximum(total, 0.0) * (tensor.size / n)
    squared = np.divide(scaled, shared, out=np.full_like(total, np.inf), where=shared > 0)
    np.fill_diagonal(squared, 0.0)
    return np.asarray(np.exp(-squared / (scale * typical(np.sqrt(squared), "off_diagonal")) ** 2))


def distance_affinity(distances: ArrayLike, *, median: str = "published", scale: float = 1.0) -> NDArray[np.float64]:
    """exp(-d / (scale * median d)) (Algorithm 1, line 16).

    Args:
        distances: (n, n); an infinite distance gives affinity 0.
        median: ``"published"`` takes the median of the whole matrix, zeros of the diagonal included;
            ``"off_diagonal"`` the median over pairs of different points.
        scale: Multiplies the median.
    """
    matrix = np.asarray(distances, dtype=np.float64)
    affinity = np.divide(matrix, -scale * typical(matrix, median))
    return np.asarray(np.exp(affinity, out=affinity))


def typical(distances: NDArray[np.float64], median: str) -> float:
    """The median of the finite distances, or 1 where it is 0 or there is none: a scale to divide by."""
    values = distances if median == "published" else distances[~np.eye(len(distances), dtype=bool)]
    finite = values[np.isfinite(values)]
    middle = float(np.median(finite)) if finite.size else 0.0
    return middle if middle > 0.0 else 1.0


def _blocks(tensor: Floats, axis: int) -> Iterator[NDArray[np.float64]]:
    """The slices along ``axis`` as rows of a float64 matrix, some columns at a time, each in the memory of the last."""
    rows = np.moveaxis(tensor, axis, 0)
    step = max(1, _BLOCK // (tensor.size // rows.shape[1]))
    block = np.empty((len(rows), min(step, rows.shape[1]), *rows.shape[2:]))
    for start in range(0, rows.shape[1], step):
        some = rows[:, start : start + step]
        part = block[:, : some.shape[1]]
        part[...] = some
        yield part.reshape(len(rows), -1)
