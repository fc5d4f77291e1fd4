"""Trees of affinities: they end on anything, and find what was hidden."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from oattn_hub.errors import InvalidInput
from oattn_hub.geometry import PartitionTree, binary_tree, cosine_affinity, flexible_tree, growing, kernels
from oattn_hub.geometry.published import between_clusters

Matrix = NDArray[np.float64]

KINDS = ["random", "constant", "zero", "identity", "duplicated", "components", "tiny", "ladder"]


def affinity_of(kind: str, n: int, seed: int) -> Matrix:
    rng = np.random.default_rng(seed)
    random = rng.random((n, n))
    random = (random + random.T) / 2
    match kind:
        case "constant":
            return np.ones((n, n))
        case "zero":
            return np.zeros((n, n))
        case "identity":
            return np.eye(n)
        case "duplicated":
            return cosine_affinity(rng.random((max(1, n // 3), 4))[np.arange(n) % max(1, n // 3)])
        case "components":
            group = rng.integers(0, 3, n)
            return random * (group[:, None] == group[None, :])
        case "tiny":
            return random * 1e-7  # some links above, some below what counts as one
        case "ladder":
            return 10.0 ** -np.abs(np.subtract.outer(np.arange(n), np.arange(n))).astype(float) * 5
    return random


@given(st.sampled_from(KINDS), st.integers(1, 25), st.integers(0, 1000), st.sampled_from(["off_diagonal", "published"]))
def test_flexible_tree_ends_on_any_affinity(kind: str, n: int, seed: int, median: str) -> None:
    affinity = affinity_of(kind, n, seed)
    affinity.setflags(write=False)
    tree = flexible_tree(affinity, median=median)
    counts = [len(sizes) for sizes in tree.sizes]
    assert counts[0] == 1
    assert counts[-1] == n
    assert counts == sorted(set(counts))  # every stored level merges something
    assert np.array_equal(flexible_tree(affinity, median=median).labels, tree.labels)


@given(st.sampled_from(KINDS), st.integers(1, 25), st.integers(0, 1000))
def test_binary_tree_is_balanced_on_any_affinity(kind: str, n: int, seed: int) -> None:
    tree = binary_tree(affinity_of(kind, n, seed))
    assert sorted(np.concatenate(tree.sizes).tolist()) == sorted(np.concatenate(PartitionTree.dyadic(n).sizes).tolist())
    assert np.array_equal(binary_tree(affinity_of(kind, n, seed)).labels, tree.labels)


@pytest.mark.parametrize("build", [flexible_tree, binary_tree])
def test_the_smallest_trees(build: object) -> None:
    for n, counts in ((1, [1]), (2, [1, 2])):
        tree = build(np.ones((n, n)))  # type: ignore[operator]
        assert [len(sizes) for sizes in tree.sizes] == counts


@given(st.integers(0, 1000), st.permutations(range(12)))
def test_renumbering_points_renumbers_the_tree(seed: int, order: list[int]) -> None:
    affinity = affinity_of("random", 12, seed)
    tree = flexible_tree(affinity)
    again = flexible_tree(affinity[np.ix_(order, order)])
    # the order of siblings follows the eigenvector, not the numbers
    assert np.array_equal(again.labels, tree.labels[:, order])


def test_components_join_last() -> None:
    group = np.array([0, 1, 0, 1, 0, 1, 0, 0])
    affinity = np.where(group[:, None] == group[None, :], 0.5, 0.0) + 0.5 * np.eye(8)
    tree = flexible_tree(affinity)
    assert sorted(folder.tolist() for folder in tree.folders(1)) == [[0, 2, 4, 6, 7], [1, 3, 5]]


def test_joining_by_hand() -> None:
    """Three near points and one far away: the near ones become a folder, the far one joins at the root."""
    x = np.array([0.0, 0.1, 0.25, 3.0])
    tree = flexible_tree(np.exp(-np.abs(np.subtract.outer(x, x))))
    assert [0, 1, 2] in [folder.tolist() for folder in tree.folders(1)]


def test_a_larger_constant_makes_smaller_folders() -> None:
    affinity = cosine_affinity(np.random.default_rng(0).random((40, 6)))
    loose, tight = flexible_tree(affinity, constant=0.2), flexible_tree(affinity, constant=5.0)
    assert len(loose.sizes[-2]) < len(tight.sizes[-2])


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(InvalidInput, match="'off_diagonal', 'published'"):
        flexible_tree(np.eye(3), median="mean")
    with pytest.raises(InvalidInput, match="constant=0"):
        flexible_tree(np.eye(3), constant=0)


def test_means_between_clusters_are_the_same_as_by_matrices_and_grow_with_the_pairs_only() -> None:
    rng = np.random.default_rng(0)
    points = rng.random((60, 3))
    distances = np.linalg.norm(points[:, None] - points[None], axis=2)
    for labels in (np.arange(60), np.sort(rng.integers(0, 9, 60)), rng.permutation(np.repeat(np.arange(20), 3))):
        dense = np.unique(labels, return_inverse=True)[1]
        expected = between_clusters(distances, dense)
        np.testing.assert_allclose(
            growing._between_clusters(points, dense), expected[np.triu_indices_from(expected, 1)]
        )


def test_pairs_of_free_points_are_found_in_the_list_of_all_pairs() -> None:
    gaps, free = np.arange(21.0), np.array([False, True, False, False, False, True, False])
    first, second, chosen = kernels.compiled(kernels.pairs_of_free)(gaps, free, 3.0, 20.0, 17)
    expected = [
        (i, j, gap)
        for i, j, gap in zip(*np.triu_indices(7, k=1), gaps, strict=True)
        if (free[i] or free[j]) and 3.0 <= gap < 20.0
    ]
    assert [*zip(first, second, chosen, strict=True)] == expected


@given(st.sampled_from(KINDS), st.integers(2, 40), st.integers(0, 1000))
def test_the_tree_does_not_depend_on_how_many_pairs_are_put_in_order_together(kind: str, n: int, seed: int) -> None:
    affinity = affinity_of(kind, n, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(growing, "_SORTED", 1)
        one_by_one = flexible_tree(affinity)
    assert np.array_equal(flexible_tree(affinity).labels, one_by_one.labels)


def test_a_point_far_from_all_is_left_to_the_last_pairs() -> None:
    """Its pairs, the only ones that still matter when most points have joined, are visited as among all others."""
    rng = np.random.default_rng(1)
    points = np.concatenate([rng.standard_normal((40, 2)), [[4.0, 4.0]], rng.standard_normal((40, 2)) + 8])
    gaps = np.linalg.norm(points[:, None] - points[None], axis=2)[np.triu_indices(81, k=1)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(growing, "_SORTED", 16)
        some_at_a_time = growing._join(gaps, 1.0)
    assert np.array_equal(growing._join(gaps, 1.0), some_at_a_time)


def test_where_no_pair_is_closer_than_the_median_the_closest_join() -> None:
    gaps = np.array([2.0, 1.0, 2.0, 2.0, 2.0, 2.0])  # 0 and 2 are closest, by less than most pairs tell
    assert growing._join(np.full(6, 2.0), 1.0).tolist() == [0, 0, 0, 0]
    joined = growing._join(gaps, 1.0)
    assert joined[0] == joined[2]
