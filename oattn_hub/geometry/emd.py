"""Tree earth mover's distance between the slices of an array (eq. 15-16).

For a slice A, v(A) is the vector over all folder pairs (I, J) of w(I, J) * mean of A over I x J; the distance of two
slices is the l_1 distance of their vectors. Almost all time of a questionnaire is spent here, so: folders that repeat
on several levels are one coordinate with the weights added, sums of large folders are made from those of their
children, and the vectors exist only a few folders at a time, in the processor's cache.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oattn_hub.errors import InvalidInput
from oattn_hub.geometry import kernels
from oattn_hub.geometry.checks import AXES, Floats, as_tensor, at_least, axis_index, one_of
from oattn_hub.geometry.tree import PartitionTree

PRECISIONS = ("auto", "float32", "float64")

_COLUMNS = 1024  # of the vectors at a time: with a few hundred slices they stay in the cache
_TILE = 256  # float32 sums run over this many columns, then float64
_GROUPS = 8  # partial results: fixed, so that the sum does not depend on the number of threads
_FLOAT32_FROM = 2e9  # pairs x coordinates; below, float64 costs a fraction of a second


@dataclass(frozen=True, eq=False)
class Folders:
    """The different folders of a tree, single points first (in order), then larger ones after their children."""

    weights: NDArray[np.float64]
    """(folders,) sum over the levels it is on of (size/n)^beta * 2^(-alpha * depth), depth of the root 0."""
    sizes: NDArray[np.int64]
    child_starts: NDArray[np.int64]
    children: NDArray[np.int64]
    member_starts: NDArray[np.int64]
    members: NDArray[np.int64]

    @classmethod
    def of(cls, tree: PartitionTree, alpha: float, beta: float) -> Folders:
        """The folders of a tree with their weights."""
        numbers = tree.leaf_order.tolist()  # of the folders on the level at hand, from left to right
        members: list[list[int]] = [[point] for point in range(tree.n)]
        children: list[list[int]] = [[] for _ in range(tree.n)]
        weights = [0.0] * tree.n
        for depth in range(tree.n_levels - 1, -1, -1):
            if depth < tree.n_levels - 1:
                numbers = _join(tree.parents[depth + 1].tolist(), numbers, members, children, weights)
            for number in numbers:
                weights[number] += (len(members[number]) / tree.n) ** beta * 2.0 ** (-alpha * depth)
        child_starts, flat_children = _flat(children)
        member_starts, flat_members = _flat(members)
        return cls(np.array(weights), np.diff(member_starts), child_starts, flat_children, member_starts, flat_members)


def _join(
    parents: list[int],
    numbers: list[int],
    members: list[list[int]],
    children: list[list[int]],
    weights: list[float],
) -> list[int]:
    """Numbers of the folders one level up; a folder with a single child is that child."""
    groups: list[list[int]] = [[] for _ in range(parents[-1] + 1)]
    for parent, number in zip(parents, numbers, strict=True):
        groups[parent].append(number)
    above = []
    for group in groups:
        if len(group) > 1:
            members.append([point for number in group for point in members[number]])
            children.append(group)
            weights.append(0.0)
        above.append(group[0] if len(group) == 1 else len(members) - 1)
    return above


def _flat(lists: list[list[int]]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    starts = np.cumsum([0, *map(len, lists)], dtype=np.int64)
    return starts, np.array([item for items in lists for item in items], dtype=np.int64)


def tree_emd(
    X: ArrayLike,
    trees: Mapping[str, PartitionTree],
    axis: str | int = "head",
    *,
    alpha: float = 0.0,
    beta: float = 1.0,
    precision: str = "auto",
) -> NDArray[np.float64]:
    """(n, n) earth mover's distances between the slices along ``axis``, by the trees of the other axes.

    EMD(A, B) is the sum over all folder pairs (I, J) of w(I, J) |mean of A - B over I x J|, with
    w = (|I|/n)^beta 2^(alpha (1 - level of I)) times the same for J, root level 1.

    Missing entries (NaN) count for nothing: means run over the entries present, a folder pair without any is left
    out of every distance the slice is in, and the rest is scaled up to the weight of all folder pairs. A slice
    without any entry is infinitely far from all others.

    Args:
        X: (query, key, head) or (query, key), float32 or float64; it is not changed.
        trees: Axis name to tree, for all axes but ``axis``.
        axis: Name or number of the axis whose slices are compared.
        alpha: Falls the weight of a folder by 2^-alpha per level.
        beta: Raises the folder's share of the points to this power.
        precision: ``"float32"`` compares the vectors, centred, in float32 and sums in float64: twice as fast, with
            errors of about 1e-7 of the typical distance. ``"auto"`` does so from 2e9 pairs of numbers on.

    >>> two = PartitionTree.dyadic(2)
    >>> tree_emd([[1.0, 0.0], [0.0, 1.0]], {"key": two}, axis="query")
    array([[0., 1.],
           [1., 0.]])
    """
    at_least("alpha", alpha, 0)
    at_least("beta", beta, 0)
    one_of("precision", precision, PRECISIONS)
    tensor = as_tensor(X)
    position = axis_index(axis, tensor.ndim)
    others = [number for number in range(tensor.ndim) if number != position]
    folders = [Folders.of(_tree_of(trees, number, tensor.shape), alpha, beta) for number in others]
    if len(folders) == 1:  # a matrix is a tensor with one row in each slice
        folders.insert(0, Folders.of(PartitionTree([[0]]), alpha, beta))
    slices = np.ascontiguousarray(np.moveaxis(tensor, position, 0))
    slices = slices.reshape(len(slices), -1, slices.shape[-1])
    distances = _distances(slices, folders[0], folders[1], precision)
    return distances + distances.T


def _tree_of(trees: Mapping[str, PartitionTree], axis: int, shape: tuple[int, ...]) -> PartitionTree:
    name = AXES[axis]
    if name not in trees:
        raise InvalidInput(f"trees has no tree for the {name} axis, only for {', '.join(trees) or 'none'}.")
    if trees[name].n != shape[axis]:
        raise InvalidInput(f"The tree of the {name} axis has {trees[name].n} points, X has {shape[axis]} there.")
    return trees[name]


def _distances(slices: Floats, rows: Folders, columns: Folders, precision: str) -> NDArray[np.float64]:
    """Distances above the diagonal, zero elsewhere: the folder pairs, a few at a time, shared out among threads."""
    missing = bool(np.isnan(slices).any())
    n_coordinates = len(rows.weights) * len(columns.weights)
    if precision == "auto":
        work = len(slices) ** 2 / 2 * n_coordinates
        precision = "float32" if work >= _FLOAT32_FROM else "float64"
    step = max(1, _COLUMNS // len(columns.weights))
    starts = range(0, len(rows.weights), step)

    def group(first: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        part = _Part(slices, rows, columns, step, np.dtype(precision), missing)
        for start in starts[first::_GROUPS]:
            part.add(start)
        return part.distances, part.shared

    with ThreadPoolExecutor(n_threads()) as pool:
        parts = list(pool.map(group, range(min(_GROUPS, len(starts)))))
    n = len(slices)
    total = np.triu(np.sum([part for part, _ in parts], axis=0)[:n, :n], 1)
    if not missing:
        return total
    shared = np.sum([part for _, part in parts], axis=0)
    everything = rows.weights.sum() * columns.weights.sum()
    return np.triu(np.divide(total * everything, shared, out=np.full_like(total, np.inf), where=shared > 0), 1)


class _Part:
    """One thread's share: buffers for a few folders' coordinates of all slices, and the distances so far."""

    def __init__(
        self,
        slices: Floats,
        rows: Folders,
        columns: Folders,
        step: int,
        precision: np.dtype[np.floating],
        missing: bool,
    ) -> None:
        n = len(slices)
        padded = -(-n // 4) * 4
        width = step * len(columns.weights)
        self.slices, self.rows, self.columns, self.missing = slices, rows, columns, missing
        self.values = np.empty((n, step, len(columns.weights)))
        self.centred = np.zeros((padded, width), dtype=precision)
        self.distances = np.zeros((padded, padded))
        self.shared = np.zeros((n, n))

    def add(self, start: int) -> None:
        """Add the coordinates of the row folders from ``start`` on."""
        count = min(self.values.shape[1], len(self.rows.weights) - start)
        values = self.values[:, :count]
        fill = kernels.compiled(kernels.present_folder_values if self.missing else kernels.folder_values)
        by_rows = self.rows.weights if self.missing else self.rows.weights / self.rows.sizes
        by_columns = self.columns.weights if self.missing else self.columns.weights / self.columns.sizes
        fill(
            self.slices,
            self.rows.member_starts,
            self.rows.members,
            by_rows,
            self.columns.child_starts,
            self.columns.children,
            by_columns,
            start,
            values,
        )
        flat = np.ascontiguousarray(values).reshape(len(values), -1)
        if self.missing:
            present = (~np.isnan(flat)).astype(np.float64)
            weights = np.outer(by_rows[start : start + count], by_columns).ravel()
            self.shared += (present * weights) @ present.T
            kernels.compiled(kernels.add_present_distances)(flat, self.distances)
        else:
            centred = self.centred[:, : flat.shape[1]]
            kernels.compiled(kernels.centre)(flat, centred)
            kernels.compiled(kernels.add_distances)(centred, _TILE, self.distances)


def n_threads() -> int:
    """How many threads the distances use: ``OMP_NUM_THREADS`` if set, else the cores this process may run on."""
    chosen = os.environ.get("OMP_NUM_THREADS", "")
    if chosen.isdigit() and int(chosen) > 0:
        return int(chosen)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
