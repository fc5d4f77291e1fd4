"""What the geometry accepts: arrays of two or three named axes, and the words for what is wrong with others."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oattn_hub.errors import InvalidInput

AXES = ("query", "key", "head")
_ROWS = 256  # of a matrix that are compared together

Floats = NDArray[np.floating[Any]]


def as_tensor(X: ArrayLike, ndims: tuple[int, ...] = (2, 3), name: str = "X") -> Floats:
    """``X`` as a float array of finite or missing (NaN) entries, without a copy where none is needed."""
    return as_tensor_with_gaps(X, ndims, name)[0]


def as_tensor_with_gaps(X: ArrayLike, ndims: tuple[int, ...] = (2, 3), name: str = "X") -> tuple[Floats, bool]:
    """The same, and whether any entry is missing."""
    array = np.asarray(X)
    if array.dtype not in (np.float32, np.float64):
        if array.dtype.kind not in "fiub":
            raise InvalidInput(f"{name} has dtype {array.dtype}. Give real numbers (float32 or float64).")
        array = array.astype(np.float64)
    if array.ndim not in ndims:
        shapes = " or ".join(f"({', '.join(AXES[:ndim])})" for ndim in ndims)
        raise InvalidInput(f"{name} has shape {array.shape}. Give an array with the axes {shapes}.")
    for axis, length in enumerate(array.shape):
        if length == 0:
            raise InvalidInput(
                f"The {AXES[axis]} axis of {name} is empty (shape {array.shape}). Give at least one entry."
            )
    if _all_finite(array):
        return array, False
    if np.isinf(array).any():
        where = tuple(int(i) for i in np.argwhere(np.isinf(array))[0])
        raise InvalidInput(f"{name} is infinite at {where}. Masked entries are NaN here: replace infinities by NaN.")
    return array, bool(np.isnan(array).any())


def _all_finite(array: Floats) -> bool:
    """True if all entries are finite; False may also mean that their sum overflows. One pass, no memory."""
    with np.errstate(over="ignore", invalid="ignore"):
        return bool(np.isfinite(array.sum()))


def as_square(matrix: ArrayLike, name: str) -> NDArray[np.float64]:
    """``matrix`` as a finite, square, symmetric float64 array."""
    array = np.asarray(matrix, dtype=np.float64)
    if array.ndim != 2 or array.shape[0] != array.shape[1] or not array.size:
        raise InvalidInput(f"{name} has shape {array.shape}. Give a square matrix, one row per point.")
    if not np.isfinite(array).all():
        raise InvalidInput(f"{name} has entries that are not finite. Replace them first.")
    blocks = range(0, len(array), _ROWS)
    if not all(np.allclose(array[i : i + _ROWS], array.T[i : i + _ROWS], rtol=1e-6, atol=1e-12) for i in blocks):
        raise InvalidInput(f"{name} is not symmetric. Give symmetric affinities, for example (G + G.T) / 2.")
    return array


def axis_index(axis: str | int, ndim: int) -> int:
    """The position of an axis given by name or number."""
    names = AXES[:ndim]
    if isinstance(axis, str) and axis in names:
        return names.index(axis)
    if isinstance(axis, (int, np.integer)) and not isinstance(axis, bool) and 0 <= axis < ndim:
        return int(axis)
    raise InvalidInput(f"There is no axis {axis!r}. Valid axes are {', '.join(names)} (or 0 to {ndim - 1}).")


def one_of(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise unless ``value`` is one of ``choices``."""
    if value not in choices:
        raise InvalidInput(f"{name}={value!r} is not known. Valid values are {', '.join(map(repr, choices))}.")


def at_least(name: str, value: float, least: float) -> None:
    """Raise unless ``value`` is a number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not value >= least:
        raise InvalidInput(f"{name}={value!r} is not valid. Give a number of at least {least}.")
