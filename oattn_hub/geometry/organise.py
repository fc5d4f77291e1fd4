"""One head's matrix in the order in which it is most regular: the 2D questionnaire (Fig. 1 of the paper)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oattn_hub.geometry.checks import as_tensor
from oattn_hub.geometry.questionnaire import Questionnaire
from oattn_hub.geometry.tree import PartitionTree

Float = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class OrganisedHead:
    """A head's matrix with its queries and keys put in the order of their trees.

    Attributes:
        matrix: the organised matrix, ``f[query_order][:, key_order]``; of the size of f, whatever that is.
        query_order, key_order: for each place in the organised matrix, the query or key that stands there.
        query_tree, key_tree: the trees, on the queries and keys as they were given.
    """

    matrix: Float
    query_order: NDArray[np.intp]
    key_order: NDArray[np.intp]
    query_tree: PartitionTree
    key_tree: PartitionTree

    @property
    def trees(self) -> tuple[PartitionTree, PartitionTree]:
        """Query and key tree of the organised matrix: the same folders, each a run of neighbours."""
        return self.query_tree.permuted(self.query_order), self.key_tree.permuted(self.key_order)


def organise_head(f: ArrayLike, questionnaire: Questionnaire | None = None) -> OrganisedHead:
    """Order the queries and keys of one head so that neighbours attend alike.

    Args:
        f: (query, key), any size.
        questionnaire: how the trees are built. By default balanced binary trees, whose folders are the dyadic intervals
            of the organised matrix: those over which the paraproduct averages.

    >>> blocks = np.kron(np.eye(2), np.ones((3, 3)))
    >>> shuffled = blocks[[0, 3, 1, 4, 2, 5]][:, [5, 0, 4, 1, 3, 2]]
    >>> sorted(folder.tolist() for folder in organise_head(shuffled + 0.1).query_tree.folders(1))
    [[0, 2, 4], [1, 3, 5]]
    """
    matrix = as_tensor(f, ndims=(2,), name="f").astype(np.float64, copy=False)
    trees = (questionnaire or Questionnaire(tree="binary")).fit(matrix).trees_
    query_tree, key_tree = trees["query"], trees["key"]
    queries, keys = query_tree.leaf_order, key_tree.leaf_order
    return OrganisedHead(matrix[queries][:, keys], queries, keys, query_tree, key_tree)
