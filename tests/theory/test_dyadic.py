"""Averages over scales are means over the tree's folders, on any length and any tree."""

from __future__ import annotations

import numpy as np
import pytest

from oattn_hub.geometry import PartitionTree
from oattn_hub.geometry.dyadic import Scales


@pytest.mark.parametrize("n", [1, 2, 3, 64, 197])
def test_averages_are_the_means_of_the_folders(n: int) -> None:
    f = np.random.default_rng(n).standard_normal((n, 3))
    tree = PartitionTree.dyadic(n)
    for level, means in enumerate(Scales(tree).averages(f, axis=0)):
        expected = [f[folder].mean(axis=0) for folder in tree.folders(level)]
        np.testing.assert_allclose(means, expected, atol=1e-14)


def test_any_tree_serves_with_its_points_in_leaf_order() -> None:
    tree = PartitionTree([[0] * 6, [0, 1, 0, 1, 1, 0], [0, 1, 2, 3, 1, 2], [0, 1, 2, 3, 4, 5]])
    f = np.arange(6.0)[None, :] ** 2
    scales = Scales(tree)
    means = scales.averages(f[:, scales.order], axis=1)
    for level in range(tree.n_levels):
        np.testing.assert_allclose(means[level][0], [f[0, folder].mean() for folder in tree.folders(level)])
    np.testing.assert_array_equal(scales.order[scales.positions], np.arange(6))


def test_spread_hands_a_block_to_its_children() -> None:
    scales = Scales(PartitionTree.dyadic(5))
    assert scales.spread(np.array([10.0, 20.0]), 1, axis=0).tolist() == [10, 10, 20, 20]
