"""Tree earth mover's distance between the slices of an array (eq. 15-16)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oattn_hub.errors import InvalidInput
from oattn_hub.geometry.checks import AXES, as_tensor, at_least, axis_index
from oattn_hub.geometry.tree import PartitionTree

Trees = Mapping[str, PartitionTree]


def folder_weights(tree: PartitionTree, alpha: float, beta: float) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    """The different folders of a tree and their weights; a folder found on several levels is one with the weights added.

    Returns:
        (folders, n) membership and (folders,) weights (|I|/n)^beta * 2^(alpha (1 - level)), root level 1.
    """
    weights: dict[bytes, float] = {}
    for depth in range(tree.n_levels):
        for members in tree.folders(depth):
            row = np.zeros(tree.n, dtype=bool)
            row[members] = True
            weight = (len(members) / tree.n) ** beta * 2.0 ** (-alpha * depth)
            weights[row.tobytes()] = weights.get(row.tobytes(), 0.0) + weight
    membership = np.frombuffer(b"".join(weights), dtype=bool).reshape(-1, tree.n)
    return membership, np.array(list(weights.values()))


def tree_emd(
    X: ArrayLike, trees: Trees, axis: str | int = "head", *, alpha: float = 0.0, beta: float = 1.0
) -> NDArray[np.float64]:
    """Earth mover's distance between the slices along ``axis``, by trees on the other axes.

    EMD(A, B) is the sum over all folder pairs (I, J) of w(I, J) |mean of A - B over I x J|, with
    w = (|I|/n)^beta 2^(alpha (1 - level of I)) times the same for J.
    """
    tensor = as_tensor(X)
    position = axis_index(axis, tensor.ndim)
    slices = np.moveaxis(tensor, position, 0).astype(np.float64)
    for other in (name for number, name in enumerate(AXES[: tensor.ndim]) if number != position):
        membership, weights = folder_weights(trees[other], alpha, beta)
        means = membership / membership.sum(axis=1, keepdims=True) * weights[:, None]
        slices = np.moveaxis(np.tensordot(slices, means, axes=(1, 1)), -1, -1)
    from scipy.spatial.distance import pdist, squareform

    return np.asarray(squareform(pdist(slices.reshape(len(slices), -1), "cityblock")))
