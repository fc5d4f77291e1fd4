"""The flexible tree as the authors' code grows it, for parity with their numbers.

The order of siblings and what joins between equal distances depend here on rounding and on the numbering of the points,
as they do there. Results use ``growing``.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from oattn_hub.geometry.markov import Diffusion
from oattn_hub.geometry.tree import PartitionTree

Matrix = NDArray[np.float64]
Labels = NDArray[np.intp]


def grow_as_published(geometry: Diffusion, constant: float = 1.0) -> PartitionTree:
    """The flexible tree of the points whose eigenvectors are known."""
    labels = np.arange(len(geometry.vectors))
    levels = [labels]
    places: list[Labels] = []
    time = 1.0
    while labels.max() > 0:
        distances = between_clusters(geometry.distances(time), labels)
        clusters = _join(distances, constant)
        above = np.empty(len(distances), dtype=np.intp)
        place = np.empty(len(distances), dtype=np.intp)
        for number, members in enumerate(clusters):
            above[members] = number
            place[members] = np.arange(len(members))
        places.append(place[labels])
        labels = above[labels]
        levels.append(labels)
        time *= 2.0
    return _in_joined_order(levels, places)


def between_clusters(distances: Matrix, labels: Labels) -> Matrix:
    """Mean distance between the members of each two clusters."""
    members = np.zeros((labels.max() + 1, len(labels)))
    members[labels, np.arange(len(labels))] = 1.0
    members /= members.sum(axis=1, keepdims=True)
    return np.asarray(members @ distances @ members.T)


def _join(distances: Matrix, constant: float) -> list[list[int]]:
    """One level: the points of each new cluster.

    Pairs are visited from the closest on, while closer than the median. Two free points join. A free point joins a
    cluster of size s when closer to the visited member than median / constant * 2^(1 - s). Ties: smallest index.

    Clusters stand in the order of the point that joined last, their points in the order in which a Python set
    hands them out: so they do in the authors' code, and Haar functions of equal children depend on it.
    """
    n = len(distances)
    first, second = np.triu_indices(n, k=1)
    gaps = distances[first, second]
    limit = _median(gaps, n)
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


def _median(gaps: Matrix, n: int) -> float:
    """The median gap; every gap counts twice, and n infinite ones, the diagonal."""
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
