"""Where the folders of a partition tree are drawn: leaves side by side, each folder above the middle of its leaves.

Levels on which a folder did not change are one node, so that a thousand leaves stay a few thousand points.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from oattn_hub.types import Array


@dataclass(frozen=True, eq=False)
class Dendrogram:
    """Nodes of a drawn tree, the root first.

    Args:
        x, y: position of each node; leaves have y = 0 and x = 0 … n-1 in tree order, the root has y = 1.
        parent: index of each node's parent; the root is its own.
        leaf: node index of each original item, (n,).
        order: the items from left to right, (n,).
    """

    x: Array
    y: Array
    parent: Array
    leaf: Array
    order: Array

    def segments(self, nodes: Array | None = None) -> Array:
        """Corner points (edges, 3, 2) of the edges from the given nodes (default: all) up to their parents."""
        child = np.arange(1, len(self.x)) if nodes is None else nodes
        parent = self.parent[child]
        x = np.stack([self.x[child], self.x[child], self.x[parent]], axis=1)
        y = np.stack([self.y[child], self.y[parent], self.y[parent]], axis=1)
        return np.stack([x, y], axis=-1)


def layout(labels: Array, order: Array) -> Dendrogram:
    """Place the tree with these labels (levels, n) whose leaves, from left to right, are ``order``."""
    n_levels, n = labels.shape
    position = np.empty(n)
    position[order] = np.arange(n)
    x, y, parent = [position.mean()], [1.0], [0]
    node = np.zeros(n, dtype=np.int64)  # the lowest node so far above each item
    for level in range(1, n_levels):
        _, first, folder, size = np.unique(labels[level], return_index=True, return_inverse=True, return_counts=True)
        changed = size < np.bincount(node)[node[first]]
        middle = np.bincount(folder, weights=position) / size
        height = 1.0 - level / (n_levels - 1)
        new = np.where(changed, len(x) + np.cumsum(changed) - 1, node[first])
        x.extend(middle[changed])
        y.extend(np.where(size[changed] == 1, 0.0, height))
        parent.extend(node[first[changed]])
        node = new[folder]
    return Dendrogram(np.array(x), np.array(y), np.array(parent), node, np.asarray(order))
