"""The decomposition against the identity behind it, a plain transcription of eq. 12, and known regularity."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from oattn_hub.errors import InvalidInput
from oattn_hub.geometry import Nonlinearity, PartitionTree, Questionnaire, holder_exponent, paraproduct
from oattn_hub.geometry.paraproducts import corollary, telescope

Float = NDArray[np.float64]
NAMES = ["exp", "softmax", "tanh"]
SHAPES = [(64, 64), (197, 197), (33, 100, 3), (1, 7), (5, 1), (1, 1)]


def _block_means(f: Float, query_tree: PartitionTree, key_tree: PartitionTree, j: int, k: int) -> Float:
    """P^j P'^k f, block by block, as eq. 11 is printed."""
    means = np.empty_like(f)
    for queries in query_tree.folders(j):
        for keys in key_tree.folders(k):
            means[np.ix_(queries, keys)] = f[np.ix_(queries, keys)].mean()
    return means


def _as_printed(f: Float, query_tree: PartitionTree, key_tree: PartitionTree) -> tuple[Float, Float]:
    """Both sums of eq. 12 for A = exp, with full-size terms."""
    first, second = np.zeros_like(f), np.zeros_like(f)
    for j in range(query_tree.n_levels - 1):
        for k in range(key_tree.n_levels - 1):
            a, q, c, d = (
                _block_means(f, query_tree, key_tree, *scales)
                for scales in ((j, k), (j + 1, k), (j, k + 1), (j + 1, k + 1))
            )
            first += np.exp(a) * (d - c - q + a)
            second += np.exp(a) * (q - a) * (c - a)
    return first, second


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("shape", SHAPES)
def test_exact_differences_telescope_to_the_function(name: str, shape: tuple[int, ...]) -> None:
    f = np.random.default_rng(1).standard_normal(shape)
    np.testing.assert_allclose(telescope(f, name), paraproduct(f, name).value, atol=1e-12)


@pytest.mark.parametrize("shape", [(16, 16), (13, 9)])
def test_sums_are_those_of_the_printed_formula(shape: tuple[int, int]) -> None:
    f = np.random.default_rng(2).standard_normal(shape)
    first, second = _as_printed(f, PartitionTree.dyadic(shape[0]), PartitionTree.dyadic(shape[1]))
    found = paraproduct(f, "exp", boundary=False)
    np.testing.assert_allclose(found.first, first, atol=1e-12)
    np.testing.assert_allclose(found.second, second, atol=1e-12)
    np.testing.assert_allclose(found.residual, np.exp(f) - first - second, atol=1e-12)


def test_folders_of_any_trees_serve_as_scales() -> None:
    f = np.random.default_rng(3).standard_normal((12, 10))
    trees = Questionnaire(n_iters=1).fit(f).trees_
    first, second = _as_printed(f, trees["query"], trees["key"])
    found = paraproduct(f, "exp", trees=[trees["query"], trees["key"]])
    np.testing.assert_allclose(found.first + found.second, first + second, atol=1e-12)


def test_all_heads_at_once_are_each_head_alone() -> None:
    f = np.random.default_rng(4).standard_normal((20, 30, 37))
    together = paraproduct(f, "softmax")
    for head in (0, 17, 36):
        alone = paraproduct(f[:, :, head], "softmax")
        np.testing.assert_allclose(together.residual[:, :, head], alone.residual, atol=1e-15)
        np.testing.assert_allclose(together.second_sizes[:, :, head], alone.second_sizes, atol=1e-15)


def test_terms_per_scale_add_up() -> None:
    f = np.random.default_rng(5).standard_normal((11, 8))
    found = paraproduct(f, "tanh")
    scales = [(j, k) for j in range(found.first_sizes.shape[0]) for k in range(found.first_sizes.shape[1])]
    terms = [found.terms_at(j, k) for j, k in scales]
    np.testing.assert_allclose(sum(first for first, _ in terms), found.first, atol=1e-13)
    np.testing.assert_allclose(sum(second for _, second in terms), found.second, atol=1e-13)
    for (j, k), (first, second) in zip(scales, terms, strict=True):
        assert found.first_sizes[j, k] == pytest.approx(np.sqrt((first**2).mean()))
        assert found.second_sizes[j, k] == pytest.approx(np.sqrt((second**2).mean()))
    with pytest.raises(InvalidInput, match=r"no terms at scales \(4, 0\). They go from \(0, 0\) to \(3, 2\)"):
        found.terms_at(4, 0)


