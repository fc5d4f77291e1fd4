"""Organising one head: permutations, both trees, the same numbers in a smoother order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from oattn_hub.errors import InvalidInput
from oattn_hub.geometry import PartitionTree, Questionnaire, holder_exponent, organise_head

Float = NDArray[np.float64]


def test_any_size_is_kept_whole() -> None:
    f = np.random.default_rng(0).standard_normal((197, 30))
    head = organise_head(f, Questionnaire(n_iters=1))
    assert head.matrix.shape == (197, 30)
    np.testing.assert_array_equal(head.matrix, f[head.query_order][:, head.key_order])
    np.testing.assert_array_equal(np.sort(head.query_order), np.arange(197))
    for tree in head.trees:  # on the organised matrix every folder is a run of neighbours
        np.testing.assert_array_equal(tree.leaf_order, np.arange(tree.n))


@pytest.mark.parametrize("alpha", [0.35, 0.45])
def test_a_shuffled_regular_matrix_is_made_regular_again(
    alpha: float, random_mixed_holder: Callable[..., Float]
) -> None:
    rng = np.random.default_rng(1)
    f = random_mixed_holder(alpha, 6, seed=2)
    shuffled = f[rng.permutation(64)][:, rng.permutation(64)]
    before = holder_exponent(shuffled).alpha
    after = holder_exponent(organise_head(shuffled).matrix).alpha
    assert before < 0
    assert after > before + 0.2


def test_the_published_organisation_is_reproduced() -> None:
    golden = np.load(Path(__file__).parents[1] / "data/theory/published_2d_64x64.npz")
    published = Questionnaire(10, "previous", alpha=1.0, beta=0.0, median="published", zero_is_missing=True)
    head = organise_head(golden["X"], published)
    assert head.query_tree == PartitionTree(golden["tree_row"])
    assert head.key_tree == PartitionTree(golden["tree_col"])


def test_a_tensor_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"f has shape \(2, 2, 2\)"):
        organise_head(np.zeros((2, 2, 2)))
