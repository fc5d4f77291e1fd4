"""Many heads: a drawn part of them, the landmarks, is organised; every other head is placed beside its nearest one.

The time of the head tree grows with the square of the heads, and so does the memory of their affinity. The trees of
queries and keys, on which the entropies of all heads are measured, need no more than a good sample of heads. The
distance of two heads that are not both landmarks is the l_1 distance of their Haar coefficients, each times the root of
its support: what a tree EMD is up to constants, on the functions that were computed anyway.
"""

from __future__ import annotations

import numpy as np

from oattn_hub.attention.reading import some_heads
from oattn_hub.geometry import PartitionTree
from oattn_hub.geometry.crowd import Crowd
from oattn_hub.geometry.markov import Diffusion
from oattn_hub.types import Array

_FUNCTIONS = 400  # of largest support that a distance looks at
_QUERIES = 16  # in which heads are compared to be counted to a landmark


def landmarks(n_heads: int, most: int) -> Array:
    """All heads, or ``most`` of them: the same for every batch, in order."""
    if n_heads <= most:
        return np.arange(n_heads)
    return np.sort(np.random.default_rng(0).choice(n_heads, most, replace=False))


def crowd_of(X: Array, marks: Array) -> Crowd:
    """All heads of a tensor, each added to the landmark that attends most like it in some of the queries."""
    queries = np.unique(np.linspace(0, len(X) - 1, _QUERIES).astype(np.intp))
    seen = np.concatenate([np.nan_to_num(part[queries].reshape(-1, part.shape[2]).T) for part in some_heads(X)])
    squares = np.einsum("hf,hf->h", seen, seen)
    closest = np.argmin(squares[marks] - 2.0 * seen @ seen[marks].T, axis=1)
    closest[marks] = np.arange(len(marks))
    sums = np.zeros((*X.shape[:2], len(marks)), dtype=np.float32)
    start = 0
    for part in some_heads(X):
        for head in range(part.shape[2]):
            sums[:, :, closest[start + head]] += part[:, :, head]
        start += part.shape[2]
    return Crowd(sums, np.bincount(closest, minlength=len(marks)))


def affinity_to_landmarks(coefficients: Array, supports: Array, marks: Array, between: Array) -> Array:
    """(heads, landmarks) affinity; ``between`` is that of the landmarks, coefficients are (heads, functions)."""
    from scipy.spatial.distance import cdist

    if len(coefficients) == len(marks):
        return between
    vectors = (coefficients * np.sqrt(supports))[:, :_FUNCTIONS]
    distances = cdist(vectors, vectors[marks], "cityblock")
    scale = float(np.median(distances[marks])) or 1.0
    affinity = np.exp(-distances / scale)
    affinity[marks] = between
    return affinity


def nearest(affinity: Array, marks: Array) -> Array:
    """(heads,) which landmark, by its place among them, is closest to each head; a landmark is its own."""
    found = np.argmax(affinity, axis=1)
    found[marks] = np.arange(len(marks))
    return np.asarray(found)


def tree_of_all(tree: PartitionTree, closest: Array) -> PartitionTree:
    """The landmarks' tree with every head in the folder of its landmark, and the heads as leaves."""
    if tree.n == len(closest):
        return tree
    return PartitionTree(np.vstack([tree.labels[:, closest], np.arange(len(closest))]))


def extended(geometry: Diffusion, affinity: Array, marks: Array, normalisation: str) -> Array:
    """(heads, k) diffusion coordinates: of a landmark its own, of another head the mean over its steps to them."""
    if len(affinity) == len(marks):
        return geometry.coordinates()
    steps = np.array(affinity, dtype=np.float64)
    if normalisation == "density":
        steps /= affinity[marks].sum(axis=0)
    steps /= np.maximum(steps.sum(axis=1, keepdims=True), 1e-300)
    coordinates = steps @ geometry.vectors
    coordinates[marks] = geometry.coordinates()
    return np.asarray(coordinates)
