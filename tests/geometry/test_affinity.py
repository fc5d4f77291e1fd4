"""Affinities and the Markov operator."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.spatial.distance import pdist, squareform

from oattn_hub.errors import InvalidInput
from oattn_hub.geometry import (
    cosine_affinity,
    diffusion,
    diffusion_distance,
    diffusion_map,
    distance_affinity,
    gaussian_affinity,
    markov,
    markov_matrix,
)


@given(st.integers(0, 10**6), st.sampled_from([0, 1, 2]), st.booleans())
def test_cosine_runs_over_the_entries_present_in_both(seed: int, axis: int, zero_is_missing: bool) -> None:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(5, 4, 3))
    X[rng.random(X.shape) < 0.2] = np.nan
    X[rng.random(X.shape) < 0.2] = 0.0
    slices = np.moveaxis(X, axis, 0).reshape(X.shape[axis], -1)
    expected = np.eye(len(slices))
    for i in range(len(slices)):
        for j in range(len(slices)):
            both = ~np.isnan(slices[i]) & ~np.isnan(slices[j])
            if zero_is_missing:
                both &= (slices[i] != 0) & (slices[j] != 0)
            a, b = slices[i][both], slices[j][both]
            if i != j and np.linalg.norm(a) * np.linalg.norm(b) > 0:
                expected[i, j] = max(0.0, a @ b / np.linalg.norm(a) / np.linalg.norm(b))
    np.testing.assert_allclose(cosine_affinity(X, axis, zero_is_missing=zero_is_missing), expected, atol=1e-12)


def test_cosine_in_blocks_is_cosine_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    X = np.random.default_rng(0).normal(size=(7, 6, 5))
    X[0, 1, 2] = np.nan
    whole = [cosine_affinity(X, axis) for axis in range(3)]
    gauss = [gaussian_affinity(X, axis) for axis in range(3)]
    monkeypatch.setattr("oattn_hub.geometry.affinity._BLOCK", 1)
    for axis in range(3):
        np.testing.assert_allclose(cosine_affinity(X, axis), whole[axis], atol=1e-14)
        np.testing.assert_allclose(gaussian_affinity(X, axis), gauss[axis], atol=1e-14)


def test_gaussian_affinity() -> None:
    X = np.random.default_rng(1).normal(size=(6, 4))
    d = squareform(pdist(X))
    scale = np.median(pdist(X))
    np.testing.assert_allclose(gaussian_affinity(X), np.exp(-((d / scale) ** 2)), atol=1e-12)
    X[0] = np.nan
    assert (gaussian_affinity(X)[0, 1:] == 0).all()


def test_distance_affinity_of_the_whole_median() -> None:
    d = np.array([[0.0, 1.0, np.inf], [1.0, 0.0, np.inf], [np.inf, np.inf, 0.0]])
    np.testing.assert_allclose(distance_affinity(d, median="off_diagonal")[0], [1.0, np.exp(-1.0), 0.0])
    assert distance_affinity(np.zeros((2, 2))).tolist() == [[1.0, 1.0], [1.0, 1.0]]


@pytest.mark.parametrize("normalisation", ["density", "row"])
def test_top_eigenvector_is_the_known_one(normalisation: str) -> None:
    G = cosine_affinity(np.random.default_rng(2).random((9, 5)))
    matrix, top = markov_matrix(G, normalisation)
    np.testing.assert_allclose(matrix @ top, top, atol=1e-12)
    result = diffusion(G, 9, normalisation)
    np.testing.assert_allclose(np.sort(result.values), np.sort(np.abs(np.linalg.eigvalsh(matrix))), atol=1e-12)
    random_walk = matrix * (top[None, :] / top[:, None])  # D^-1 G: rows sum to 1
    np.testing.assert_allclose(random_walk.sum(axis=1), 1.0, atol=1e-12)
    np.testing.assert_allclose(random_walk @ result.vectors[:, 1], result.values[1] * result.vectors[:, 1], atol=1e-10)
    assert (result.vectors[:, 0] == 1.0).all()


def test_diffusion_distance_is_the_distance_of_the_walks() -> None:
    """By definition: sum over z of (p_t(x, z) - p_t(y, z))^2 / stationary(z)."""
    G = cosine_affinity(np.random.default_rng(3).random((7, 4)))
    matrix, top = markov_matrix(G)
    walk = np.linalg.matrix_power(matrix * (top[None, :] / top[:, None]), 3)
    expected = squareform(pdist(walk / top[None, :]))
    np.testing.assert_allclose(diffusion_distance(G, t=3, n_eigenvectors=7), expected, atol=1e-10)


def test_components_are_constant_vectors_not_an_accident() -> None:
    G = np.zeros((6, 6))
    G[:3, :3] = G[3:5, 3:5] = 1.0  # and point 5 has no link at all, not even to itself
    result = diffusion(G, 4)
    np.testing.assert_allclose(result.values, [1.0, 1.0, 1.0, 0.0], atol=1e-12)
    for vector in result.vectors[:, :3].T:
        assert np.ptp(vector[:3]) < 1e-9
        assert np.ptp(vector[3:5]) < 1e-9
    d = result.distances()
    assert d[0, 1] < 1e-9
    assert d[0, 3] > 0.1
    assert d[0, 5] > 0.1


def test_diffusion_map_leaves_the_trivial_eigenvector_out() -> None:
    G = cosine_affinity(np.random.default_rng(4).random((8, 5)))
    coordinates = diffusion_map(G, n_components=2, t=2)
    result = diffusion(G)
    np.testing.assert_allclose(coordinates, (result.vectors * result.values**2)[:, 1:3])
    assert np.ptp(coordinates, axis=0).min() > 0
    assert np.array_equal(coordinates, diffusion_map(G, n_components=2, t=2))


def test_lanczos_and_dense_eigenvectors_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    G = cosine_affinity(np.random.default_rng(5).random((60, 9)))
    dense = diffusion(G, 5)
    monkeypatch.setattr("oattn_hub.geometry.markov._DENSE_UP_TO", 10)
    lanczos = diffusion(G, 5)
    np.testing.assert_allclose(lanczos.values, dense.values, atol=1e-9)
    np.testing.assert_allclose(lanczos.vectors, dense.vectors, atol=1e-6)


@pytest.mark.parametrize(
    ("spectrum", "expected"),
    [
        ((0.9, 0.8, 0.7, 0.6, 0.5), [0.9, 0.8, 0.7]),
        ((0.9, 0.8, -0.75, 0.7, 0.5), [0.9, 0.8, 0.75]),  # one below zero is among the largest
        ((-0.95, 0.9, 0.8, 0.7, 0.5), [0.95, 0.9, 0.8]),
        ((0.9, 0.8, 0.7, 0.7, 0.5), [0.9, 0.8, 0.7, 0.7]),  # the cut lies between two that are equal
        ((0.9, 0.8, 0.7, -0.7, 0.5), [0.9, 0.8, 0.7, 0.7]),
        ((0.9, 0.0, 0.0, 0.0, 0.0), [0.9, 0.0, 0.0]),
    ],
)
def test_eigenpairs_of_largest_magnitude(spectrum: tuple[float, ...], expected: list[float]) -> None:
    basis = np.linalg.qr(np.random.default_rng(7).standard_normal((40, 40)))[0]
    matrix = (basis[:, :5] * spectrum) @ basis[:, :5].T
    matrix = (matrix + matrix.T) / 2
    values, vectors = markov._largest(matrix.copy(), 3)
    np.testing.assert_allclose(np.abs(values), expected, atol=1e-12)
    np.testing.assert_allclose(matrix @ vectors, vectors * values, atol=1e-12)
    np.testing.assert_allclose(vectors.T @ vectors, np.eye(len(values)), atol=1e-12)


def test_few_eigenpairs_are_those_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    G = distance_affinity(squareform(pdist(np.random.default_rng(8).random((64, 3)), "cityblock")))
    few = diffusion(G, 12)
    used = markov._upper(markov_matrix(G)[0], 12)
    assert used is not None
    monkeypatch.setattr(markov, "_upper", lambda *_: None)
    every = diffusion(G, 12)
    np.testing.assert_allclose(few.values, every.values, atol=1e-13)
    np.testing.assert_allclose(few.vectors, every.vectors, atol=1e-10)


def test_input_is_left_alone() -> None:
    X = np.random.default_rng(6).random((4, 3, 2)).astype(np.float32)
    X[0, 0, 0] = np.nan
    X.setflags(write=False)
    cosine_affinity(X, "head", zero_is_missing=True)
    gaussian_affinity(X, "key")
    G = np.eye(3)
    G.setflags(write=False)
    diffusion(G)


def test_wrong_arguments_are_named() -> None:
    X = np.ones((3, 3, 3))
    with pytest.raises(InvalidInput, match=r"'row'.*query, key, head"):
        cosine_affinity(X, "row")
    with pytest.raises(InvalidInput, match="no axis 3"):
        cosine_affinity(X, 3)
    with pytest.raises(InvalidInput, match="shape \\(3,\\)"):
        cosine_affinity(np.ones(3))
    with pytest.raises(InvalidInput, match="key axis of X is empty"):
        cosine_affinity(np.ones((3, 0)))
    with pytest.raises(InvalidInput, match="infinite at \\(0, 1\\)"):
        cosine_affinity([[0.0, np.inf]])
    with pytest.raises(InvalidInput, match="dtype"):
        cosine_affinity([["a"]])
    with pytest.raises(InvalidInput, match="'density', 'row'"):
        markov_matrix(np.eye(2), "col")
    with pytest.raises(InvalidInput, match="negative entry -1"):
        markov_matrix(-np.ones((2, 2)))
    with pytest.raises(InvalidInput, match="not symmetric"):
        diffusion([[1.0, 0.0], [1.0, 1.0]])
    with pytest.raises(InvalidInput, match="square"):
        diffusion(np.ones((2, 3)))
    with pytest.raises(InvalidInput, match="n_components=3 is too many"):
        diffusion_map(np.eye(3), n_components=3)
