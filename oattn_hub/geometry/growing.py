"""Trees grown from an affinity: the flexible tree, bottom up, and the balanced binary tree, top down.

Neither depends on rounding or on the numbering of the points: components of the graph are grown each on its own, and
what is equal up to its error is treated alike or put in an order that comes from the content (``canonical``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oattn_hub.geometry import kernels
from oattn_hub.geometry.canonical import (
    canonical_ranks,
    content_of_affinity,
    content_of_folders,
    tied,
)
from oattn_hub.geometry.checks import as_square, at_least, one_of
from oattn_hub.geometry.markov import Component, components, connected, diffusion
from oattn_hub.geometry.published import grow_as_published
from oattn_hub.geometry.tree import PartitionTree

MEDIANS = ("off_diagonal", "published")

# Error of a diffusion distance: relative to the median distance (noise of 1e-10 in a tensor reaches it ten to a hundred
# times larger), and relative to the largest (rounding of the eigenvectors).
_ERROR = 1e-7
_ROUNDING = 1e-14
_SORTED = 1 << 12  # pairs that are put in order together, at first

Matrix = NDArray[np.float64]
Labels = NDArray[np.intp]
Round = tuple[float, float, int]  # the smallest gap, the first one of the next round, and how many there are
Pairs = tuple[Labels, Labels, Matrix]  # both points and their gap


def flexible_tree(
    affinity: ArrayLike,
    *,
    constant: float = 1.0,
    median: str = "off_diagonal",
    n_eigenvectors: int = 12,
    normalisation: str = "density",
) -> PartitionTree:
    """The flexible tree of an affinity: clusters join bottom up by diffusion distance, closest first.

    On the s-th level from the leaves clusters are compared by the diffusion distance at time 2^s, averaged over their
    members. Every level joins at least one pair, so at most n - 1 levels are built on any input. Components of the
    graph (affinities up to 1e-8 are no link) are grown each on its own and join last, at the root. Siblings stand from
    the largest to the smallest, equally large ones by falling mean, mean square and mean cube of their affinities.

    Args:
        affinity: (n, n), symmetric, not negative.
        constant: Divides the median distance; larger values make smaller folders.
        median: ``"off_diagonal"`` takes the median over pairs of different clusters. ``"published"`` does as the
            authors' code: the diagonal counts as infinite distances, components are not distinguished, and siblings
            stand in the order of joining.
        n_eigenvectors: How many eigenvectors the diffusion distance uses.
        normalisation: ``"density"`` or ``"row"``: see ``markov_matrix``.

    >>> two_groups = np.kron(np.eye(2), np.ones((2, 2))) + 0.1
    >>> [folder.tolist() for folder in flexible_tree(two_groups).folders(1)]
    [[0, 1], [2, 3]]
    """
    at_least("constant", constant, 1e-12)
    one_of("median", median, MEDIANS)
    graph = as_square(affinity, "affinity")
    if median == "published":
        return grow_as_published(diffusion(graph, n_eigenvectors, normalisation), constant)
    return grow(components(graph, n_eigenvectors, normalisation), content_of_affinity(graph), constant)


def grow(parts: Sequence[Component], content: Matrix, constant: float = 1.0) -> PartitionTree:
    """The flexible tree of points whose components are known, siblings by their ``content``, (n, moments)."""
    grown = [_levels(part, content[part.members], constant) for part in parts]
    if len(parts) == 1:
        return PartitionTree(np.stack(grown[0][::-1]))
    height = max(map(len, grown))
    levels = np.zeros((height + 1, len(content)), dtype=np.intp)  # root last
    first = np.zeros(height, dtype=np.intp)  # number of the component's first cluster on each level
    for part, own in zip(parts, grown, strict=True):
        padded = np.stack(own + own[-1:] * (height - len(own)))
        levels[:height, part.members] = padded + first[:, None]
        first += padded.max(axis=1) + 1
    return in_canonical_order(levels[::-1], content)


def in_canonical_order(levels: NDArray[np.integer[Any]], content: Matrix) -> PartitionTree:
    """The tree of these levels (root first), siblings from the largest to the smallest, then by falling content."""
    return PartitionTree(np.stack([canonical_ranks(*content_of_folders(content, labels))[labels] for labels in levels]))


def _levels(part: Component, content: Matrix, constant: float) -> list[Labels]:
    """The clusters of a component on every level, leaves first, numbered in their canonical order."""
    labels = np.arange(len(part.members))
    levels = []
    time = 1.0
    while True:
        labels = canonical_ranks(*content_of_folders(content, labels))[labels]
        levels.append(labels)
        if labels.max() == 0:
            return levels
        gaps = _between_clusters(part.geometry.relative_coordinates(time), labels)
        labels = _join(gaps, constant)[labels]
        time *= 2.0


def _between_clusters(coordinates: Matrix, labels: Labels) -> Matrix:
    """Mean distance between the members of each two clusters, pairs in the order (0, 1), (0, 2), …

    In a time that grows with the pairs of points, and without the memory of a distance for each.
    """
    sizes = np.bincount(labels)
    extents = np.abs(coordinates).max(axis=0, initial=0.0)
    coordinates = coordinates[:, extents > _ROUNDING * extents.max(initial=0.0)]  # late times have few
    n_points, n_coordinates = coordinates.shape
    points = np.zeros((-(-n_coordinates // 4) * 4, n_points))
    points[:n_coordinates] = coordinates[np.argsort(labels, kind="stable")].T
    means = np.empty(len(sizes) * (len(sizes) - 1) // 2)
    kernels.compiled(kernels.mean_distances)(points, np.concatenate([[0], np.cumsum(sizes)]), means)
    return means


def _join(gaps: Matrix, constant: float) -> Labels:
    """One level: the new cluster of each point, by the distances of all pairs.

    Pairs are visited from the closest on, while closer than the median; equally close ones as they stand. Two free
    points join. A free point joins a cluster of size s when closer to the visited member than
    median / constant * 2^(1 - s). Where no pair is closer than the median, all points that are linked by the smallest
    distance join.
    """
    n = (1 + math.isqrt(1 + 8 * len(gaps))) // 2
    limit, error, rounds = _rounds(gaps)
    if not rounds:
        return connected(_links(gaps <= gaps.min() + error, n))
    home, sizes, free = np.arange(n), np.ones(n, dtype=np.int64), np.ones(n, dtype=np.bool_)
    for some in rounds:
        if not free.any():
            break
        pairs = _closest_first(kernels.compiled(kernels.pairs_of_free)(gaps, free, *some), error)
        kernels.compiled(kernels.join_closest)(*pairs, limit / constant, error, home, sizes, free)
    return np.asarray(np.unique(home, return_inverse=True)[1], dtype=np.intp)


def _rounds(gaps: Matrix) -> tuple[float, float, list[Round]]:
    """The median of the gaps, their error, and the rounds in which those closer than the median are visited.

    Each round ends after four times as many as the one before, and only pairs of points that are free by then are put
    in order: the last few join late, and to sort all pairs for them would take longer than everything else. No round
    ends between gaps that are equal up to their error.
    """
    middle = len(gaps) // 2
    places = [0]
    while (place := max(4 * places[-1], _SORTED)) < middle:
        places.append(place)
    parted = np.partition(gaps, middle)
    for place, end in zip(reversed(places), reversed([*places[1:], middle]), strict=True):
        parted[:end].partition(place)  # one by one from the right: all in one call take five times as long
    before = float(parted[places[-1] : middle].max(initial=parted[places[-1]]))
    limit = float(parted[middle]) if len(gaps) % 2 else (before + float(parted[middle])) / 2
    error = _ERROR * limit + _ROUNDING * float(parted[middle:].max())
    begins = [
        place
        for place, earlier in zip(places, [0, *places], strict=False)
        if parted[place] < limit - error and (place == 0 or parted[place] - parted[earlier:place].max() > error)
    ]
    bounds = [*((float(parted[begin]), begin) for begin in begins), (limit - error, middle + 1)]
    return limit, error, [(least, until, end - begin) for (least, begin), (until, end) in pairwise(bounds)]


def _links(pairs: NDArray[np.bool_], n: int) -> NDArray[np.bool_]:
    """(n, n) whether two of n points are linked, from all pairs in their order."""
    links = np.eye(n, dtype=np.bool_)
    links[np.triu_indices(n, k=1)] = pairs
    return links | links.T


def _closest_first(pairs: Pairs, error: float) -> Pairs:
    """The pairs by rising gap, equally close ones in the order in which they came."""
    first, second, gaps = pairs
    order = np.argsort(gaps)
    groups = tied(gaps[order], error)
    same = np.flatnonzero(np.bincount(groups)[groups] > 1)
    order[same] = order[same[np.lexsort((order[same], groups[same]))]]
    return first[order], second[order], gaps[order]


def binary_tree(affinity: ArrayLike, *, normalisation: str = "density", content: Matrix | None = None) -> PartitionTree:
    """The balanced binary tree of an affinity: every folder is cut in the middle of its first non-trivial eigenvector.

    Sizes of siblings differ by at most one, so a tree on 2^k points is a full binary tree. In a folder that falls into
    components these stand one after the other, largest first.

    Args:
        affinity: (n, n), symmetric, not negative.
        normalisation: ``"density"`` or ``"row"``: see ``markov_matrix``.
        content: (n, moments) what gives eigenvectors their direction and orders equal points; by default moments of
            the affinity's rows.

    >>> two_groups = np.kron(np.eye(2), np.ones((2, 2))) + 0.1
    >>> [folder.tolist() for folder in binary_tree(two_groups).folders(1)]
    [[0, 1], [2, 3]]
    """
    graph = as_square(affinity, "affinity")
    content = content_of_affinity(graph) if content is None else content
    folders = [np.arange(len(graph))]
    levels = [np.zeros(len(graph), dtype=np.intp)]
    while len(folders) < len(graph):
        folders = [half for folder in folders for half in _halves(folder, graph, content, normalisation)]
        labels = np.empty(len(graph), dtype=np.intp)
        # halves of equal content are numbered by their points, not by the sign that an eigenvector came out with
        for number, folder in enumerate(sorted(folders, key=min)):
            labels[folder] = number
        levels.append(labels)
    return in_canonical_order(np.stack(levels), content)


def _halves(folder: Labels, graph: Matrix, content: Matrix, normalisation: str) -> list[Labels]:
    """A folder cut in two, the first half the larger; a single point stays."""
    if len(folder) == 1:
        return [folder]
    parts = components(graph[np.ix_(folder, folder)], 2, normalisation)
    labels = np.empty(len(folder), dtype=np.intp)
    for number, part in enumerate(parts):
        labels[part.members] = number
    ranks = canonical_ranks(*content_of_folders(content[folder], labels))
    ordered = [parts[number] for number in np.argsort(ranks)]
    line = np.concatenate([part.members[_along(part, content[folder[part.members]])] for part in ordered])
    middle = (len(folder) + 1) // 2
    return [folder[line[:middle]], folder[line[middle:]]]


def _along(part: Component, content: Matrix) -> Labels:
    """The order of a component's points along its slowest direction.

    That direction is the content, seen through the leading eigenspace: the same whatever basis of it was computed, and
    with a sign. Points of equal place stand by falling content.
    """
    places = _direction(part, content)
    order = np.argsort(-places, kind="stable")
    groups = np.empty(len(order), dtype=np.intp)
    groups[order] = tied(-places[order], _ERROR * float(np.abs(places).max(initial=0.0)))
    ranks = canonical_ranks(np.ones(len(order), dtype=np.intp), content)
    return np.lexsort((ranks, groups))


def _direction(part: Component, content: Matrix) -> Matrix:
    vectors = part.geometry.vectors[:, 1:][:, part.geometry.values[1:] > 1e-8]
    for moment in (*content.T, np.linspace(-1.0, 1.0, len(content))):  # last the numbering, which is canonical by then
        shares = (moment - moment.mean()) @ vectors
        if np.abs(shares).max(initial=0.0) > 1e-6 * len(moment):
            return np.asarray(vectors @ shares)
    return vectors[:, 0] if vectors.shape[1] else np.zeros(len(content))
