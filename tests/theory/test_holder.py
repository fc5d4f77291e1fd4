"""Exponents that are known must be found, by both estimates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import numpy as np
import pytest
from numpy.typing import NDArray

from oattn_hub.errors import InvalidInput
from oattn_hub.geometry import PartitionTree, holder_exponent

Float = NDArray[np.float64]
Method = Literal["coefficients", "differences"]
METHODS: list[Method] = ["coefficients", "differences"]
ALPHAS = [0.2, 0.35, 0.45]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("alpha", ALPHAS)
def test_random_mixed_series(alpha: float, method: Method, random_mixed_holder: Callable[..., Float]) -> None:
    fit = holder_exponent(random_mixed_holder(alpha, 7, seed=3), method=method)
    assert fit.alpha == pytest.approx(alpha, abs=0.05)
    assert fit.low <= fit.alpha <= fit.high
    for direction in fit.directions:
        assert direction.alpha == pytest.approx(alpha, abs=0.1)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("alpha", ALPHAS)
def test_random_series(alpha: float, method: Method, random_holder: Callable[..., Float]) -> None:
    estimates = [holder_exponent(random_holder(alpha, 9, seed), method=method).alpha for seed in range(5)]
    np.testing.assert_allclose(estimates, alpha, atol=0.05)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("alpha", ALPHAS)
def test_weierstrass(alpha: float, method: Method, weierstrass: Callable[..., Float]) -> None:
    assert holder_exponent(weierstrass(alpha, 1024), method=method).alpha == pytest.approx(alpha, abs=0.05)


def test_noise_is_not_holder() -> None:
    noise = np.random.default_rng(0).standard_normal((128, 128))
    for method in METHODS:
        assert holder_exponent(noise, method=method).high < 0


@pytest.mark.parametrize("method", METHODS)
def test_the_order_of_points_does_not_matter_when_the_tree_goes_along(
    method: Method, random_mixed_holder: Callable[..., Float]
) -> None:
    f = random_mixed_holder(0.35, 6, seed=1)
    shuffle = np.random.default_rng(2).permutation(64)
    tree = PartitionTree.dyadic(64)
    fit = holder_exponent(f[shuffle], tree.permuted(shuffle), tree, method=method)
    assert fit.alpha == pytest.approx(holder_exponent(f, method=method).alpha, abs=1e-9)
    assert holder_exponent(f[shuffle], method=method).alpha < fit.alpha - 0.2


def test_the_constant_is_the_worst_quotient(random_mixed_holder: Callable[..., Float]) -> None:
    f = random_mixed_holder(0.3, 3, seed=5)
    fit = holder_exponent(f, method="differences")
    distance = PartitionTree.dyadic(8).distances
    worst = max(
        abs(f[x, u] - f[y, u] - f[x, v] + f[y, v]) / (distance[x, y] * distance[u, v]) ** fit.alpha
        for x in range(8)
        for y in range(x)
        for u in range(8)
        for v in range(u)
    )
    assert fit.constant == pytest.approx(worst)
    one = holder_exponent(f[0], method="differences")
    quotients = np.abs(f[0][:, None] - f[0])[distance > 0] / distance[distance > 0] ** one.alpha
    assert one.constant == pytest.approx(quotients.max())


def test_the_constant_bounds_every_step(random_holder: Callable[..., Float]) -> None:
    fit = holder_exponent(random_holder(0.35, 8, seed=0))
    assert (fit.magnitudes <= fit.constant * fit.shares**fit.alpha * (1 + 1e-12)).all()


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    "f", [np.ones(16), np.ones((8, 5)), np.zeros((1, 1)), np.ones((1, 6))], ids=lambda f: str(f.shape)
)
def test_constants_have_no_exponent(f: Float, method: Method) -> None:
    fit = holder_exponent(f, method=method)
    assert np.isnan(fit.alpha)
    assert fit.constant == 0


@pytest.mark.parametrize("method", METHODS)
def test_rounding_is_not_taken_for_roughness(method: Method, weierstrass: Callable[..., Float]) -> None:
    profile = weierstrass(0.35, 64)
    assert np.isnan(holder_exponent(np.full(100, 0.1), method=method).alpha)
    fit = holder_exponent(np.add.outer(profile, 0.1 * profile), method=method)
    assert np.isnan(fit.alpha)  # a sum of profiles has no mixed differences at all
    assert all(direction.alpha > 0.2 for direction in fit.directions)


def test_any_length(weierstrass: Callable[..., Float]) -> None:
    assert holder_exponent(weierstrass(0.35, 1500)).alpha == pytest.approx(0.35, abs=0.05)


@pytest.mark.parametrize(
    ("f", "trees", "message"),
    [
        (np.ones((4, 4)), [4], r"f has shape \(4, 4\), the trees have 4 points. Give one tree for each axis"),
        (np.ones(5), [4], "the trees have 4 points"),
        (np.ones((2, 2, 2)), [], r"f has shape \(2, 2, 2\)"),
        (np.array([1.0, np.nan]), [], "finite numbers"),
    ],
)
def test_bad_input_is_named(f: Float, trees: list[int], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        holder_exponent(f, *(PartitionTree.dyadic(n) for n in trees))


def test_unknown_method_is_refused() -> None:
    with pytest.raises(InvalidInput, match="method='max' is not known"):
        holder_exponent(np.ones(4), method="max")  # type: ignore[arg-type]
