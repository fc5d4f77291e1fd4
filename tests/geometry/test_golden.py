"""Parity with the authors' code, with the settings that stand for its choices."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import spearmanr

from oattn_hub.geometry import (
    PartitionTree,
    Questionnaire,
    diffusion,
    haar_basis,
    haar_functions,
    haar_transform,
    head_entropies,
    markov_matrix,
)

Array = NDArray[Any]
Golden = Mapping[str, Array]

NAMES = {"row": "query", "col": "key", "chan": "head"}
PUBLISHED: dict[str, Any] = {"coupling": "initial", "median": "published", "zero_is_missing": True}


def check_run(q: Questionnaire, golden: Golden) -> None:
    """Every affinity, distance, eigenvalue and tree that the file has."""
    for name, axis in NAMES.items():
        if f"init_{name}_eigvals" in golden:
            np.testing.assert_allclose(q.initial_.diffusions[axis].values, golden[f"init_{name}_eigvals"], atol=1e-9)
        if f"init_{name}_aff" in golden:
            np.testing.assert_allclose(q.initial_.affinities[axis], golden[f"init_{name}_aff"], atol=1e-9)
        for i, iteration in enumerate(q.history_):
            if f"eigvals_{name}" in golden:
                np.testing.assert_allclose(iteration.diffusions[axis].values, golden[f"eigvals_{name}"][i], atol=1e-9)
            if f"emd_{name}" in golden:
                np.testing.assert_allclose(iteration.distances[axis], golden[f"emd_{name}"][i], atol=1e-9)
                np.testing.assert_allclose(iteration.affinities[axis], golden[f"aff_{name}"][i], atol=1e-9)


def check_trees(q: Questionnaire, golden: Golden, first: Mapping[str, int]) -> None:
    """``first``: number of the tree that the first iteration made, by the golden name of the axis."""
    for name, offset in first.items():
        axis = NAMES[name]
        for i, iteration in enumerate(q.history_):
            assert iteration.trees[axis] == PartitionTree(golden[f"tree_{name}_{i + offset}"]), (axis, i)
        if offset:
            assert q.initial_.trees[axis] == PartitionTree(golden[f"tree_{name}_0"]), axis


@pytest.mark.parametrize("name", ["synthetic_24x20x16.npz", "minilm_48x48x72.npz"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_questionnaire_of_a_tensor(golden: Callable[[str], Golden], name: str, dtype: type) -> None:
    expected = golden(name)
    q = Questionnaire(**PUBLISHED).fit(expected["X"].astype(dtype))
    check_run(q, expected)
    check_trees(q, expected, {"row": 1, "col": 1, "chan": 0})


def test_questionnaire_of_a_matrix_uses_the_latest_trees(golden: Callable[[str], Golden]) -> None:
    expected = golden("matrix_32x28.npz")
    q = Questionnaire(coupling="latest", median="published", zero_is_missing=True).fit(expected["X"])
    check_run(q, expected)
    check_trees(q, expected, {"row": 1, "col": 0})
    coherency = np.abs(haar_transform(expected["X"], q.trees_)).sum()
    assert coherency == pytest.approx(expected["coherency"], rel=0.05)  # but for the order of equal children


@pytest.mark.parametrize("name", ["synthetic_24x20x16.npz", "minilm_48x48x72.npz"])
def test_float32_makes_the_same_trees(golden: Callable[[str], Golden], name: str) -> None:
    expected = golden(name)
    q = Questionnaire(**PUBLISHED, precision="float32").fit(expected["X"])
    check_trees(q, expected, {"row": 1, "col": 1, "chan": 0})


@pytest.mark.parametrize("name", ["synthetic_24x20x16.npz", "minilm_48x48x72.npz"])
def test_entropies_of_our_own_run(golden: Callable[[str], Golden], name: str) -> None:
    expected = golden(name)
    q = Questionnaire(**PUBLISHED).fit(expected["X"])
    for m, key in ((100, "l1_10x10"), (400, "l1_20x20")):
        ours = head_entropies(expected["X"], q.trees_, m=m, selection="leading")
        assert spearmanr(ours, expected[key]).statistic >= 0.99
        np.testing.assert_allclose(ours, expected[key], rtol=0.1)


@pytest.mark.parametrize("name", ["synthetic_24x20x16.npz", "minilm_48x48x72.npz"])
def test_entropies_from_the_authors_bases(golden: Callable[[str], Golden], name: str) -> None:
    """The formula, apart from the trees: bi-Haar coefficients of the first functions, summed in magnitude."""
    expected = golden(name)
    X = expected["X"].astype(np.float64)
    for side, key in ((10, "l1_10x10"), (20, "l1_20x20")):
        queries, keys = expected["haar_Q"][:, :side], expected["haar_K"][:, :side]
        coefficients = np.einsum("qa,qkh,kb->abh", queries, X, keys, optimize=True)
        np.testing.assert_allclose(np.abs(coefficients).sum(axis=(0, 1)), expected[key], atol=1e-9)


@pytest.mark.parametrize(
    ("name", "tree", "haar"),
    [
        ("synthetic_24x20x16.npz", "tree_row_3", "haar_Q"),
        ("synthetic_24x20x16.npz", "tree_col_3", "haar_K"),
        ("synthetic_24x20x16.npz", "tree_chan_2", "haar_H"),
        ("minilm_48x48x72.npz", "tree_row_3", "haar_Q"),
        ("minilm_48x48x72.npz", "tree_col_3", "haar_K"),
        ("matrix_32x28.npz", "tree_row_3", "haar_row"),
        ("matrix_32x28.npz", "tree_col_2", "haar_col"),
    ],
)
def test_haar_functions(golden: Callable[[str], Golden], name: str, tree: str, haar: str) -> None:
    """Equal up to sign where no two children are equally large; elsewhere they span the same space per folder."""
    expected = golden(name)
    ours, functions = haar_basis(partition := PartitionTree(expected[tree])), haar_functions(partition)
    theirs = expected[haar]
    overlaps = np.abs(ours.T @ theirs) > 1 - 1e-9
    for level, folder in {*zip(functions.levels.tolist(), functions.folders.tolist(), strict=True)}:
        mine = (functions.levels == level) & (functions.folders == folder)
        projection = ours[:, mine] @ ours[:, mine].T @ theirs
        np.testing.assert_allclose(np.sum(projection**2), mine.sum(), atol=1e-9)
        inside = np.sum(projection**2, axis=0)
        assert np.count_nonzero(inside > 1 - 1e-9) == mine.sum()  # theirs lie whole in this folder's space
        if level >= 0:
            sizes = partition.sizes[level + 1][partition.parents[level + 1] == folder]
            if len(set(sizes.tolist())) == len(sizes):
                assert overlaps[mine].any(axis=1).all(), (level, folder)


def test_tri_haar_tensor(golden: Callable[[str], Golden]) -> None:
    """Their tensor of all coefficients, from our own run: the same functions in another order."""
    expected = golden("synthetic_24x20x16.npz")
    q = Questionnaire(**PUBLISHED).fit(expected["X"])
    ours = np.abs(haar_transform(expected["X"], q.trees_))
    theirs = np.abs(expected["trihaar"])
    np.testing.assert_allclose(np.sort(ours.ravel()), np.sort(theirs.ravel()), atol=1e-9)


def test_markov_matrix_of_the_heads(golden: Callable[[str], Golden]) -> None:
    expected = golden("synthetic_24x20x16.npz")
    affinity = expected["aff_chan"][-1]
    printed, _ = markov_matrix(affinity, "row")
    eigenvalues = np.sort(np.linalg.eigvals(affinity / affinity.sum(axis=1, keepdims=True)).real)
    np.testing.assert_allclose(np.linalg.eigvalsh(printed), eigenvalues, atol=1e-12)
    np.testing.assert_allclose(diffusion(affinity).values, expected["eigvals_chan"][-1], atol=1e-9)


@pytest.mark.parametrize("settings", [PUBLISHED, {}], ids=["published", "default"])
def test_cut_off_token_joins_last(golden: Callable[[str], Golden], settings: dict[str, Any]) -> None:
    """[CLS] has affinity below 1e-8 to every other key: a component of its own, in every iteration."""
    X = golden("cut_off_token_48x48x12.npz")["X"]
    q = Questionnaire(**settings).fit(X)
    for iteration in q.history_:
        linked = iteration.affinities["key"][0, 1:]
        assert linked.max() < 1e-8
        assert sorted(map(len, iteration.trees["key"].folders(1))) == [1, 47]
        assert [0] in [folder.tolist() for folder in iteration.trees["key"].folders(1)]
        assert np.isfinite(iteration.diffusions["key"].vectors).all()


@pytest.mark.slow
def test_every_tensor_of_the_golden_folder(golden_folder: Path) -> None:
    seen = 0
    for path in sorted(golden_folder.glob("*.npz")):
        with np.load(path, allow_pickle=False) as arrays:
            expected = dict(arrays)
        if expected["X"].ndim != 3:
            continue
        seen += 1
        q = Questionnaire(**PUBLISHED).fit(expected["X"])
        check_run(q, expected)
        if "tree_row_0" not in expected:  # the authors' code never ended on this one
            assert q.n_iter_ == 3
            assert [0] in [folder.tolist() for folder in q.trees_["key"].folders(1)]
            continue
        check_trees(q, expected, {"row": 1, "col": 1, "chan": 0})
        for m, key in ((100, "l1_10x10"), (400, "l1_20x20")):
            entropies = head_entropies(expected["X"], q.trees_, m=m, selection="leading")
            assert spearmanr(entropies, expected[key]).statistic >= 0.99, path.name
        single = Questionnaire(**PUBLISHED, precision="float32").fit(expected["X"])
        check_trees(single, expected, {"row": 1, "col": 1, "chan": 0})
    assert seen


@pytest.mark.slow
def test_matrix_with_the_trees_of_the_iteration_before(golden_folder: Path) -> None:
    with np.load(golden_folder / "quest2d_q3_paraproduct_64x64.npz", allow_pickle=False) as arrays:
        expected = dict(arrays)
    settings = {"coupling": "previous", "alpha": 1.0, "beta": 0.0}
    q = Questionnaire(10, median="published", zero_is_missing=True, **settings).fit(expected["X"])
    check_run(q, expected)
    check_trees(q, expected, {"row": 1, "col": 1})
