"""Affinities between the slices of an array along one axis."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oattn_hub.geometry.checks import Floats, as_tensor, at_least, axis_index


def cosine_affinity(X: ArrayLike, axis: str | int = 0, *, zero_is_missing: bool = False) -> NDArray[np.float64]:
    """Cosine similarity of the slices along ``axis``, negative values set to 0 (Algorithm 1, line 5).

    A missing entry (NaN) counts for neither slice: the inner product and both norms run over the entries present in
    both. Slices that share no entry, or of norm 0 there, have affinity 0, and 1 with themselves.

    Args:
        X: (query, key) or (query, key, head).
        axis: Name or number of the axis whose slices are compared.
        zero_is_missing: Treat exact zeros as missing too, as the authors' code does.

    >>> cosine_affinity([[1.0, 0.0], [2.0, 0.0], [0.0, 3.0]])
    array([[1., 1., 0.],
           [1., 1., 0.],
           [0., 0., 1.]])
    """
    tensor = as_tensor(X)
    slices = slice_rows(tensor, axis_index(axis, tensor.ndim)).astype(np.float64)
    missing = np.isnan(slices)
    if missing.any():
        slices[missing] = 0.0
    if zero_is_missing:
        missing = slices == 0.0
    inner = slices @ slices.T
    if missing.any():
        squares = (slices**2) @ (~missing).T.astype(np.float64)
        norms = np.sqrt(squares * squares.T)
    else:
        norms = np.sqrt(np.outer(np.diag(inner), np.diag(inner)))
    affinity = np.divide(inner, norms, out=np.zeros_like(inner), where=norms > 0.0)
    np.fill_diagonal(affinity, 1.0)
    return np.clip((affinity + affinity.T) / 2, 0.0, 1.0)


def gaussian_affinity(X: ArrayLike, axis: str | int = 0, *, scale: float = 1.0) -> NDArray[np.float64]:
    """exp(-d^2 / (scale * median d)^2) of the Euclidean distances d between the slices along ``axis``.

    With missing entries (NaN) the squared distance runs over the entries present in both slices, scaled up to all.
    Slices that share no entry have affinity 0. The median is over the pairs of different slices.
    """
    at_least("scale", scale, 1e-12)
    tensor = as_tensor(X)
    slices = slice_rows(tensor, axis_index(axis, tensor.ndim)).astype(np.float64)
    present = (~np.isnan(slices)).astype(np.float64)
    np.nan_to_num(slices, copy=False)
    squares = (slices**2) @ present.T
    shared = present @ present.T
    total = np.maximum(squares + squares.T - 2.0 * slices @ slices.T, 0.0)
    squared = np.divide(total * slices.shape[1], shared, out=np.full_like(total, np.inf), where=shared > 0)
    np.fill_diagonal(squared, 0.0)
    return np.exp(-squared / (scale * typical(np.sqrt(squared), "off_diagonal")) ** 2)


def distance_affinity(distances: ArrayLike, *, median: str = "published", scale: float = 1.0) -> NDArray[np.float64]:
    """exp(-d / (scale * median d)) (Algorithm 1, line 16).

    Args:
        distances: (n, n); an infinite distance gives affinity 0.
        median: ``"published"`` takes the median of the whole matrix, zeros of the diagonal included;
            ``"off_diagonal"`` the median over pairs of different points.
        scale: Multiplies the median.
    """
    matrix = np.asarray(distances, dtype=np.float64)
    return np.exp(-matrix / (scale * typical(matrix, median)))


def typical(distances: NDArray[np.float64], median: str) -> float:
    """The median of the finite distances, or 1 where it is 0 or there is none: a scale to divide by."""
    values = distances if median == "published" else distances[~np.eye(len(distances), dtype=bool)]
    finite = values[np.isfinite(values)]
    middle = float(np.median(finite)) if finite.size else 0.0
    return middle if middle > 0.0 else 1.0


def slice_rows(tensor: Floats, axis: int) -> Floats:
    """The slices along ``axis`` as the rows of a matrix."""
    return np.moveaxis(tensor, axis, 0).reshape(tensor.shape[axis], -1)
