"""Tree earth mover's distance between the slices of an array (eq. 15-16).

For a slice A, v(A) is the vector over all folder pairs (I, J) of w(I, J) * mean of A over I x J; the distance of two
slices is the l_1 distance of their vectors. Almost all time of a questionnaire is spent here, so: folders that repeat
on several levels are one coordinate with the weights added, sums of large folders are made from those of their
children, once, and the vectors exist only a few folders at a time, in the processor's cache.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, reduce
from itertools import pairwise
from queue import SimpleQueue
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oattn_hub.errors import InvalidInput
from oattn_hub.geometry import kernels
from oattn_hub.geometry.checks import AXES, Floats, as_tensor_with_gaps, at_least, axis_index, one_of
from oattn_hub.geometry.on_device import device_distances
from oattn_hub.geometry.tree import PartitionTree

PRECISIONS = ("auto", "float32", "float64")

_NUMBERS = 1 << 18  # coordinates of all slices at a time: they stay in the cache,
_COLUMNS = 1 << 11  # but no more than this of one slice: over these, sums are in float32, then in float64
_FEW = 4  # slices that say what a typical one is
_READ = (
    8  # points: the sums of larger folders are made once and kept, those of smaller ones are made where they are used
)
_LANES = 16  # numbers of float32 that are compared at once; what is left over would be compared one by one
_ROWS = 64  # of a matrix of distances that are made together
_SHARES = 8  # of the work: fixed, so that the result does not depend on the number of threads
# Pairs x coordinates; below (256 tokens and 1,000 heads, 1,500 keys of Whisper) float64, so that rounding decides
# nothing: in float32, noise of 1e-10 moves distances by 1e-6, and a tree of 1,500 keys by what moves entropies by 3 %.
_FLOAT32_FROM = 5e10

# of which kind, and which of them
Part = tuple[int, range]
Task = TypeVar("Task")
Result = TypeVar("Result")


@dataclass(frozen=True, eq=False)
class Folders:
    """The different folders of a tree, single points first (in order), then larger ones after their children."""

    n: int
    """How many points."""
    weights: NDArray[np.float64]
    """(folders,) sum over the levels it is on of (size/n)^beta * 2^(-alpha * depth), depth of the root 0."""
    sizes: NDArray[np.int64]
    parents: NDArray[np.int64]
    """(folders,) the smallest folder that holds this one and more; the root, the last, has none: -1."""
    member_starts: NDArray[np.int64]
    members: NDArray[np.int64]

    @cached_property
    def children(self) -> NDArray[np.int64]:
        """The folders by their parents: first those of the first folder larger than a point, and so on."""
        return np.argsort(self.parents[:-1], kind="stable")

    @cached_property
    def child_starts(self) -> NDArray[np.int64]:
        """Where the children of each folder larger than a point begin, and the end."""
        return np.searchsorted(self.parents[:-1][self.children], np.arange(self.n, len(self.parents) + 1))

    @classmethod
    def of(cls, tree: PartitionTree, alpha: float, beta: float, counts: NDArray[np.intp] | None = None) -> Folders:
        """The folders of a tree with their weights; ``counts`` says for how many points each stands, if not for one."""
        total = tree.n if counts is None else int(counts.sum())
        numbers = tree.leaf_order.tolist()  # of the folders on the level at hand, from left to right
        members: list[list[int]] = [[point] for point in range(tree.n)]
        parents = [-1] * tree.n
        weights = [0.0] * tree.n

        def size(folder: list[int]) -> int:
            return len(folder) if counts is None else int(counts[folder].sum())

        for depth in range(tree.n_levels - 1, -1, -1):
            if depth < tree.n_levels - 1:
                numbers = _join(tree.parents[depth + 1].tolist(), numbers, members, parents, weights)
            for number in numbers:
                weights[number] += (size(members[number]) / total) ** beta * 2.0 ** (-alpha * depth)
        lengths = np.array([len(folder) for folder in members])
        sizes = np.array([size(folder) for folder in members])
        flat = np.array([point for folder in members for point in folder])
        return cls(tree.n, np.array(weights), sizes, np.array(parents), np.cumsum([0, *lengths]), flat)

    @classmethod
    def of_points(cls, weights: NDArray[np.float64]) -> Folders:
        """Points that lie in no folder but one of weight 0."""
        n = len(weights)
        members = np.concatenate([np.arange(n), np.arange(n)])
        starts = np.append(np.arange(n + 1), 2 * n)
        sizes, parents = np.append(np.ones(n, dtype=np.int64), n), np.append(np.full(n, n), -1)
        return cls(n, np.append(weights, 0.0), sizes, parents, starts, members)


def _join(
    labels: list[int],
    numbers: list[int],
    members: list[list[int]],
    parents: list[int],
    weights: list[float],
) -> list[int]:
    """Numbers of the folders one level up; a folder with a single child is that child."""
    groups: list[list[int]] = [[] for _ in range(labels[-1] + 1)]
    for label, number in zip(labels, numbers, strict=True):
        groups[label].append(number)
    above = []
    for group in groups:
        if len(group) > 1:
            for number in group:
                parents[number] = len(members)
            members.append([point for number in group for point in members[number]])
            parents.append(-1)
            weights.append(0.0)
        above.append(group[0] if len(group) == 1 else len(members) - 1)
    return above


def tree_emd(
    X: ArrayLike,
    trees: Mapping[str, PartitionTree],
    axis: str | int = "head",
    *,
    alpha: float = 0.0,
    beta: float = 1.0,
    precision: str = "auto",
    device: str | None = None,
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
        alpha: Reduces the weight of a folder by 2^-alpha per level.
        beta: Raises the folder's share of the points to this power.
        precision: ``"float32"`` compares the vectors, centred, in float32 and sums in float64: twice as fast, with
            errors of about 1e-6 of the typical distance, in which near ties are decided by rounding. ``"auto"`` does
            so from 5e10 pairs of numbers on (512 tokens and 300 heads).
        device: A device of torch, such as ``"cuda"``, that compares the slices; None: this processor, which also does
            it where entries are missing.

    >>> two = PartitionTree.dyadic(2)
    >>> tree_emd([[1.0, 0.0], [0.0, 1.0]], {"key": two}, axis="query")
    array([[0., 1.],
           [1., 0.]])
    """
    at_least("alpha", alpha, 0)
    at_least("beta", beta, 0)
    one_of("precision", precision, PRECISIONS)
    tensor, has_gaps = as_tensor_with_gaps(X)
    return emd_of_checked(tensor, has_gaps, trees, axis, alpha=alpha, beta=beta, precision=precision, device=device)


