"""Tree earth mover's distance between the slices of an array (eq. 15-16).

For a slice A, v(A) is the vector over all folder pairs (I, J) of w(I, J) * mean of A over I x J; the distance of two
slices is the l_1 distance of their vectors. Almost all time of a questionnaire is spent here, so: folders that repeat
on several levels are one coordinate with the weights added, sums of large folders are made from those of their
children, and the vectors exist only a few folders at a time, in the processor's cache.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oattn_hub.errors import InvalidInput
from oattn_hub.geometry import kernels
from oattn_hub.geometry.checks import AXES, Floats, as_tensor_with_gaps, at_least, axis_index, one_of
from oattn_hub.geometry.tree import PartitionTree

PRECISIONS = ("auto", "float32", "float64")

_COLUMNS = 1024  # of the vectors at a time: with a few hundred slices they stay in the cache
_FEW = 16  # slices that say what a typical one is
_TILE = 512  # float32 sums run over this many columns, then float64
_SHARES = 8  # of the work: fixed, so that the result does not depend on the number of threads
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
    tensor, missing = as_tensor_with_gaps(X)
    position = axis_index(axis, tensor.ndim)
    folders = [
        Folders.of(_tree_of(trees, other, tensor.shape), alpha, beta)
        for other in range(tensor.ndim)
        if other != position
    ]
    if tensor.ndim == 2:  # a matrix is a tensor of one head
        tensor = tensor[:, :, None]
        folders.append(Folders.of(PartitionTree([[0]]), alpha, beta))
    if missing:
        return _distances_with_gaps(_SlicesWithGaps(tensor, position, *folders))
    return _distances(_Slices(np.ascontiguousarray(tensor), position, *folders), precision)


def _tree_of(trees: Mapping[str, PartitionTree], axis: int, shape: tuple[int, ...]) -> PartitionTree:
    name = AXES[axis]
    if name not in trees:
        raise InvalidInput(f"trees has no tree for the {name} axis, only for {', '.join(trees) or 'none'}.")
    if trees[name].n != shape[axis]:
        raise InvalidInput(f"The tree of the {name} axis has {trees[name].n} points, X has {shape[axis]} there.")
    return trees[name]


class _Slices:
    """The slices of a tensor along one axis, by their coordinates: one for each folder pair of the other axes."""

    def __init__(self, tensor: Floats, axis: int, rows: Folders, columns: Folders) -> None:
        self.n = tensor.shape[axis]
        self.axis = axis
        self.tensor = tensor
        # Distances do not change when one slice is taken from all of them. The mean of a few leaves numbers of the
        # size of the differences, so that float32 keeps as many of their digits as it can.
        few = np.take(tensor, np.linspace(0, self.n - 1, min(self.n, _FEW)).astype(int), axis)
        self.typical = few.mean(axis=axis, dtype=np.float64)[None]
        # A power of two, which changes no digit, brings any tensor into the range of float32.
        size = np.abs(self.typical).mean()
        self.scale = float(2.0 ** -np.round(np.log2(size))) if size > 0 else 1.0
        self.rows, self.columns = rows, columns
        self.folders = (
            rows.member_starts,
            rows.members,
            rows.weights / rows.sizes * self.scale,
            columns.child_starts,
            columns.children,
            columns.weights / columns.sizes,
        )

    def fill(self, start: int, out: Floats) -> None:
        """Coordinates of the row folders from ``start`` on: out is (slices, row folders, column folders)."""
        typical = np.empty((1, *out.shape[1:]))
        by_lines = kernels.compiled(kernels.folder_values)
        by_lines(self.typical, False, *self.folders, start, np.zeros(out.shape[1:]), typical)
        if self.axis == 2:
            kernels.compiled(kernels.head_folder_values)(self.tensor, *self.folders, start, typical[0], out)
        else:
            by_lines(self.tensor, self.axis == 1, *self.folders, start, typical[0], out)


class _SlicesWithGaps:
    """The same for slices with missing entries: coordinates are NaN where a slice has no entry in the folder pair."""

    def __init__(self, tensor: Floats, axis: int, rows: Folders, columns: Folders) -> None:
        self.n = tensor.shape[axis]
        self.tensor = np.ascontiguousarray(np.moveaxis(tensor, axis, 0))
        self.rows, self.columns = rows, columns

    def fill(self, start: int, out: Floats) -> None:
        """Coordinates of the row folders from ``start`` on: out is (slices, row folders, column folders)."""
        kernels.compiled(kernels.present_folder_values)(
            self.tensor,
            self.rows.member_starts,
            self.rows.members,
            self.rows.weights,
            self.columns.child_starts,
            self.columns.children,
            self.columns.weights,
            start,
            out,
        )


def _distances(slices: _Slices, precision: str) -> NDArray[np.float64]:
    """l_1 distances between the coordinates of all slices."""
    if precision == "auto":
        work = slices.n**2 / 2 * len(slices.rows.weights) * len(slices.columns.weights)
        precision = "float32" if work >= _FLOAT32_FROM else "float64"
    padded = -(-slices.n // 4) * 4

    def share(parts: list[range]) -> NDArray[np.float64]:
        sums = np.zeros((padded, padded))
        buffer = np.zeros((padded, len(parts[0]), len(slices.columns.weights)), dtype=precision)
        for part in parts:
            values = buffer[:, : len(part)] if len(part) == len(parts[0]) else np.zeros_like(buffer[:, : len(part)])
            slices.fill(part.start, values[: slices.n])
            kernels.compiled(kernels.add_overlaps)(values.reshape(padded, -1), _TILE, sums)
        return sums

    sums = np.sum(_shared_out(slices, share), axis=0)[: slices.n, : slices.n]
    own = np.diag(sums)
    upper = np.triu(np.maximum(own[:, None] + own[None, :] - 2.0 * sums, 0.0), 1) / slices.scale
    return np.asarray(upper + upper.T)


def _distances_with_gaps(slices: _SlicesWithGaps) -> NDArray[np.float64]:
    """The same over the coordinates that both slices have, scaled up to the weight of all."""

    def share(parts: list[range]) -> NDArray[np.float64]:
        sums = np.zeros((2, slices.n, slices.n))
        for part in parts:
            values = np.empty((slices.n, len(part), len(slices.columns.weights)))
            slices.fill(part.start, values)
            flat = values.reshape(slices.n, -1)
            present = (~np.isnan(flat)).astype(np.float64)
            weights = np.outer(slices.rows.weights[part.start : part.stop], slices.columns.weights).ravel()
            kernels.compiled(kernels.add_present_distances)(flat, sums[0])
            sums[1] += (present * weights) @ present.T
        return sums

    total, weight = np.sum(_shared_out(slices, share), axis=0)
    whole = slices.rows.weights.sum() * slices.columns.weights.sum()
    upper = np.triu(np.divide(total * whole, weight, out=np.full_like(total, np.inf), where=weight > 0), 1)
    return np.asarray(upper + upper.T)


def _shared_out(
    slices: _Slices | _SlicesWithGaps, work: Callable[[list[range]], NDArray[np.float64]]
) -> list[NDArray[np.float64]]:
    """The work done on all row folders, some at a time, by several threads."""
    n_rows = len(slices.rows.weights)
    step = -(-_COLUMNS // len(slices.columns.weights) // kernels.LANES) * kernels.LANES
    parts = [range(start, min(start + step, n_rows)) for start in range(0, n_rows, step)]
    with ThreadPoolExecutor(n_threads()) as pool:
        return list(pool.map(work, [parts[first::_SHARES] for first in range(min(_SHARES, len(parts)))]))


def n_threads() -> int:
    """How many threads the distances use: ``OMP_NUM_THREADS`` if set, else the cores this process may run on."""
    chosen = os.environ.get("OMP_NUM_THREADS", "")
    if chosen.isdigit() and int(chosen) > 0:
        return int(chosen)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
