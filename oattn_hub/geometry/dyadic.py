"""Averaging over the scales of an axis: the operators P^j of eq. 11, on intervals or on the folders of a tree.

The scales are the levels of a partition tree: scale 0 is one block, on the last every point is alone. The tree
``PartitionTree.dyadic(n)`` gives the paper's dyadic intervals when n is a power of 2 and intervals of a balanced split
otherwise, so nothing has to be cropped.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from oattn_hub.geometry.tree import PartitionTree

Float = NDArray[np.float64]
Index = NDArray[np.intp]


class Scales:
    """The levels of a partition tree as scales to average over.

    Arrays come with the axis in ``tree.leaf_order``, where every block of every scale is a run of neighbours and
    averaging is a sum over runs.

    >>> scales = Scales(PartitionTree.dyadic(5))
    >>> [sizes.tolist() for sizes in scales.sizes]
    [[5], [3, 2], [2, 1, 1, 1], [1, 1, 1, 1, 1]]
    >>> scales.averages(np.array([1.0, 3.0, 2.0, 0.0, 6.0]), axis=0)[1].tolist()
    [2.0, 3.0]
    """

    def __init__(self, tree: PartitionTree) -> None:
        self.tree = tree

    @property
    def n(self) -> int:
        """How many points the axis has."""
        return self.tree.n

    @property
    def n_scales(self) -> int:
        """How many scales there are, the whole axis and the single points included."""
        return self.tree.n_levels

    @property
    def sizes(self) -> tuple[Index, ...]:
        """For each scale, how many points each of its blocks has."""
        return self.tree.sizes

    @cached_property
    def order(self) -> Index:
        """The points in the order in which every block is a run."""
        return self.tree.leaf_order

    @cached_property
    def positions(self) -> Index:
        """For each point, its place in ``order``."""
        return np.argsort(self.order)

    @cached_property
    def children(self) -> tuple[Index, ...]:
        """For each block of a scale (all but the last), in how many blocks the next scale divides it."""
        return tuple(np.bincount(parents) for parents in self.tree.parents[1:])

    @cached_property
    def first_children(self) -> tuple[Index, ...]:
        """For each block of a scale (all but the last), which block of the next scale is the first inside it."""
        return tuple(np.cumsum(children) - children for children in self.children)

    def averages(self, f: Float, axis: int) -> list[Float]:
        """The mean of ``f`` over every block along ``axis``, one array per scale, coarse to fine."""
        sums = [f]
        for first_child in reversed(self.first_children):
            sums.append(np.add.reduceat(sums[-1], first_child, axis=axis))
        shape = [1] * f.ndim
        shape[axis] = -1
        return [total / size.reshape(shape) for total, size in zip(reversed(sums), self.sizes, strict=True)]

    def spread(self, blocks: Float, scale: int, axis: int) -> Float:
        """Values of the blocks of ``scale``, handed down to the blocks of the next scale."""
        return np.repeat(blocks, self.children[scale], axis=axis)
