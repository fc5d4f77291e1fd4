"""Numbers that do not move: rounding, numbering, threads and matrix kernels decide nothing on real attention."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from oattn_hub.geometry import Questionnaire, binary_tree, flexible_tree, head_entropies, network_entropy

Array = NDArray[Any]
Golden = Mapping[str, Array]

# real attention: keys that are components of their own, causal masks, rows that add up to 1, scores of either sign
TENSORS = [
    "minilm_48x48x72.npz",
    "cut_off_token_48x48x12.npz",
    "minilm_scores_40x40x36.npz",
    "smollm_probs_40x40x30.npz",
    "smollm_scores_40x40x30.npz",
]
KERNELS = ["Prescott", "Nehalem", "Sandybridge", "Haswell", "Zen", "SkylakeX"]
DATA = Path(__file__).parents[1] / "data/geometry"


def entropies(X: Array, **parameters: Any) -> tuple[Array, float]:
    trees = Questionnaire(**parameters).fit(X).trees_
    return head_entropies(X, trees), network_entropy(X, trees)


@pytest.mark.parametrize("tree", ["flexible", "binary"])
@pytest.mark.parametrize("name", TENSORS)
def test_noise_of_rounding_size_moves_nothing(golden: Callable[[str], Golden], name: str, tree: str) -> None:
    X = golden(name)["X"].astype(np.float64)
    heads, network = entropies(X, tree=tree)
    rng = np.random.default_rng(0)
    for scale in (1e-12, 1e-10, 1e-10):
        noisy, noisy_network = entropies(X * (1 + scale * rng.standard_normal(X.shape)), tree=tree)
        np.testing.assert_allclose(noisy, heads, rtol=1e-6)
        assert noisy_network == pytest.approx(network, rel=1e-6)


@pytest.mark.parametrize("tree", ["flexible", "binary"])
@pytest.mark.parametrize("name", TENSORS)
def test_permuting_any_axis_permutes_the_result(golden: Callable[[str], Golden], name: str, tree: str) -> None:
    X = golden(name)["X"]
    heads, network = entropies(X, tree=tree)
    rng = np.random.default_rng(1)
    for _ in range(2):
        orders = [rng.permutation(n) for n in X.shape]
        permuted, permuted_network = entropies(X[np.ix_(*orders)], tree=tree)
        np.testing.assert_allclose(permuted, heads[orders[2]], rtol=1e-6)
        assert permuted_network == pytest.approx(network, rel=1e-6)


@settings(max_examples=30)
@given(
    st.sampled_from(
        ["blocks", "constant", "zero", "identity", "ladder", "duplicates", "checkerboard", "shifts", "one-hot", "gaps"]
    ),
    st.sampled_from(["flexible", "binary"]),
    st.integers(0, 1000),
)
def test_what_is_exactly_equal_is_not_told_apart(kind: str, tree: str, seed: int) -> None:
    """Symmetric tensors are full of ties: numbering decides about none of them."""
    rng = np.random.default_rng(seed)
    X = symmetric_tensor(kind)
    heads, network = entropies(X, tree=tree)
    orders = [rng.permutation(n) for n in X.shape]
    permuted, permuted_network = entropies(X[np.ix_(*orders)] * (1 + 1e-15 * rng.standard_normal(X.shape)), tree=tree)
    np.testing.assert_allclose(permuted, heads[orders[2]], rtol=1e-6, atol=1e-12)
    assert permuted_network == pytest.approx(network, rel=1e-6, abs=1e-12)


def symmetric_tensor(kind: str) -> Array:
    match kind:
        case "constant":
            return np.ones((7, 6, 5))
        case "zero":
            return np.zeros((7, 6, 5))
        case "identity":
            return np.stack([np.eye(8)] * 4, axis=2)
        case "ladder":
            return 2.0 ** -np.abs(np.subtract.outer(np.arange(9), np.arange(9)))[:, :, None] * np.arange(1.0, 4.0)
        case "duplicates":
            return np.repeat(np.repeat(np.random.default_rng(5).random((3, 4, 2)), 3, axis=0), 2, axis=2)
        case "shifts":  # attention by relative position only, without a border: every query is like every other
            waves = np.random.default_rng(5).random((12, 3))
            return waves[np.subtract.outer(np.arange(12), np.arange(12)) % 12]
        case "one-hot":  # hard attention: every row of every head has the same moments
            return np.eye(12)[np.random.default_rng(5).integers(12, size=(14, 6))].transpose(0, 2, 1)
        case "gaps":
            masked = np.round(np.random.default_rng(5).random((8, 8, 3)), 1)
            masked[np.triu_indices(8, 1)] = np.nan
            return masked
        case "checkerboard":
            return np.stack([np.indices((6, 6)).sum(axis=0) % 2.0, np.indices((6, 6)).sum(axis=0) // 2 % 2.0], axis=2)
    return np.kron(np.eye(3)[:, :, None] * [1.0, 2.0], np.ones((3, 3, 2)))


@pytest.mark.parametrize("name", ["cut_off_token_48x48x12.npz", "smollm_probs_40x40x30.npz"])
def test_what_is_zero_but_for_noise_has_no_direction(golden: Callable[[str], Golden], name: str) -> None:
    """Padding: queries and keys without any attention, and noise that is added, not multiplied."""
    X = golden(name)["X"].astype(np.float64)
    X[30:], X[:, 30:], X[::6], X[:, 3::7] = 0.0, 0.0, 0.0, 0.0
    heads, network = entropies(X)
    rng = np.random.default_rng(0)
    for _ in range(2):
        noisy, noisy_network = entropies(X + 1e-10 * np.sqrt(np.mean(X**2)) * rng.standard_normal(X.shape))
        np.testing.assert_allclose(noisy, heads, rtol=1e-6)
        assert noisy_network == pytest.approx(network, rel=1e-6)


@pytest.mark.parametrize("build", [flexible_tree, binary_tree])
def test_components_are_no_accident_of_rounding(build: Callable[[Array], Any]) -> None:
    """Three groups without a link between them, of different inner geometry: noise far above rounding changes none."""
    rng = np.random.default_rng(3)
    group = np.repeat([0, 1, 2], [9, 7, 4])
    points = rng.random((20, 3))
    affinity = np.exp(-np.linalg.norm(points[:, None] - points[None], axis=2)) * (group[:, None] == group[None, :])
    tree = build(affinity)
    for _ in range(5):
        noise = 1e-11 * rng.standard_normal((20, 20))
        assert build(np.abs(affinity + noise + noise.T)) == tree


_TOLD = """
import sys, numpy as np
from oattn_hub.geometry import Questionnaire, head_entropies, network_entropy
for path in sys.argv[1:]:
    X = np.load(path)["X"]
    trees = Questionnaire().fit(X).trees_
    print(*[float(x).hex() for x in [*head_entropies(X, trees), network_entropy(X, trees)]])