def test_a_quadratic_is_missed_only_by_its_third_order() -> None:
    # for a bilinear f = x y' and A = identity there is nothing beyond the first order: the residual vanishes
    identity = Nonlinearity("identity", lambda x: x, np.ones_like, np.zeros_like)
    f = np.random.default_rng(6).standard_normal((9, 14))
    np.testing.assert_allclose(paraproduct(f, identity).residual, 0.0, atol=1e-13)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("alpha", [0.2, 0.35, 0.45])
def test_boundary_terms_make_the_residual_smaller(
    alpha: float, name: str, random_mixed_holder: Callable[..., Float]
) -> None:
    for size in (0.3, 1.0, 2.0):
        f = random_mixed_holder(alpha, 6, seed=0, size=size)
        assert paraproduct(f, name).relative_residual < paraproduct(f, name, boundary=False).relative_residual


@pytest.mark.parametrize("boundary", [True, False])
@pytest.mark.parametrize("alpha", [0.2, 0.35, 0.45])
def test_the_residual_is_about_twice_as_regular(
    alpha: float, boundary: bool, random_mixed_holder: Callable[..., Float]
) -> None:
    f = random_mixed_holder(alpha, 8, seed=0)
    residual = paraproduct(f, "exp", boundary=boundary).residual
    assert 1.7 * alpha < holder_exponent(residual).alpha < 2.8 * alpha


def test_a_smooth_function_is_nearly_exact() -> None:
    x = np.linspace(0, 1, 128)
    f = np.sin(3 * x)[:, None] * np.cos(2 * x)[None, :]
    assert paraproduct(f, "exp").relative_residual < 0.05


def test_corollary_is_the_formula_with_unit_derivatives() -> None:
    f = np.random.default_rng(7).standard_normal((16, 16))
    # eq. 12 of (e^(s x) - 1) / s: its derivatives tend to 1 (and the second to s) for small s; compare the first order
    centred = f - f.mean(axis=0) - f.mean(axis=1, keepdims=True) + f.mean()
    second = corollary(f) - centred  # first-order terms with A' = 1 telescope to the doubly centred f
    doubled = corollary(2 * f) - 2 * centred
    np.testing.assert_allclose(doubled, 4 * second, atol=1e-12)
    assert np.abs(second).max() > 0.1


def test_published_input_is_matched_by_its_softmax_and_not_by_the_published_sum() -> None:
    golden = np.load(Path(__file__).parents[1] / "data/theory/published_2d_64x64.npz")
    f = golden["organized"].astype(np.float64)
    found = paraproduct(f, "softmax")
    np.testing.assert_allclose(found.value, golden["softmax"], atol=1e-15)
    # MATH: relative error of exp with and without boundary terms on this matrix
    assert paraproduct(f, "exp").relative_residual == pytest.approx(0.475, abs=1e-3)
    assert paraproduct(f, "exp", boundary=False).relative_residual == pytest.approx(0.789, abs=1e-3)
    published_miss = np.linalg.norm(golden["softmax"] - golden["published_total"]) / np.linalg.norm(golden["softmax"])
    assert published_miss > 1000 * found.relative_residual


@pytest.mark.parametrize(
    ("f", "message"),
    [
        (np.zeros(4), r"f has shape \(4,\)"),
        (np.full((3, 3), np.nan), "9 missing entries.*scores before the mask"),
        (np.full((3, 3), 1000.0), "exp is not finite on this f, whose entries run from 1000 to 1000"),
        (np.zeros((0, 3)), "query axis of f is empty"),
    ],
)
def test_bad_input_is_named(f: Float, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        paraproduct(f, "exp")


def test_trees_of_another_size_are_refused() -> None:
    with pytest.raises(InvalidInput, match="trees have 4 and 5 points, f has 4 queries and 4 keys"):
        paraproduct(np.zeros((4, 4)), trees=[PartitionTree.dyadic(4), PartitionTree.dyadic(5)])
