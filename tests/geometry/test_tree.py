"""Partition trees: what they refuse, what they keep, and how they travel."""

from __future__ import annotations

import json
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oattn_hub.errors import FormatError, InvalidInput
from oattn_hub.files import read_tensors, write_tensors
from oattn_hub.geometry import PartitionTree


@st.composite
def trees(draw: st.DrawFn, max_size: int = 12) -> PartitionTree:
    """Any tree: each level cuts the folders of the one above at random."""
    n = draw(st.integers(1, max_size))
    levels = [np.zeros(n, dtype=int)]
    for _ in range(draw(st.integers(0, 4))):
        cut = np.array(draw(st.lists(st.integers(0, 2), min_size=n, max_size=n)))
        levels.append(levels[-1] * 3 + cut)
    return PartitionTree(np.stack([*levels, np.arange(n)]) if n > 1 or len(levels) > 1 else np.stack(levels))


@given(trees())
def test_labels_are_numbered_from_left_to_right(tree: PartitionTree) -> None:
    assert (tree.labels[0] == 0).all()
    assert sorted(tree.labels[-1].tolist()) == list(range(tree.n))
    along = tree.labels[:, tree.leaf_order]
    steps = np.diff(along, axis=1)
    assert np.isin(steps, (0, 1)).all()  # every folder's members stand side by side, folders in order
    assert (np.diff(steps, axis=0) >= 0).all()  # a border on one level is one on all levels below


@given(trees())
def test_folders_sizes_and_parents_agree(tree: PartitionTree) -> None:
    for level in range(tree.n_levels):
        folders = tree.folders(level)
        assert [len(folder) for folder in folders] == tree.sizes[level].tolist()
        assert sorted(np.concatenate(folders).tolist()) == list(range(tree.n))
        if level:
            for folder, parent in zip(folders, tree.parents[level], strict=True):
                assert set(folder) <= set(tree.folders(level - 1)[parent])


@given(trees(), st.randoms(use_true_random=False))
def test_equality_is_of_folders_not_of_order(tree: PartitionTree, random: object) -> None:
    shuffled = [np.random.default_rng(7).permutation(int(row.max()) + 1)[row] for row in tree.labels]
    again = PartitionTree(np.stack(shuffled))
    assert again == tree
    assert hash(again) == hash(tree)


@given(trees())
def test_round_trips(tree: PartitionTree) -> None:
    assert np.array_equal(PartitionTree(tree.labels).labels, tree.labels)
    read = PartitionTree.from_json(json.loads(json.dumps(tree.to_json())))
    assert np.array_equal(read.labels, tree.labels)
    assert PartitionTree.from_json(json.dumps(tree.to_json())) == tree


def test_safetensors_round_trip(tmp_path: Path) -> None:
    tree = PartitionTree.dyadic(11)
    write_tensors(tmp_path / "tree.safetensors", {"labels": tree.labels})
    assert PartitionTree(read_tensors(tmp_path / "tree.safetensors")["labels"]) == tree


@given(trees())
def test_distances_are_an_ultrametric(tree: PartitionTree) -> None:
    d = tree.distances
    assert (np.diag(d) == 0).all()
    assert (d == d.T).all()
    assert (d[:, :, None] <= np.maximum(d[:, None, :], d.T[None, :, :]) + 1e-15).all()
    for i in range(tree.n):
        for j in range(i):
            both = [sizes[row[i]] for row, sizes in zip(tree.labels, tree.sizes, strict=True) if row[i] == row[j]]
            assert d[i, j] == min(both) / tree.n


@given(st.integers(1, 40))
def test_dyadic_tree_halves_intervals(n: int) -> None:
    tree = PartitionTree.dyadic(n)
    assert (tree.leaf_order == np.arange(n)).all()
    assert tree.n_levels == 1 + int(np.ceil(np.log2(n)))
    for level in range(1, tree.n_levels):
        for parent, size in enumerate(tree.sizes[level - 1]):
            parts = tree.sizes[level][tree.parents[level] == parent].tolist()
            assert parts == ([1] if size == 1 else [(size + 1) // 2, size // 2])


def test_networkx_export_is_the_tree() -> None:
    tree = PartitionTree([[0, 0, 0, 0], [0, 1, 0, 0], [0, 1, 2, 3]])
    graph = tree.to_networkx()
    assert nx.is_arborescence(graph)
    assert graph.nodes[(0, 0)] == {"level": 0, "size": 4, "members": [0, 1, 2, 3]}
    assert sorted(graph.nodes[node]["members"] for node in graph.successors((0, 0))) == [[0, 2, 3], [1]]


def test_permuted_points() -> None:
    tree = PartitionTree([[0, 0, 0], [0, 0, 1], [0, 1, 2]])
    assert [folder.tolist() for folder in tree.permuted([2, 0, 1]).folders(1)] == [[1, 2], [0]]
    with pytest.raises(InvalidInput, match="permutation"):
        tree.permuted([0, 0, 1])


def test_a_tree_never_changes() -> None:
    tree = PartitionTree.dyadic(4)
    with pytest.raises(ValueError):
        tree.labels[0, 0] = 1
    with pytest.raises(AttributeError):
        tree.labels = np.zeros((1, 1))  # type: ignore[misc]
    given_labels = np.array([[0, 0], [0, 1]])
    kept = PartitionTree(given_labels)
    given_labels[:] = 9
    assert kept.labels.tolist() == [[0, 0], [0, 1]]


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (np.zeros((2, 2)), "integers"),
        ([0, 1], "shape"),
        ([[0, 1], [0, 1]], "Row 0 is the root"),
        ([[0, 0], [0, 0]], "last row"),
        ([[0, 0, 0], [0, 0, 1], [0, 1, 0], [0, 1, 2]], "Level 2 of labels joins"),
    ],
)
def test_wrong_labels(labels: object, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        PartitionTree(labels)  # type: ignore[arg-type]


def test_wrong_level_and_wrong_json() -> None:
    with pytest.raises(InvalidInput, match="levels 0 to 2"):
        PartitionTree.dyadic(4).folders(3)
    for text in ("{}", "[1]", "no json", '{"labels": [[0, 0]]}'):
        with pytest.raises(FormatError, match="to_json"):
            PartitionTree.from_json(text)
