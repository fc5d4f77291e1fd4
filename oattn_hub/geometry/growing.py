"""Trees grown from an affinity: the flexible tree, bottom up, and the balanced binary tree, top down."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oattn_hub.geometry.checks import as_square, at_least, one_of
from oattn_hub.geometry.markov import Diffusion, diffusion
from oattn_hub.geometry.tree import PartitionTree

MEDIANS = ("off_diagonal", "published")

Matrix = NDArray[np.float64]
Labels = NDArray[np.intp]


def flexible_tree(
    affinity: ArrayLike, *, constant: float = 1.0, median: str = "off_diagonal", n_eigenvectors: int = 12
) -> PartitionTree:
    """The flexible tree of an affinity: clusters join bottom up by diffusion distance, closest first.

    On the s-th level from the leaves clusters are compared by the diffusion distance at time 2^s, averaged over their
    members. Every level joins at least one pair, so at most n - 1 levels are built on any input. Siblings stand in
    falling order of the first non-trivial eigenvector, which makes the tree independent of the points' numbering.

    Args:
        affinity: (n, n), symmetric, not negative.
        constant: Divides the median distance; larger values make smaller folders.
        median: ``"off_diagonal"`` takes the median over pairs of different clusters. ``"published"`` does as the
            authors' code: the diagonal counts as infinite distances, and siblings stand in the order of joining.
        n_eigenvectors: How many eigenvectors the diffusion distance uses.

    >>> two_groups = np.kron(np.eye(2), np.ones((2, 2))) + 0.1
    >>> [folder.tolist() for folder in flexible_tree(two_groups).folders(1)]
    [[0, 1], [2, 3]]
    """
    at_least("constant", constant, 1e-12)
    one_of("median", median, MEDIANS)
    return grow(diffusion(as_square(affinity, "affinity"), n_eigenvectors), constant=constant, median=median)


def grow(geometry: Diffusion, *, constant: float = 1.0, median: str = "off_diagonal") -> PartitionTree:
    """The flexible tree of the points whose eigenvectors are known (see ``flexible_tree``)."""
    labels = np.arange(len(geometry.vectors))
    levels = [labels]
    places: list[Labels] = []
    time = 1.0
    while labels.max() > 0:
        distances = _between_clusters(geometry.distances(time), labels)
        clusters = _join(distances, constant=constant, median=median)
        above = np.empty(len(distances), dtype=np.intp)
        place = np.empty(len(distances), dtype=np.intp)
        for number, members in enumerate(clusters):
            above[members] = number
            place[members] = np.arange(len(members))
        places.append(place[labels])
        labels = above[labels]
        levels.append(labels)
        time *= 2.0
    if median == "published":
        return _in_joined_order(levels, places)
    return _in_eigenvector_order(levels, geometry)


def _between_clusters(distances: Matrix, labels: Labels) -> Matrix:
    """Mean distance between the members of each two clusters."""
    members = np.zeros((labels.max() + 1, len(labels)))
    members[labels, np.arange(len(labels))] = 1.0
    members /= members.sum(axis=1, keepdims=True)
    return np.asarray(members @ distances @ members.T)


def _join(distances: Matrix, *, constant: float, median: str) -> list[list[int]]:
    """One level: the points of each new cluster.

    Pairs are visited from the closest on, while closer than the median. Two free points join. A free point joins a
    cluster of size s when closer to the visited member than median / constant * 2^(1 - s). Ties: smallest index.

    Clusters stand in the order of the point that joined last, their points in the order in which a Python set
    hands them out: so they do in the authors' code, and Haar functions of equal children depend on it.
    """
    n = len(distances)
    first, second = np.triu_indices(n, k=1)
    gaps = distances[first, second]
    limit = _median(gaps, n, median)
    order = np.argsort(gaps, kind="stable")
    order = order[: max(1, int(np.searchsorted(gaps[order], limit)))]  # the closest pair joins in any case
    clusters = [{point} for point in range(n)]
    home = list(range(n))
    free = [True] * n
    for i, j, gap in zip(first[order].tolist(), second[order].tolist(), gaps[order].tolist(), strict=True):
        if not (free[i] or free[j]):
            continue
        point, other = (i, j) if free[i] else (j, i)
        old = home[other]
        if not free[other] and gap >= limit / constant * 2.0 ** (1 - len(clusters[old])):
            continue
        clusters[point] = clusters[point].union(clusters[old])
        for member in clusters[old]:
            home[member] = point
        clusters[old] = set()
        free[point] = free[other] = False
    return [list(cluster) for cluster in clusters if cluster]


def _median(gaps: Matrix, n: int, median: str) -> float:
    """The median gap; ``"published"`` counts every gap twice and n infinite ones, the diagonal."""
    if median == "off_diagonal":
        return float(np.median(gaps))
    ranked = np.concatenate([np.sort(np.repeat(gaps, 2)), np.full(n, np.inf)])
    return float(ranked[(n * n - 1) // 2] + ranked[n * n // 2]) / 2


def _in_joined_order(levels: list[Labels], places: list[Labels]) -> PartitionTree:
    """The tree of these levels (leaves first), siblings by falling place in their cluster.

    Falling, because the authors' Haar functions take equally large children from the last to the first.
    """
    ranks = [levels[-1]]
    for labels, place in zip(levels[-2::-1], places[::-1], strict=True):
        ranks.append(labels - place * (labels.max() + 1))
    return PartitionTree(np.stack(ranks))


def _in_eigenvector_order(levels: list[Labels], geometry: Diffusion) -> PartitionTree:
    """The tree of these levels (leaves first), siblings by falling mean of the first non-trivial eigenvector."""
    if geometry.vectors.shape[1] == 1:
        return PartitionTree(np.stack(levels[::-1]))
    ranks = []
    for labels in levels[::-1]:
        means = np.bincount(labels, weights=-geometry.vectors[:, 1]) / np.bincount(labels)
        ranks.append(np.argsort(np.argsort(means, kind="stable"))[labels])
    return PartitionTree(np.stack(ranks))


def binary_tree(affinity: ArrayLike) -> PartitionTree:
    """The balanced binary tree of an affinity: every folder is cut in the middle of its first non-trivial eigenvector.

    Sizes of siblings differ by at most one, so a tree on 2^k points is a full binary tree. Ties: smallest index.

    >>> two_groups = np.kron(np.eye(2), np.ones((2, 2))) + 0.1
    >>> [folder.tolist() for folder in binary_tree(two_groups).folders(1)]
    [[0, 1], [2, 3]]
    """
    graph = as_square(affinity, "affinity")
    folders = [np.arange(len(graph))]
    levels = [np.zeros(len(graph), dtype=np.intp)]
    while len(folders) < len(graph):
        folders = [half for folder in folders for half in _halves(folder, graph)]
        labels = np.empty(len(graph), dtype=np.intp)
        for number, folder in enumerate(folders):
            labels[folder] = number
        levels.append(labels)
    return PartitionTree(np.stack(levels))


def _halves(folder: Labels, graph: Matrix) -> list[Labels]:
    """A folder cut in two, the half of larger eigenvector entries first; a single point stays."""
    if len(folder) == 1:
        return [folder]
    if len(folder) == 2:
        return [folder[:1], folder[1:]]
    vector = diffusion(graph[np.ix_(folder, folder)], 2).vectors[:, 1]
    ranked = folder[np.argsort(-np.round(vector, 12), kind="stable")]
    middle = (len(folder) + 1) // 2
    return [ranked[:middle], ranked[middle:]]