"""


def elsewhere(names: list[str], **environment: str) -> list[Array]:
    """The entropies as another process computes them."""
    command = [sys.executable, "-c", _TOLD, *(str(DATA / name) for name in names)]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=True)
    return [np.array([float.fromhex(word) for word in line.split()]) for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    "environment",
    [{"OMP_NUM_THREADS": str(n), "OPENBLAS_NUM_THREADS": str(n)} for n in (1, 2, 4)]
    + [{"OPENBLAS_CORETYPE": kernel} for kernel in KERNELS],
    ids=lambda environment: "-".join(environment.values()),
)
@pytest.mark.slow
def test_threads_and_matrix_kernels_move_nothing(golden: Callable[[str], Golden], environment: dict[str, str]) -> None:
    for name, found in zip(TENSORS, elsewhere(TENSORS, **environment), strict=True):
        heads, network = entropies(golden(name)["X"])
        np.testing.assert_allclose(found, [*heads, network], rtol=1e-6)


def test_another_thread_count_and_another_kernel_in_short(golden: Callable[[str], Golden]) -> None:
    name = "cut_off_token_48x48x12.npz"  # here an early version moved by 4 %
    found = elsewhere([name], OMP_NUM_THREADS="3", OPENBLAS_CORETYPE="Prescott")
    heads, network = entropies(golden(name)["X"])
    np.testing.assert_allclose(found[0], [*heads, network], rtol=1e-6)