def emd_of_checked(
    tensor: Floats,
    has_gaps: bool,
    trees: Mapping[str, PartitionTree],
    axis: str | int,
    *,
    alpha: float,
    beta: float,
    precision: str,
    device: str | None = None,
) -> NDArray[np.float64]:
    """``tree_emd`` of a tensor that was looked through before: a questionnaire does so once, not for every tree."""
    position = axis_index(axis, tensor.ndim)
    folders = [
        Folders.of(tree_of(trees, other, tensor.shape), alpha, beta)
        for other in range(tensor.ndim)
        if other != position
    ]
    if tensor.ndim == 2:  # a matrix is a tensor of one head
        tensor = tensor[:, :, None]
        folders.append(Folders.of(PartitionTree([[0]]), alpha, beta))
    return emd_by_folders(tensor, has_gaps, position, folders, precision, device)


def emd_by_folders(
    tensor: Floats, has_gaps: bool, position: int, folders: list[Folders], precision: str, device: str | None = None
) -> NDArray[np.float64]:
    """``tree_emd`` of three axes by the folders of the two others, in their order."""
    if has_gaps:
        return _distances_with_gaps(_SlicesWithGaps(tensor, position, *folders))
    if precision == "auto":
        work = tensor.shape[position] ** 2 / 2 * math.prod(len(one.weights) for one in folders)
        precision = "float32" if work >= _FLOAT32_FROM else "float64"
    if device is not None:
        rows, columns = folders
        return device_distances(tensor, position, rows, columns, precision, device)
    return _distances(_Slices(np.ascontiguousarray(tensor), position, *folders, precision=precision))


