"""The formulas of the geometry written down in plain numpy and scipy, as one would on first reading.

The yardstick of ``benchmarks/geometry.py``, and a second opinion: it gives the same numbers as ``oattn_hub.geometry``.
Nothing is imported from there; a tree is a list of levels from the root, each a list of index arrays.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh
from scipy.spatial.distance import pdist, squareform

Array = NDArray[np.float64]
Tree = list[list[NDArray[np.intp]]]


@dataclass
class Result:
    """Trees by axis (query, key, head) and the seconds spent on earth mover's distances."""

    trees: dict[int, Tree] = field(default_factory=dict)
    emd_seconds: float = 0.0


def questionnaire(X: Array, n_iters: int = 3, clock: Callable[[], float] = time.perf_counter) -> Result:
    result = Result()
    for axis in (0, 1):
        slices = np.moveaxis(X, axis, 0).reshape(X.shape[axis], -1)
        inner = slices @ slices.T
        norms = np.sqrt(np.diag(inner))
        result.trees[axis] = flexible_tree(np.clip(inner / np.outer(norms, norms), 0, 1))
    for _ in range(n_iters):
        for axis in (2, 0, 1):
            began = clock()
            distances = emd(X, result.trees, axis)
            result.emd_seconds += clock() - began
            result.trees[axis] = flexible_tree(np.exp(-distances / np.median(distances)))
    return result


def averages(tree: Tree, n: int) -> Array:
    """(folders of all levels, n) matrix that takes weighted folder means: weight |I|/n times mean, alpha 0, beta 1."""
    rows = np.zeros((sum(map(len, tree)), n))
    for row, folder in zip(rows, (folder for level in tree for folder in level), strict=True):
        row[folder] = 1.0 / n
    return rows


def emd(X: Array, trees: dict[int, Tree], axis: int) -> Array:
    first, second = (other for other in range(3) if other != axis)
    left, right = averages(trees[first], X.shape[first]), averages(trees[second], X.shape[second])
    slices = np.moveaxis(X, axis, 0)
    vectors = np.empty((len(slices), len(left) * len(right)))
    for vector, matrix in zip(vectors, slices, strict=True):
        vector[:] = (left @ matrix @ right.T).ravel()
    return squareform(pdist(vectors, "cityblock"))


def flexible_tree(affinity: Array) -> Tree:
    graph = np.where(affinity > 1e-8, affinity, 0.0)
    degree = graph.sum(axis=1)
    graph = graph / np.outer(degree, degree)
    root = np.sqrt(graph.sum(axis=1))
    values, vectors = eigh(graph / np.outer(root, root))
    largest = np.argsort(-np.abs(values))[:12]
    values, vectors = np.abs(values[largest]), vectors[:, largest] / root[:, None]
    vectors *= np.sqrt(np.sum(root**2))
    vectors[:, 0] = 1.0  # as it is by theory: late distances are smaller than the rounding of the computed one
    tree: Tree = [[np.array([point]) for point in range(len(affinity))]]
    t = 1
    while len(tree[0]) > 1:
        between = squareform(pdist(vectors * values**t))
        members = np.stack([np.isin(np.arange(len(affinity)), folder) / len(folder) for folder in tree[0]])
        clusters = join(members @ between @ members.T)
        tree.insert(0, [np.concatenate([tree[0][child] for child in cluster]) for cluster in clusters])
        t *= 2
    return in_order(tree, vectors[:, 1])


def in_order(tree: Tree, vector: Array) -> Tree:
    """Siblings by falling mean of the first non-trivial eigenvector, its entry of largest magnitude positive."""
    vector = vector * np.sign(vector[np.argmax(np.abs(vector))])
    ordered = [tree[0]]
    for level in tree[1:]:
        below = []
        for parent in ordered[-1]:
            children = [folder for folder in level if folder[0] in parent]
            below += sorted(children, key=lambda folder: -vector[folder].mean())
        ordered.append(below)
    return ordered


def join(distances: Array) -> list[list[int]]:
    n = len(distances)
    pairs = [(distances[i, j], i, j) for i in range(n) for j in range(i + 1, n)]
    median = np.median([pair[0] for pair in pairs])
    cluster = {point: [point] for point in range(n)}
    free = set(range(n))
    for count, (distance, i, j) in enumerate(sorted(pairs)):
        if count and distance >= median:
            break
        if i not in free and j not in free:
            continue
        point, other = (i, j) if i in free else (j, i)
        if other not in free and distance >= median * 2.0 ** (1 - len(cluster[other])):
            continue
        cluster[other].append(point)
        cluster[point] = cluster[other]
        free -= {point, other}
    return list({id(members): members for members in cluster.values()}.values())


def haar(tree: Tree, n: int) -> Array:
    """(n, n) Haar basis, one function per column, level by level. Children largest first, as they stand in the tree."""
    columns = [np.full(n, 1 / np.sqrt(n))]
    for level, below in pairwise(tree):
        for folder in level:
            children = [child for child in below if child[0] in folder]
            children.sort(key=len, reverse=True)
            for i, child in enumerate(children[:-1]):
                rest = np.concatenate(children[i + 1 :])
                function = np.zeros(n)
                function[child] = len(rest)
                function[rest] = -len(child)
                columns.append(function / np.linalg.norm(function))
    return np.stack(columns, axis=1)


def head_entropies(X: Array, query: Array, key: Array, m: int = 400) -> Array:
    supports = np.outer(np.count_nonzero(query, axis=0), np.count_nonzero(key, axis=0)).ravel()
    chosen = np.argsort(-supports, kind="stable")[:m]
    return np.array([np.abs(query.T @ X[:, :, head] @ key).ravel()[chosen].sum() for head in range(X.shape[2])])


def network_entropy(X: Array, query: Array, key: Array, head: Array, m: int = 100) -> float:
    sizes = [np.count_nonzero(basis, axis=0) for basis in (query, key, head)]
    supports = np.einsum("i,j,k->ijk", *sizes).ravel()
    coefficients = np.einsum("ijk,ia,jb,kc->abc", X, query, key, head, optimize=True).ravel()
    return float(np.abs(coefficients[np.argsort(-supports, kind="stable")[:m]]).sum())
