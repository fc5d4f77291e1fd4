"""Haar bases on partition trees, and fast transforms along one, two or three axes.

A folder with c children carries c - 1 orthonormal functions. Children are taken largest first (ties: from left to
right); the i-th function compares child i with all later ones together. With the constant these are n functions.
The first is the constant; the others follow level by level from the root, folders from left to right.

Each function is one rotation of two numbers (the sums over the two sides, scaled), so that the transform of n
numbers is n - 1 rotations done in place: no basis matrix and no outer product is ever formed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oattn_hub.errors import InvalidInput
from oattn_hub.geometry.checks import AXES, as_tensor, axis_index
from oattn_hub.geometry.tree import PartitionTree

_POINTS = 256  # of a basis that are computed together

Trees = PartitionTree | Mapping[str, PartitionTree] | Sequence[PartitionTree | None]


@dataclass(frozen=True, eq=False)
class HaarFunctions:
    """What the Haar functions of a tree look like, without their values."""

    levels: NDArray[np.intp]
    """(n,) level of the folder each function lives on (0 the root); -1 for the constant."""
    folders: NDArray[np.intp]
    """(n,) number of that folder on its level; -1 for the constant."""
    supports: NDArray[np.intp]
    """(n,) how many points each function is not zero on."""
    left: NDArray[np.intp]
    """(n - 1,) for functions 1 … n-1, a point of the one child on the first side."""
    right: NDArray[np.intp]
    """(n - 1,) a point of the next child, on the second side."""
    left_size: NDArray[np.intp]
    """(n - 1,) number of points on the first side, where the function is positive."""


def haar_functions(tree: PartitionTree) -> HaarFunctions:
    """The Haar functions of a tree in the order of the transform's coefficients.

    >>> haar_functions(PartitionTree.dyadic(4)).supports.tolist()
    [4, 4, 2, 2]
    """
    slots = tree.leaf_order  # per folder, the point in whose place its scaled sum is kept during a transform
    levels = []
    for level in range(tree.n_levels - 2, -1, -1):
        sizes, parents = tree.sizes[level + 1], tree.parents[level + 1]
        order = np.lexsort((-sizes, parents))
        sizes, parents, slots = sizes[order], parents[order], slots[order]
        first = np.flatnonzero(np.append(True, parents[1:] != parents[:-1]))
        # what a child is compared with: itself and all later siblings together
        ends = np.cumsum(tree.sizes[level])[parents]
        supports = ends - np.cumsum(sizes) + sizes
        paired = np.flatnonzero(parents[1:] == parents[:-1])
        levels.append(
            (
                np.full(len(paired), level),
                parents[paired],
                supports[paired],
                slots[paired],
                slots[paired + 1],
                sizes[paired],
            )
        )
        slots = slots[first]
    columns = (
        [np.concatenate(parts) for parts in zip(*levels[::-1], strict=True)] if levels else [np.empty(0, np.intp)] * 6
    )
    return HaarFunctions(
        levels=np.append(-1, columns[0]),
        folders=np.append(-1, columns[1]),
        supports=np.append(tree.n, columns[2]),
        left=columns[3],
        right=columns[4],
        left_size=columns[5],
    )


def haar_basis(tree: PartitionTree) -> NDArray[np.float64]:
    """(n, n) orthonormal Haar basis of a tree, one function per column, the constant first.

    >>> np.round(haar_basis(PartitionTree.dyadic(2)) * np.sqrt(2), 12)
    array([[ 1.,  1.],
           [ 1., -1.]])
    """
    return haar_transform(np.eye(tree.n), tree).T


def haar_values(tree: PartitionTree, numbers: NDArray[np.intp]) -> NDArray[np.float64]:
    """(n, functions) the columns ``numbers`` of the Haar basis, without the memory that all of it takes."""
    values = np.empty((tree.n, len(numbers)))
    for start in range(0, tree.n, _POINTS):
        points = np.eye(tree.n, min(_POINTS, tree.n - start), -start)
        values[start : start + _POINTS] = haar_transform(points, tree)[numbers].T
    return values


def haar_transform(X: ArrayLike, trees: Trees) -> NDArray[np.float64]:
    """Haar coefficients of ``X`` along the axes that have a tree.

    Args:
        X: An array of one to three axes, without missing entries (``fill_missing`` fills them).
        trees: One tree (for the first axis), a mapping from axis name (query, key, head) to tree, or a sequence with
            one tree or None per axis. Two trees give the bi-Haar, three the tri-Haar coefficients.

    >>> haar_transform([1.0, 1.0, 2.0, 4.0], PartitionTree.dyadic(4)).round(3).tolist()
    [4.0, -2.0, 0.0, -1.414]
    """
    coefficients = _checked(X)
    for axis, tree in trees_by_axis(trees, coefficients.shape):
        coefficients = _along(coefficients, axis, tree, _forward)
    return coefficients


def inverse_haar_transform(coefficients: ArrayLike, trees: Trees) -> NDArray[np.float64]:
    """The array whose Haar coefficients along the axes that have a tree are given.

    >>> tree = PartitionTree.dyadic(4)
    >>> inverse_haar_transform(haar_transform([1.0, 1.0, 2.0, 4.0], tree), tree).round(12).tolist()
    [1.0, 1.0, 2.0, 4.0]
    """
    values = _checked(coefficients)
    for axis, tree in trees_by_axis(trees, values.shape):
        values = _along(values, axis, tree, _backward)
    return values


def trees_by_axis(trees: Trees, shape: tuple[int, ...]) -> list[tuple[int, PartitionTree]]:
    """The (axis number, tree) pairs meant by ``trees``, checked against the array's shape."""
    if isinstance(trees, PartitionTree):
        pairs: list[tuple[int, PartitionTree]] = [(0, trees)]
    elif isinstance(trees, Mapping):
        known = AXES[: len(shape)]
        pairs = [
            (axis_index(name, len(shape)), tree) for name, tree in trees.items() if name in known or name not in AXES
        ]
    else:
        pairs = [(axis, tree) for axis, tree in enumerate(trees) if tree is not None]
    if not pairs or len(pairs) > len(shape):
        raise InvalidInput(
            f"{len(pairs)} trees were given for {len(shape)} axes. Give one tree for each axis to transform."
        )
    for axis, tree in pairs:
        if tree.n != shape[axis]:
            raise InvalidInput(
                f"The tree of the {AXES[axis]} axis has {tree.n} points, the array has {shape[axis]} there."
            )
    return sorted(pairs, key=lambda pair: pair[0])