def tree_of(trees: Mapping[str, PartitionTree], axis: int, shape: tuple[int, ...]) -> PartitionTree:
    """The tree of an axis, or what is wrong with it."""
    name = AXES[axis]
    if name not in trees:
        raise InvalidInput(f"trees has no tree for the {name} axis, only for {', '.join(trees) or 'none'}.")
    if trees[name].n != shape[axis]:
        raise InvalidInput(f"The tree of the {name} axis has {trees[name].n} points, X has {shape[axis]} there.")
    return trees[name]


@dataclass(frozen=True, eq=False)
class _Rows:
    """Where the values of some row folders come from: each is the sum of its members' lines."""

    lines: Floats
    typical: NDArray[np.float64]
    """(lines, columns) taken from every line."""
    member_starts: NDArray[np.int64]
    members: NDArray[np.int64]
    weights: NDArray[np.float64]


class _Slices:
    """The slices of a tensor along one axis, by their coordinates: one for each folder pair of the other axes."""

    def __init__(self, tensor: Floats, axis: int, rows: Folders, columns: Folders, *, precision: str) -> None:
        self.n: int = tensor.shape[axis]
        self.axis = axis
        self.columns = columns
        self.precision = precision
        # Distances do not change when one slice is taken from all of them. The mean of a few leaves numbers of the
        # size of the differences, so that float32 keeps as many of their digits as it can.
        few = np.moveaxis(tensor, axis, 0)[:: -(-self.n // _FEW)]
        typical = np.ascontiguousarray(few, dtype=np.float64).mean(axis=0)
        # A power of two, which changes no digit, brings any tensor into the range of float32.
        size = np.abs(typical).mean()
        self.scale = float(2.0 ** -np.round(np.log2(size))) if size > 0 else 1.0
        lengths = np.diff(rows.member_starts)
        small, large = _side_by_side(rows, lengths <= _READ), np.flatnonzero(lengths > _READ)
        weights = rows.weights / rows.sizes
        members = np.concatenate([rows.members[rows.member_starts[one] : rows.member_starts[one + 1]] for one in small])
        starts = np.concatenate([[0], np.cumsum(lengths[small])])
        sums = self._sums(tensor, typical, rows, large)
        kept = np.arange(len(large) + 1)
        self.kinds = (
            _Rows(tensor, typical, starts, members, weights[small] * self.scale),
            _Rows(sums, np.zeros((len(large), columns.n)), kept, kept, weights[large]),
        )

    def _sums(self, tensor: Floats, typical: NDArray[np.float64], rows: Folders, large: NDArray[np.intp]) -> Floats:
        """Like the tensor, but centred, scaled, and with the large row folders in place of the points."""
        points = tensor[:, :, None] if self.axis == 0 else tensor[None]
        typical = np.expand_dims(typical, 2 if self.axis == 2 else 1)
        n_outer, _, n_middle, length = points.shape
        sums = np.empty((n_outer, len(large), n_middle, length), dtype=self.precision)
        parents = _kept_parents(rows, large)
        ends = [n_outer * n_middle * share // _SHARES for share in range(_SHARES + 1)]

        def share(places: tuple[int, int]) -> None:
            kernels.compiled(kernels.inner_sums)(points, typical, self.scale, parents, *places, sums)

        for _ in _in_threads(share, list(pairwise(ends))):
            pass
        return sums[:, :, 0] if self.axis == 0 else sums[0]

    def parts(self, step: int) -> list[Part]:
        """The row folders, at most ``step`` of one kind at a time."""
        return [part for kind, rows in enumerate(self.kinds) for part in _parts(kind, len(rows.weights), step)]

    def fill(self, part: Part, out: Floats) -> None:
        """Coordinates of some row folders: out is (slices, row folders x column folders, and what is left alone)."""
        kind, some = part
        rows, columns = self.kinds[kind], self.columns
        source = rows.lines, rows.typical, rows.member_starts, rows.members, rows.weights
        weights = columns.weights / columns.sizes
        if self.axis == 2:
            kernels.compiled(kernels.head_folder_values)(*source, columns.parents, weights, some.start, some.stop, out)
        else:
            lines, *others = source
            kernels.compiled(kernels.folder_values)(
                lines,
                self.axis == 1,
                *others,
                columns.child_starts,
                columns.children,
                weights,
                some.start,
                some.stop,
                out,
            )


def _side_by_side(rows: Folders, small: NDArray[np.bool_]) -> NDArray[np.intp]:
    """The small folders, those within one small folder together: their lines are then read while in the cache."""
    outermost = np.arange(len(small))
    for folder in range(len(small) - 1, -1, -1):  # parents stand after their children
        parent = rows.parents[folder]
        if 0 <= parent < len(small) and small[parent]:
            outermost[folder] = outermost[parent]
    order = np.argsort(outermost, kind="stable")
    return order[small[order]]


def _kept_parents(rows: Folders, kept: NDArray[np.intp]) -> NDArray[np.int64]:
    """For the points, then the kept folders: the place of the smallest kept folder that holds them and more, or -1."""
    place = np.full(len(rows.parents) + 1, -1)  # the last one is nobody's
    place[kept] = np.arange(len(kept))
    found = np.full(len(rows.parents) + 1, -1)
    for folder in range(len(rows.parents) - 1, -1, -1):  # parents stand after their children
        parent = rows.parents[folder]
        found[folder] = place[parent] if place[parent] >= 0 else found[parent]
    return np.concatenate([found[: rows.n], found[kept]])


def _parts(kind: int, n_folders: int, step: int) -> list[Part]:
    return [(kind, range(start, min(start + step, n_folders))) for start in range(0, n_folders, step)]


class _SlicesWithGaps:
    """The same for slices with missing entries: coordinates are NaN where a slice has no entry in the folder pair."""

    def __init__(self, tensor: Floats, axis: int, rows: Folders, columns: Folders) -> None:
        self.n: int = tensor.shape[axis]
        self.tensor = np.ascontiguousarray(np.moveaxis(tensor, axis, 0))
        self.rows, self.columns = rows, columns

    def parts(self, step: int) -> list[Part]:
        """The row folders, at most ``step`` at a time."""
        return _parts(0, len(self.rows.weights), step)

    def fill(self, part: Part, out: Floats) -> None:
        """Coordinates of some row folders: out is (slices, row folders, column folders)."""
        kernels.compiled(kernels.present_folder_values)(
            self.tensor,
            self.rows.member_starts,
            self.rows.members,
            self.rows.weights,
            self.columns.parents,
            self.columns.weights,
            part[1].start,
            out,
        )


def _distances(slices: _Slices) -> NDArray[np.float64]:
    """l_1 distances between the coordinates of all slices."""
    padded = -(-slices.n // 4) * 4
    parts = slices.parts(_step(slices))
    most = padded * (max(len(some) for _, some in parts) * len(slices.columns.weights) + _LANES)
    memory: SimpleQueue[Floats] = SimpleQueue()  # for each thread one, whatever it works on: fresh memory costs time
    for _ in range(n_threads()):
        memory.put(np.empty(most, dtype=slices.precision))

    def share(parts: list[Part]) -> NDArray[np.float64]:
        sums = np.zeros((padded, padded))
        own = memory.get()
        try:
            for part in parts:
                width = len(part[1]) * len(slices.columns.weights)
                whole = -(-width // _LANES) * _LANES
                values = own[: padded * whole].reshape(padded, whole)
                values[slices.n :] = 0.0
                values[:, width:] = 0.0
                slices.fill(part, values[: slices.n])
                kernels.compiled(kernels.add_overlaps)(values, sums)
        finally:
            memory.put(own)  # also where it failed: the others would wait for it for ever
        return sums

    return _from_overlaps(_shared_out(parts, share)[: slices.n, : slices.n], slices.scale)


def _from_overlaps(overlaps: NDArray[np.float64], scale: float) -> NDArray[np.float64]:
    """The distances, from sums of minima above the diagonal."""
    n = len(overlaps)
    own = np.diag(overlaps).copy()
    distances = np.empty((n, n))
    for start in range(0, n, _ROWS):  # some rows at a time: all at once takes the memory of five such matrices
        rows = slice(start, start + _ROWS)
        found = np.maximum(own[rows, None] + own[start:] - 2.0 * overlaps[rows, start:], 0.0) / scale
        square = np.triu(found[:, : len(found)], 1)
        found[:, : len(found)] = square + square.T
        distances[rows, start:] = found
        distances[start:, rows] = found.T
    return distances


def _distances_with_gaps(slices: _SlicesWithGaps) -> NDArray[np.float64]:
    """The same over the coordinates that both slices have, scaled up to the weight of all."""

    def share(parts: list[Part]) -> NDArray[np.float64]:
        sums = np.zeros((2, slices.n, slices.n))
        for part in parts:
            rows = part[1]
            values = np.empty((slices.n, len(rows), len(slices.columns.weights)))
            slices.fill(part, values)
            flat = values.reshape(slices.n, -1)
            present = (~np.isnan(flat)).astype(np.float64)
            weights = np.outer(slices.rows.weights[rows.start : rows.stop], slices.columns.weights).ravel()
            kernels.compiled(kernels.add_present_distances)(flat, sums[0])
            sums[1] += (present * weights) @ present.T
        return sums

    total, weight = _shared_out(slices.parts(_step(slices)), share)
    whole = slices.rows.weights.sum() * slices.columns.weights.sum()
    upper = np.triu(np.divide(total * whole, weight, out=np.full_like(total, np.inf), where=weight > 0), 1)
    return np.asarray(upper + upper.T)


def _step(slices: _Slices | _SlicesWithGaps) -> int:
    """How many row folders are filled at a time."""
    return max(1, min(_NUMBERS // slices.n, _COLUMNS) // len(slices.columns.weights))


def _shared_out(parts: list[Part], work: Callable[[list[Part]], NDArray[np.float64]]) -> NDArray[np.float64]:
    """Sum of the work done on all row folders, some at a time."""
    shares = [parts[first::_SHARES] for first in range(min(_SHARES, len(parts)))]
    return reduce(_added, _in_threads(work, shares))


def _added(total: NDArray[np.float64], more: NDArray[np.float64]) -> NDArray[np.float64]:
    total += more
    return total


def _in_threads(work: Callable[[Task], Result], tasks: list[Task]) -> Iterator[Result]:
    """The results in the order of the tasks; a task begins only when few results wait, so that memory stays bounded."""
    if n_threads() == 1:  # a thread beside this one would only be waited for
        yield from map(work, tasks)
        return
    with ThreadPoolExecutor(n_threads()) as pool:
        waiting: deque[Future[Result]] = deque()
        for task in tasks:
            waiting.append(pool.submit(work, task))
            if len(waiting) > n_threads():
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def n_threads() -> int:
    """How many threads the distances use: ``OMP_NUM_THREADS`` if set, else the cores this process may run on."""
    chosen = os.environ.get("OMP_NUM_THREADS", "")
    if chosen.isdigit() and int(chosen) > 0:
        return int(chosen)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
