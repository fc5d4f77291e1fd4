"""Partition trees as integer labels: one row per level, from the root (one folder) to the leaves (one point each)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oattn_hub.errors import FormatError, InvalidInput
from oattn_hub.geometry.checks import at_least
from oattn_hub.types import Array

if TYPE_CHECKING:
    import networkx

Ints = NDArray[np.int32]


class PartitionTree:
    """A hierarchy of partitions of ``n`` points, each level refining the one above.

    ``labels[level, point]`` is the folder of the point on that level. Row 0 is the root (all 0), the last row is all
    different. Folders are numbered from left to right: siblings stand in the order of the labels they were given by,
    the children of one folder are neighbours, and on every level the labels grow along ``leaf_order``.

    A tree never changes. Two trees are equal when they have the same folders on the same levels, in whatever order.

    Args:
        labels: (levels, n) integers. Any numbering that names the folders of each level will do.

    >>> tree = PartitionTree([[0, 0, 0, 0], [0, 1, 0, 1], [0, 1, 2, 3]])
    >>> tree.n, tree.n_levels
    (4, 3)
    >>> [folder.tolist() for folder in tree.folders(1)]
    [[0, 2], [1, 3]]
    >>> tree.leaf_order.tolist()
    [0, 2, 1, 3]
    """

    __slots__ = ("__dict__", "_labels")

    def __init__(self, labels: ArrayLike) -> None:
        given = np.asarray(labels)
        _check_labels(given)
        order = np.lexsort(given[::-1])
        ranks = np.empty(given.shape, dtype=np.int32)
        ranks[:, order] = np.cumsum(_starts(given[:, order]), axis=1) - 1
        ranks.setflags(write=False)
        self._labels = ranks

    @classmethod
    def dyadic(cls, n: int) -> PartitionTree:
        """The balanced binary tree on 0 … n-1: every folder an interval, cut in the middle (left half the larger).

        >>> PartitionTree.dyadic(5).labels.tolist()
        [[0, 0, 0, 0, 0], [0, 0, 0, 1, 1], [0, 0, 1, 2, 3], [0, 1, 2, 3, 4]]
        """
        at_least("n", n, 1)
        levels = [np.zeros(n, dtype=np.int32)]
        sizes = np.array([n])
        while sizes.max() > 1:
            halves = np.stack([(sizes + 1) // 2, sizes // 2], axis=1).ravel()
            sizes = halves[halves > 0]
            levels.append(np.repeat(np.arange(len(sizes), dtype=np.int32), sizes))
        return cls(np.stack(levels))

    @property
    def labels(self) -> Ints:
        """(levels, n) folder of each point on each level, read-only."""
        return self._labels

    @property
    def n(self) -> int:
        """How many points the tree organises."""
        return len(self._labels[0])

    @property
    def n_levels(self) -> int:
        """How many levels it has, root and leaves included."""
        return len(self._labels)

    @cached_property
    def leaf_order(self) -> NDArray[np.intp]:
        """The points from left to right: the permutation that puts every folder's members side by side."""
        return np.argsort(self._labels[-1])

    @cached_property
    def sizes(self) -> tuple[NDArray[np.intp], ...]:
        """Per level, the number of points in each folder."""
        return tuple(np.bincount(level) for level in self._labels)

    @cached_property
    def parents(self) -> tuple[NDArray[np.int32], ...]:
        """Per level, the folder one level up that each folder lies in; the root's parent is -1."""
        rows = [np.full(1, -1, dtype=np.int32)]
        for upper, lower in pairwise(self._labels):
            parent = np.empty(int(lower.max()) + 1, dtype=np.int32)
            parent[lower] = upper
            rows.append(parent)
        return tuple(rows)

    def folders(self, level: int) -> list[NDArray[np.intp]]:
        """The members of each folder on a level (0 the root), ascending, folders from left to right."""
        if not -self.n_levels <= level < self.n_levels:
            raise InvalidInput(f"There is no level {level}. This tree has the levels 0 to {self.n_levels - 1}.")
        row = self._labels[level]
        return np.split(np.argsort(row, kind="stable"), np.cumsum(np.bincount(row))[:-1])

    @cached_property
    def distances(self) -> NDArray[np.float64]:
        """(n, n) tree metric: the share of all points in the smallest folder that holds both, 0 on the diagonal."""
        metric = self.metric()
        metric.setflags(write=False)
        return metric

    def metric(self) -> NDArray[np.float64]:
        """The same as ``distances``, made anew and not kept."""
        ordered = np.empty((self.n, self.n))  # from left to right, where the members of a folder are neighbours
        for sizes in self.sizes:
            ends = np.cumsum(sizes)
            for start, end in zip((ends - sizes).tolist(), ends.tolist(), strict=True):
                ordered[start:end, start:end] = (end - start) / self.n
        np.fill_diagonal(ordered, 0.0)
        places = self._labels[-1]
        return np.asarray(ordered[np.ix_(places, places)])

    def permuted(self, order: ArrayLike) -> PartitionTree:
        """The same tree after the points were reordered: new point ``i`` is old point ``order[i]``."""
        permutation = np.asarray(order)
        if not np.array_equal(np.sort(permutation), np.arange(self.n)):
            raise InvalidInput(f"order is not a permutation of 0 to {self.n - 1}. Name every point once.")
        return PartitionTree(self._labels[:, permutation])

    def to_json(self) -> dict[str, Any]:
        """A JSON-able description that ``from_json`` reads back."""
        return {"labels": self._labels.tolist()}

    @classmethod
    def from_json(cls, value: Mapping[str, Any] | str) -> PartitionTree:
        """The tree that ``to_json`` described (its value, or that value as JSON text)."""
        try:
            described = json.loads(value) if isinstance(value, str) else value
            return cls(np.asarray(described["labels"]))
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(f"This is not a tree made by to_json ({error}). Make it again.") from error

    def to_networkx(self) -> networkx.DiGraph[tuple[int, int]]:
        """A directed graph from the root to the leaves; a node is (level, folder) with ``size`` and ``members``.

        >>> PartitionTree.dyadic(4).to_networkx().number_of_nodes()
        7
        """
        import networkx as nx

        graph: networkx.DiGraph[tuple[int, int]] = nx.DiGraph()
        for level, parents in enumerate(self.parents):
            for folder, members in enumerate(self.folders(level)):
                graph.add_node((level, folder), level=level, size=len(members), members=members.tolist())
                if level:
                    graph.add_edge((level - 1, int(parents[folder])), (level, folder))
        return graph

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PartitionTree):
            return NotImplemented
        return np.array_equal(self._by_first_member, other._by_first_member)

    def __hash__(self) -> int:
        return hash(self._by_first_member.tobytes())

    def __repr__(self) -> str:
        return f"PartitionTree(n={self.n}, folders per level={[len(sizes) for sizes in self.sizes]})"

    @cached_property
    def _by_first_member(self) -> NDArray[np.intp]:
        # each folder named by its smallest member: the same whatever the order of siblings
        first = [np.unique(row, return_index=True)[1][row] for row in self._labels]
        return np.stack(first)