def _checked(X: ArrayLike) -> NDArray[np.float64]:
    array = as_tensor(X, ndims=(1, 2, 3))
    if np.isnan(array).any():
        raise InvalidInput("X has missing entries (NaN), which have no Haar coefficients. Fill them with fill_missing.")
    return array.astype(np.float64, copy=False)


def _along(X: NDArray[np.float64], axis: int, tree: PartitionTree, walk: Any) -> NDArray[np.float64]:
    """Apply a walk over the tree along one axis, on a copy that has this axis first."""
    rows = np.array(np.moveaxis(X, axis, 0), order="C", copy=True)
    done = walk(rows.reshape(tree.n, -1), haar_functions(tree))
    return np.moveaxis(done.reshape(rows.shape), 0, axis)


def _sides(functions: HaarFunctions) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Cosine and sine of each function's rotation: sqrt of the two sides' shares of the support."""
    share = functions.left_size / functions.supports[1:]
    return np.sqrt(share), np.sqrt(1.0 - share)


def _forward(rows: NDArray[np.float64], functions: HaarFunctions) -> NDArray[np.float64]:
    """Coefficients by rotations from the leaves up. ``left`` keeps the scaled sum, ``right`` the coefficient."""
    cosines, sines = _sides(functions)
    for k in range(len(functions.left) - 1, -1, -1):
        first, second = rows[functions.left[k]], rows[functions.right[k]]
        total = cosines[k] * first + sines[k] * second
        second *= -cosines[k]
        second += sines[k] * first
        first[:] = total
    return rows[_slots(functions)]


def _backward(rows: NDArray[np.float64], functions: HaarFunctions) -> NDArray[np.float64]:
    """Values by the opposite rotations from the root down."""
    cosines, sines = _sides(functions)
    slots = _slots(functions)
    values = np.empty_like(rows)
    values[slots] = rows
    for k in range(len(functions.left)):
        first, second = values[functions.left[k]], values[functions.right[k]]
        total = cosines[k] * first + sines[k] * second
        second *= -cosines[k]
        second += sines[k] * first
        first[:] = total
    return values


def _slots(functions: HaarFunctions) -> NDArray[np.intp]:
    """Where each coefficient stands after the walk up: the constant in the slot that no function used as its right."""
    constant = np.setdiff1d(np.arange(len(functions.supports)), functions.right)
    return np.concatenate([constant, functions.right])
