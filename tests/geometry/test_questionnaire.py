"""The questionnaire: finds hidden structure, ends on anything, tells where it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from oattn_hub.errors import InvalidInput, NotFitted
from oattn_hub.geometry import PartitionTree, Questionnaire, cosine_affinity, head_entropies, network_entropy
from oattn_hub.geometry.checks import AXES

Array = NDArray[Any]
Planted = Callable[..., tuple[Array, list[Array]]]


def finds(tree: PartitionTree, blocks: Array) -> bool:
    """Whether every planted block is a folder on some level."""
    folders = {tuple(folder.tolist()) for level in range(tree.n_levels) for folder in tree.folders(level)}
    return all(tuple(np.flatnonzero(blocks == block).tolist()) in folders for block in np.unique(blocks))


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kind", ["flexible", "binary"])
def test_planted_blocks_are_found_again(planted: Planted, seed: int, kind: str) -> None:
    X, truth = planted(seed, blocks=(2, 4, 2), size=4) if kind == "binary" else planted(seed)
    q = Questionnaire(tree=kind).fit(X)
    for axis, blocks in zip(AXES, truth, strict=True):
        assert finds(q.trees_[axis], blocks), axis


@pytest.mark.parametrize("coupling", ["latest", "initial", "previous"])
def test_planted_blocks_of_a_matrix(planted: Planted, coupling: str) -> None:
    X, truth = planted(3, blocks=(3, 4), size=6)
    q = Questionnaire(coupling=coupling).fit(X)
    assert set(q.trees_) == {"query", "key"}
    for axis, blocks in zip(AXES, truth, strict=False):
        assert finds(q.trees_[axis], blocks), axis


@settings(max_examples=10)
@given(st.integers(0, 1000))
def test_permuting_heads_permutes_the_result(seed: int) -> None:
    rng = np.random.default_rng(seed)
    X = rng.random((9, 8, 10))
    order = rng.permutation(10)
    q, again = Questionnaire().fit(X), Questionnaire().fit(X[:, :, order])
    assert again.trees_["query"] == q.trees_["query"]
    assert again.trees_["key"] == q.trees_["key"]
    assert again.trees_["head"] == q.trees_["head"].permuted(order)
    entropies = head_entropies(X, q.trees_, m=30)
    np.testing.assert_allclose(head_entropies(X[:, :, order], again.trees_, m=30), entropies[order], atol=1e-9)
    expected = network_entropy(X, q.trees_, m=30)
    assert network_entropy(X[:, :, order], again.trees_, m=30) == pytest.approx(expected, abs=1e-9)


DEGENERATE = {
    "constant": np.ones((6, 5, 4)),
    "zero": np.zeros((6, 5, 4)),
    "equal heads": np.repeat(np.random.default_rng(0).random((6, 5, 1)), 4, axis=2),
    "duplicated queries": np.repeat(np.random.default_rng(1).random((3, 5, 4)), 2, axis=0),
    "zero key": np.random.default_rng(2).random((6, 5, 4)) * (np.arange(5) != 2)[None, :, None],
    "identity heads": np.stack([np.eye(6)] * 3, axis=2),
    "one of each": np.ones((1, 1, 1)),
    "two of each": np.random.default_rng(3).random((2, 2, 2)),
    "three of each": np.random.default_rng(4).random((3, 3, 3)),
    "one head": np.random.default_rng(5).random((7, 6, 1)),
    "huge": np.random.default_rng(6).random((6, 5, 4)) * 1e30,
    "tiny": np.random.default_rng(7).random((6, 5, 4)) * 1e-30,
    "one spike": np.eye(1, 120, 50).reshape(6, 5, 4) * 1e12,
    "negative": -np.random.default_rng(8).random((6, 5, 4)),
    "matrix": np.zeros((3, 2)),
}


@pytest.mark.parametrize("name", DEGENERATE)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"coupling": "initial", "median": "published", "zero_is_missing": True},
        {"tree": "binary"},
        {"initial": "gaussian"},
    ],
    ids=["default", "published", "binary", "gaussian"],
)
def test_ends_on_any_input_and_twice_the_same(name: str, settings: dict[str, Any]) -> None:
    X = DEGENERATE[name]
    q, again = Questionnaire(**settings).fit(X), Questionnaire(**settings).fit(X)
    for axis, n in zip(AXES, X.shape, strict=False):
        assert q.trees_[axis].n == n
        assert np.isfinite(q.affinities_[axis]).all()
        assert np.array_equal(q.trees_[axis].labels, again.trees_[axis].labels)
    assert np.isfinite(head_entropies(X, q.trees_)).all()


def test_causal_logits_with_missing_entries() -> None:
    rng = np.random.default_rng(9)
    X = rng.normal(size=(20, 20, 6)).astype(np.float32)
    X[:, :, 3:] += 3.0  # two kinds of heads
    X[np.triu_indices(20, k=1)] = np.nan
    X.setflags(write=False)
    q = Questionnaire().fit(X)
    assert finds(q.trees_["head"], np.array([0, 0, 0, 1, 1, 1]))
    assert all(np.isfinite(q.affinities_[axis]).all() for axis in AXES)
    assert np.isfinite(head_entropies(X, q.trees_)).all()
    entirely = np.array(X)
    entirely[5] = np.nan  # a query of which nothing is known is a component of its own
    lonely = Questionnaire().fit(entirely)
    assert [5] in [folder.tolist() for folder in lonely.trees_["query"].folders(1)]


def test_zero_is_missing_only_where_asked() -> None:
    X = np.random.default_rng(10).random((8, 7, 6))
    X[X < 0.4] = 0.0
    q = Questionnaire(zero_is_missing=True).fit(X)
    np.testing.assert_allclose(q.initial_.affinities["query"], cosine_affinity(X, "query", zero_is_missing=True))
    assert not np.allclose(q.initial_.affinities["query"], Questionnaire().fit(X).initial_.affinities["query"])


def test_couplings_differ_in_what_they_say() -> None:
    X = np.random.default_rng(11).random((14, 13, 12))
    initial = Questionnaire(coupling="initial").fit(X)
    assert len({iteration.trees["head"] for iteration in initial.history_}) == 1
    latest = Questionnaire(coupling="latest").fit(X)
    assert latest.history_[0].trees == initial.history_[0].trees  # the first pass is the same
    assert latest.history_[-1].trees["head"] != initial.history_[-1].trees["head"]
    previous = Questionnaire(coupling="previous").fit(X)
    assert previous.history_[0].trees["query"] == latest.history_[0].trees["query"]
    assert previous.history_[0].trees["key"] != latest.history_[0].trees["key"]


def test_attributes_after_fit() -> None:
    X = np.random.default_rng(12).random((6, 5, 4))
    q = Questionnaire(n_iters=2)
    assert q.fit(X) is q
    assert q.n_iter_ == len(q.history_) == 2
    assert list(q.trees_) == list(q.affinities_) == list(AXES)
    assert q.trees_["head"] is q.history_[-1].trees["head"]
    assert set(q.initial_.trees) == {"query", "key"}
    assert q.convergence_["query"].shape == (2,)
    assert np.isnan(q.convergence_["head"][0])
    change = np.abs(q.history_[1].trees["key"].distances - q.history_[0].trees["key"].distances).mean()
    assert q.convergence_["key"][1] == pytest.approx(change)
    with pytest.raises(TypeError):
        q.trees_["head"] = PartitionTree.dyadic(4)  # type: ignore[index]


def test_progress_counts_the_trees() -> None:
    reported: list[tuple[str, int, int]] = []
    X = np.random.default_rng(13).random((5, 4, 3))
    Questionnaire(n_iters=2).fit(X, progress=lambda stage, done, total: reported.append((stage, done, total)))
    assert reported == [("questionnaire", done, 8) for done in range(1, 9)]


def test_parameters_are_kept_as_given() -> None:
    q = Questionnaire(coupling="nonsense")
    assert q.get_params()["coupling"] == "nonsense"
    assert "coupling='nonsense'" in repr(q)
    with pytest.raises(InvalidInput, match=r"coupling='nonsense'.*'latest', 'initial', 'previous'"):
        q.fit(np.ones((2, 2)))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"n_iters": 0}, "n_iters=0"),
        ({"median": "mean"}, "'off_diagonal', 'published'"),
        ({"tree": "oak"}, "'flexible', 'binary'"),
        ({"initial": "random"}, "'cosine', 'gaussian'"),
        ({"normalisation": "none"}, "'density', 'row'"),
        ({"precision": "half"}, "'auto', 'float32', 'float64'"),
        ({"alpha": -1}, "alpha=-1"),
        ({"beta": "1"}, "beta='1'"),
        ({"constant": 0}, "constant=0"),
        ({"n_eigenvectors": 1}, "n_eigenvectors=1"),
    ],
)
def test_wrong_parameters_are_named(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        Questionnaire(**settings).fit(np.ones((2, 2)))


def test_results_before_fit() -> None:
    with pytest.raises(NotFitted, match=r"no trees_ yet. Call fit"):
        _ = Questionnaire().trees_
    with pytest.raises(AttributeError, match="leaves_"):
        _ = Questionnaire().leaves_  # type: ignore[attr-defined]


def test_input_is_left_alone() -> None:
    X = np.random.default_rng(14).random((5, 4, 3))
    X.setflags(write=False)
    Questionnaire(zero_is_missing=True).fit(X)