def _starts(sorted_labels: Array) -> NDArray[np.bool_]:
    """Where a new folder starts when the points are read from left to right."""
    starts = np.ones(sorted_labels.shape, dtype=bool)
    starts[:, 1:] = np.logical_or.accumulate(sorted_labels[:, 1:] != sorted_labels[:, :-1], axis=0)
    return starts


def _check_labels(labels: Array) -> None:
    if labels.ndim != 2 or not labels.size or labels.dtype.kind not in "iu":
        raise InvalidInput(
            f"labels has shape {labels.shape} and dtype {labels.dtype}. Give integers of shape (levels, n)."
        )
    if len(np.unique(labels[0])) != 1:
        raise InvalidInput("The first row of labels has several folders. Row 0 is the root: give one folder there.")
    if len(np.unique(labels[-1])) != labels.shape[1]:
        raise InvalidInput("The last row of labels has folders of several points. Give each point its own there.")
    for level, (upper, lower) in enumerate(pairwise(labels)):
        order = np.argsort(lower, kind="stable")
        same = lower[order][1:] == lower[order][:-1]
        if np.any(upper[order][1:][same] != upper[order][:-1][same]):
            raise InvalidInput(
                f"Level {level + 1} of labels joins points that level {level} parts. Each level refines it."
            )
