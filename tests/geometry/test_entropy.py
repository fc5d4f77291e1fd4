"""Entropies against their definitions by brute force."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from oattn_hub.errors import InvalidInput
from oattn_hub.geometry import (
    PartitionTree,
    approximation_errors,
    expansion,
    fill_missing,
    haar_basis,
    haar_functions,
    haar_transform,
    head_entropies,
    network_entropy,
    sparse_approximation,
)
from oattn_hub.geometry.checks import AXES

Tensor = NDArray[np.float64]


def case(seed: int, ndim: int = 3) -> tuple[Tensor, dict[str, PartitionTree]]:
    rng = np.random.default_rng(seed)
    shape = tuple(int(n) for n in rng.integers(2, 9, ndim))
    trees = {}
    for name, n in zip(AXES, shape, strict=False):
        levels = [np.zeros(n, dtype=int)]
        for _ in range(int(rng.integers(0, 4))):
            levels.append(levels[-1] * 3 + rng.integers(0, 3, n))
        trees[name] = PartitionTree(np.stack([*levels, np.arange(n)]))
    return rng.normal(size=shape), trees


def largest(trees: dict[str, PartitionTree], axes: tuple[str, ...], m: int) -> dict[tuple[int, ...], float]:
    """The m tensor functions of largest support; those that tie at the end share the places that are left."""
    supports = [haar_functions(trees[name]).supports for name in axes]
    every = list(product(*[range(len(support)) for support in supports]))
    sizes = {index: int(np.prod([s[i] for s, i in zip(supports, index, strict=True)])) for index in every}
    end = sorted(sizes.values(), reverse=True)[min(m, len(every)) - 1]
    above = sum(size > end for size in sizes.values())
    share = (min(m, len(every)) - above) / sum(size == end for size in sizes.values())
    return {index: 1.0 if size > end else share for index, size in sizes.items() if size >= end}


@given(st.integers(0, 10**6), st.integers(1, 40), st.sampled_from([1.0, 2.0, 0.5]))
def test_head_entropies_are_sums_over_the_largest_supports(seed: int, m: int, p: float) -> None:
    X, trees = case(seed)
    expected = []
    for head in range(X.shape[2]):
        total = 0.0
        for (q, k), weight in largest(trees, ("query", "key"), m).items():
            beta = np.sum(X[:, :, head] * np.outer(haar_basis(trees["query"])[:, q], haar_basis(trees["key"])[:, k]))
            total += weight * np.abs(beta) ** p
        expected.append(total ** (1 / p))
    np.testing.assert_allclose(head_entropies(X, trees, m=m, p=p), expected, atol=1e-10)


@given(st.integers(0, 10**6), st.integers(1, 60))
def test_network_entropy_is_the_sum_over_the_largest_supports(seed: int, m: int) -> None:
    X, trees = case(seed)
    coefficients = haar_transform(X, trees)
    expected = sum(weight * abs(coefficients[index]) for index, weight in largest(trees, AXES, m).items())
    assert network_entropy(X, trees, m=m) == pytest.approx(expected)


def test_all_coefficients_and_none_of_the_constant() -> None:
    X, trees = case(1)
    beta = np.abs(haar_transform(X, {name: trees[name] for name in ("query", "key")}))
    np.testing.assert_allclose(head_entropies(X, trees, m=None), beta.sum(axis=(0, 1)))
    np.testing.assert_allclose(head_entropies(X, trees, m=10**6), beta.sum(axis=(0, 1)))
    without = head_entropies(X, trees, m=None, constant=False)
    np.testing.assert_allclose(without, beta.sum(axis=(0, 1)) - beta[0, 0])
    assert network_entropy(X, trees, m=None) == pytest.approx(np.abs(haar_transform(X, trees)).sum())
    np.testing.assert_allclose(head_entropies(X, trees, m=None, p=2), np.linalg.norm(X, axis=(0, 1)))


def test_leading_functions_are_the_first_of_each_axis() -> None:
    X, trees = case(2)
    trees["query"] = PartitionTree.dyadic(X.shape[0])
    trees["key"] = PartitionTree.dyadic(X.shape[1])
    beta = np.abs(haar_transform(X, {name: trees[name] for name in ("query", "key")}))
    np.testing.assert_allclose(head_entropies(X, trees, m=4, selection="leading"), beta[:2, :2].sum(axis=(0, 1)))
    with pytest.raises(InvalidInput, match=r"m=5 is no square.*m=4"):
        head_entropies(X, trees, m=5, selection="leading")


def test_a_single_head_and_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    X, trees = case(3)
    entropies = head_entropies(X, trees, m=7)
    np.testing.assert_allclose(head_entropies(X[:, :, 1], trees, m=7), entropies[1:2])
    network = network_entropy(X, trees, m=9)
    monkeypatch.setattr("oattn_hub.geometry.entropy._BLOCK", 1)
    np.testing.assert_allclose(head_entropies(X.astype(np.float32), trees, m=7), entropies, rtol=1e-5)
    assert network_entropy(X, trees, m=9) == pytest.approx(network)


def test_expansion_for_plots_falls_in_support() -> None:
    X, trees = case(4)
    found = expansion(X, trees, m=12)
    assert found.functions.shape == (12, 2)
    assert found.coefficients.shape == (12, X.shape[2])
    assert (np.diff(found.supports) <= 0).all()
    assert found.functions[0].tolist() == [0, 0]
    beta = haar_transform(X, {name: trees[name] for name in ("query", "key")})
    np.testing.assert_allclose(found.coefficients, beta[tuple(found.functions.T)])


def test_missing_entries_are_filled_first() -> None:
    X, trees = case(5)
    X[0, 1:] = np.nan
    X.setflags(write=False)
    np.testing.assert_allclose(head_entropies(X, trees), head_entropies(fill_missing(X, trees), trees))
    assert np.isfinite(network_entropy(X, trees))


@given(st.integers(0, 10**6), st.sampled_from([2, 3]))
def test_sparse_approximation_is_the_best_of_its_size(seed: int, ndim: int) -> None:
    X, trees = case(seed, ndim)
    m = 1 + seed % X.size
    approximation, error = sparse_approximation(X, trees, m)
    assert error == pytest.approx(np.linalg.norm(X - approximation) / np.linalg.norm(X), abs=1e-9)
    coefficients = haar_transform(approximation, trees)
    assert np.count_nonzero(np.abs(coefficients) > 1e-10) <= m
    errors = approximation_errors(X, trees, [0, m, X.size])
    np.testing.assert_allclose(errors, [1.0, error, 0.0], atol=1e-7)


def test_wrong_arguments_are_named() -> None:
    X, trees = case(6)
    with pytest.raises(InvalidInput, match="'support', 'leading'"):
        head_entropies(X, trees, selection="best")
    with pytest.raises(InvalidInput, match="no tree for the key axis, only for query"):
        head_entropies(X, {"query": trees["query"]})
    with pytest.raises(InvalidInput, match="axes=\\('key',\\) is not known"):
        expansion(X, trees, ("key",))
    with pytest.raises(InvalidInput, match="m=0"):
        head_entropies(X, trees, m=0)
    with pytest.raises(InvalidInput, match="p=0"):
        network_entropy(X, trees, p=0)
