"""Haar bases and transforms: orthonormal, invertible, and the classical ones on dyadic trees."""

from __future__ import annotations

import numpy as np
import pytest
import pywt
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from oattn_hub.errors import InvalidInput
from oattn_hub.geometry import (
    PartitionTree,
    fill_missing,
    haar_basis,
    haar_functions,
    haar_transform,
    inverse_haar_transform,
)
from oattn_hub.geometry.checks import AXES


def random_tree(seed: int, n: int) -> PartitionTree:
    rng = np.random.default_rng(seed)
    levels = [np.zeros(n, dtype=int)]
    for _ in range(int(rng.integers(0, 5))):
        levels.append(levels[-1] * 3 + rng.integers(0, 3, n))
    return PartitionTree(np.stack([*levels, np.arange(n)]))


@given(st.integers(0, 10**6), st.integers(1, 20))
def test_basis_is_orthonormal_and_lives_on_folders(seed: int, n: int) -> None:
    tree = random_tree(seed, n)
    basis, functions = haar_basis(tree), haar_functions(tree)
    np.testing.assert_allclose(basis.T @ basis, np.eye(n), atol=1e-12)
    np.testing.assert_allclose(basis[:, 0], 1 / np.sqrt(n))
    assert (functions.supports == np.count_nonzero(np.abs(basis) > 1e-12, axis=0)).all()
    assert functions.levels[0] == -1
    assert (np.diff(functions.levels) >= 0).all()
    for column in range(1, n):
        level, folder = functions.levels[column], functions.folders[column]
        inside = tree.labels[level] == folder
        assert (np.abs(basis[~inside, column]) < 1e-12).all()
        for child in np.unique(tree.labels[level + 1][inside]):  # constant on children
            assert np.ptp(basis[tree.labels[level + 1] == child, column]) < 1e-12


def test_children_are_taken_largest_first() -> None:
    tree = PartitionTree([[0] * 6, [0, 1, 1, 1, 2, 2], [0, 1, 2, 3, 4, 5]])
    first = haar_basis(tree)[:, 1]
    assert (first[[1, 2, 3]] > 0).all()
    assert (first[[0, 4, 5]] < 0).all()
    second = haar_basis(tree)[:, 2]
    assert (second[[4, 5]] > 0).all()
    assert second[0] < 0
    assert (np.abs(second[[1, 2, 3]]) < 1e-15).all()


@given(st.integers(0, 10**6), st.sampled_from([1, 2, 3]))
def test_transform_is_the_basis_and_its_inverse_is_exact(seed: int, ndim: int) -> None:
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.integers(1, 9, ndim))
    X = rng.normal(size=shape)
    trees = {AXES[axis]: random_tree(seed + axis, n) for axis, n in enumerate(shape)}
    coefficients = haar_transform(X, trees)
    expected = X
    for axis, name in enumerate(trees):
        expected = np.moveaxis(np.tensordot(haar_basis(trees[name]), expected, axes=(0, axis)), 0, axis)
    np.testing.assert_allclose(coefficients, expected, atol=1e-12)
    np.testing.assert_allclose(inverse_haar_transform(coefficients, trees), X, atol=1e-12)
    assert np.linalg.norm(coefficients) == pytest.approx(np.linalg.norm(X))


@pytest.mark.parametrize("levels", [1, 2, 3, 4])
def test_bi_haar_on_a_dyadic_tree_is_pywavelets(levels: int) -> None:
    """PyWavelets' full (rectangular) Haar transform: the multi-level transform of the rows, then of the columns."""
    n = 2**levels
    X = np.random.default_rng(levels).normal(size=(n, n))

    def along_first_axis(values: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.concatenate(pywt.wavedec(values, "haar", axis=0))  # constant, then from coarse to fine

    expected = along_first_axis(along_first_axis(X).T).T
    tree = PartitionTree.dyadic(n)
    np.testing.assert_allclose(haar_transform(X, {"query": tree, "key": tree}), expected, atol=1e-12)


def test_trees_by_name_by_place_or_alone() -> None:
    X = np.random.default_rng(0).normal(size=(4, 3, 2))
    query, head = PartitionTree.dyadic(4), PartitionTree.dyadic(2)
    by_name = haar_transform(X, {"query": query, "head": head})
    assert np.array_equal(by_name, haar_transform(X, [query, None, head]))
    assert np.array_equal(haar_transform(X, query), haar_transform(X, [query]))


def test_input_is_left_alone_and_float32_is_welcome() -> None:
    X = np.random.default_rng(1).random((4, 3)).astype(np.float32)
    X.setflags(write=False)
    trees = {"query": PartitionTree.dyadic(4), "key": PartitionTree.dyadic(3)}
    np.testing.assert_allclose(inverse_haar_transform(haar_transform(X, trees), trees), X, atol=1e-7)


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(InvalidInput, match="key axis has 3 points, the array has 4"):
        haar_transform(np.ones((2, 4)), {"key": PartitionTree.dyadic(3)})
    with pytest.raises(InvalidInput, match="no axis 'column'"):
        haar_transform(np.ones((2, 4)), {"column": PartitionTree.dyadic(4)})
    with pytest.raises(InvalidInput, match="0 trees"):
        haar_transform(np.ones((2, 4)), {})
    with pytest.raises(InvalidInput, match="fill_missing"):
        haar_transform([np.nan, 1.0], PartitionTree.dyadic(2))


def test_missing_entries_take_the_mean_of_the_smallest_folder_that_has_one() -> None:
    tree = PartitionTree.dyadic(4)
    X = np.arange(16.0).reshape(4, 4)
    X[0, 1] = np.nan  # its folder pair {0, 1} x {0, 1} still has 0, 4, 5
    X[2:, 2:] = np.nan  # the folder pair is empty: the mean of all that is present
    filled = fill_missing(X, {"query": tree, "key": tree})
    assert filled[0, 1] == 3.0
    np.testing.assert_allclose(filled[2:, 2:], np.nanmean(X))
    assert np.array_equal(filled[~np.isnan(X)], X[~np.isnan(X)])
    detail = haar_transform(filled, {"query": tree, "key": tree})
    assert abs(detail[3, 3]) < 1e-12  # the filled quarter has no detail of its own


def test_filling_in_blocks_keeps_heads_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(2)
    X = rng.normal(size=(5, 6, 4)).astype(np.float32)
    X[rng.random(X.shape) < 0.5] = np.nan
    trees = {"query": random_tree(1, 5), "key": random_tree(2, 6)}
    whole = fill_missing(X, trees)
    monkeypatch.setattr("oattn_hub.geometry.missing._BLOCK", 1)
    assert np.array_equal(fill_missing(X, trees), whole)
    assert whole.dtype == np.float32
    for head in range(4):
        assert np.array_equal(fill_missing(X[:, :, head], trees), whole[:, :, head])
    X[:, :, 2] = np.nan
    with pytest.raises(InvalidInput, match="Head 2 of X has no entry"):
        fill_missing(X, trees)
