"""The tree EMD by torch gives the numbers of the compiled one; tested on the processor, which torch has everywhere."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

import oattn_hub as oh
from oattn_hub.errors import InvalidInput
from oattn_hub.geometry import PartitionTree, Questionnaire, tree_emd
from oattn_hub.geometry.checks import AXES


def attention(shape: tuple[int, int, int], seed: int = 0) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    weights = np.exp(2 * rng.standard_normal(shape) + rng.standard_normal(shape[2]))
    return np.asarray(weights / weights.sum(axis=1, keepdims=True))


def trees(shape: tuple[int, int, int]) -> dict[str, PartitionTree]:
    return {name: PartitionTree.dyadic(n) for name, n in zip(AXES, shape, strict=True)}


@pytest.mark.parametrize("axis", AXES)
@pytest.mark.parametrize("weights", [(0.0, 1.0), (1.0, 0.0)])
@pytest.mark.parametrize(("precision", "error"), [("float64", 1e-12), ("float32", 1e-5)])
def test_numbers_are_those_of_the_compiled_loops(
    axis: str, weights: tuple[float, float], precision: str, error: float
) -> None:
    X = attention((13, 11, 17))
    alpha, beta = weights
    expected = tree_emd(X, trees(X.shape), axis, alpha=alpha, beta=beta, precision="float64")
    found = tree_emd(X, trees(X.shape), axis, alpha=alpha, beta=beta, precision=precision, device="cpu")
    np.testing.assert_allclose(found, expected, rtol=error, atol=0)
    assert (found == found.T).all()


@pytest.mark.parametrize("size", [1e-45, 1e45])
def test_float32_has_the_range_of_the_tensor(size: float) -> None:
    X = attention((6, 5, 4))
    expected = tree_emd(X, trees(X.shape), "head") * size
    found = tree_emd(X * size, trees(X.shape), "head", precision="float32", device="cpu")
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_more_coordinates_than_are_made_together(monkeypatch: pytest.MonkeyPatch) -> None:
    X = attention((9, 8, 7))
    expected = tree_emd(X, trees(X.shape), "query", device="cpu")
    monkeypatch.setattr("oattn_hub.geometry.on_device._NUMBERS", 1)
    np.testing.assert_allclose(tree_emd(X, trees(X.shape), "query", device="cpu"), expected, rtol=1e-12)


def test_the_tensor_is_left_alone() -> None:
    X = attention((4, 5, 6))
    X.setflags(write=False)
    tree_emd(X, trees(X.shape), "query", device="cpu")


def test_missing_entries_are_compared_by_the_compiled_loops() -> None:
    X = attention((6, 6, 5))
    X[np.triu_indices(6, k=1)] = np.nan
    found = tree_emd(X, trees(X.shape), "head", device="cpu")
    np.testing.assert_array_equal(found, tree_emd(X, trees(X.shape), "head"))


def test_a_whole_analysis_gives_the_same_trees_and_entropies(monkeypatch: pytest.MonkeyPatch) -> None:
    X = attention((20, 20, 12))
    expected, found = Questionnaire().fit(X), Questionnaire().fit(X, device="cpu")
    assert all(found.trees_[axis] == expected.trees_[axis] for axis in AXES)
    used: list[str] = []
    ours = oh.geometry.on_device.device_distances
    monkeypatch.setattr(
        "oattn_hub.geometry.emd.device_distances", lambda *given: used.append(given[-1]) or ours(*given)
    )
    Questionnaire(n_iters=1).fit(X, device="cpu")
    assert used == ["cpu"] * 3


def test_a_device_that_is_not_there_is_named() -> None:
    X = attention((4, 4, 4))
    with pytest.raises(InvalidInput, match="device='nowhere'"):
        tree_emd(X, trees(X.shape), "head", device="nowhere")
