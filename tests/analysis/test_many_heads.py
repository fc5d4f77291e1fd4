"""Memory that does not outgrow the attention, and what is said and kept of more heads than can be compared."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import spearmanr

import oattn_hub as oh
from oattn_hub.analysis.landmarks import crowd_of, landmarks
from oattn_hub.analysis.measure import join_batches, measure_batch
from oattn_hub.attention.reading import copied, in_memory
from oattn_hub.attention.store import AttentionStore, HeadRecord, StoreInfo
from oattn_hub.attention.writer import StoreWriter
from oattn_hub.geometry import PartitionTree, Questionnaire, tree_emd
from oattn_hub.geometry.crowd import Crowd, crowd_emd
from oattn_hub.records import ModelInfo, Provenance, Settings
from oattn_hub.report import GroupResult, Report
from oattn_hub.report.contexts import keep_sample
from oattn_hub.report.control_words import limit_sentences

Array = NDArray[Any]
PLAIN = {"alpha": 0.0, "beta": 1.0, "precision": "float64"}


def attention(tokens: int, heads: int, seed: int = 0) -> Array:
    """Softmax attention by heads of a few kinds, sharp and flat ones."""
    rng = np.random.default_rng(seed)
    places = rng.standard_normal((tokens, 8))
    kinds = rng.standard_normal((6, 8, 8))
    sharpness = rng.uniform(0.1, 1.0, heads)
    X = np.empty((tokens, tokens, heads), dtype=np.float32)
    for head in range(heads):
        form = kinds[head % 6] + 0.3 * rng.standard_normal((8, 8))
        scores = sharpness[head] * (places @ form @ places.T)
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        X[:, :, head] = weights / weights.sum(axis=1, keepdims=True)
    return X


def store_of(folder: Path, tensors: list[Array], kind: str = "probs") -> AttentionStore:
    info = StoreInfo(ModelInfo("drawn", None, None, "torch", "tensor", "generic"), (kind,))
    writer = StoreWriter(folder, info, resume=False)
    for number, X in enumerate(tensors):
        batch = writer.begin_batch()
        batch.add_layer("all", X.shape[0], X.shape[1], 0, "layer.0", X.shape[2])
        batch.add_heads("all", kind, X.transpose(2, 0, 1))
        writer.finish_batch(batch, f"input {number}", [])
    writer.release()
    return AttentionStore.open(folder)


def settings(**changes: Any) -> Settings:
    return replace(Settings("probs", 1, 0, 0, Questionnaire().get_params()), **changes)


def joined(tensors: list[Array], chosen: Settings) -> GroupResult:
    heads = [HeadRecord(number // 10, f"layer.{number // 10}", number % 10) for number in range(tensors[0].shape[2])]
    return join_batches("all", heads, tensors[0], [measure_batch(X, chosen) for X in tensors], chosen)


def test_every_stage_takes_at_most_8_bytes_an_entry_beside_its_buffers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "2")  # each has buffers of its own
    analyzer = oh.Analyzer(questionnaire={"n_iters": 1}, progress=lambda *_: None)
    small, large = store_of(tmp_path / "small", [attention(10, 9)]), store_of(tmp_path / "large", [attention(96, 480)])
    analyzer.run(small)  # what is imported and compiled is not counted
    tracemalloc.start()
    try:
        report = analyzer.report(large, analyzer.measure(large))
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        report.save(tmp_path / "report")
        report.write_page(tmp_path / "report.html")
        written = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    entries = 96 * 96 * 480
    buffers = 8_000_000  # coordinates, Haar coefficients and noise, a block at a time: they do not grow
    assert peak < 8 * entries + buffers
    assert written < 8 * entries + buffers


def test_a_tensor_is_read_from_its_file_without_a_second_copy_of_it(tmp_path: Path) -> None:
    X = attention(12, 40)
    mapped = store_of(tmp_path / "store", [X]).tensor(0)
    np.testing.assert_array_equal(in_memory(mapped), X)
    assert in_memory(mapped).flags.c_contiguous
    np.testing.assert_array_equal(copied(mapped, np.array([3, 17, 39])), X[:, :, [3, 17, 39]])
    assert in_memory(X) is X
    assert in_memory(X.astype(np.float16)).dtype == np.float32


def test_the_shown_attention_of_many_heads_is_coded_head_by_head() -> None:
    X = attention(48, 150)
    labels = PartitionTree.dyadic(48).labels
    tracemalloc.start()
    try:
        keep_sample(X, "probs", 0, labels, labels, 0.1)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * X.size  # not the 8 bytes an entry of a copy in float64


def test_all_heads_are_landmarks_unless_there_are_more_than_asked_for() -> None:
    np.testing.assert_array_equal(landmarks(30, 30), np.arange(30))
    drawn = landmarks(50, 30)
    assert len(set(drawn.tolist())) == 30
    assert (np.diff(drawn) > 0).all()
    np.testing.assert_array_equal(drawn, landmarks(50, 30))


@pytest.mark.parametrize("axis", ["query", "key"])
@pytest.mark.parametrize("gaps", [False, True])
def test_a_crowd_of_landmarks_alone_is_the_tree_with_its_leaves_twice(axis: str, gaps: bool) -> None:
    X = attention(9, 8).astype(np.float64)
    if gaps:
        X[np.triu_indices(9, k=1)] = np.nan
    trees = {name: PartitionTree.dyadic(n) for name, n in (("query", 9), ("key", 9), ("head", 8))}
    found = crowd_emd(X, gaps, Crowd(X, np.ones(8, dtype=np.intp)), trees, axis, **PLAIN)
    once_more = PartitionTree(np.vstack([trees["head"].labels, np.arange(8)]))
    expected = tree_emd(X, {**trees, "head": once_more}, axis)
    if not gaps:
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert np.isfinite(found).all()
    assert spearmanr(found.ravel(), expected.ravel())[0] > 0.99


def test_a_crowd_keeps_the_means_of_folders_of_all_heads() -> None:
    few = attention(8, 4).astype(np.float64)
    X = np.repeat(few, 3, axis=2)  # every landmark has two heads that are equal to it
    trees = {name: PartitionTree.dyadic(n) for name, n in (("query", 8), ("key", 8), ("head", 4))}
    everything = PartitionTree(np.vstack([np.repeat(trees["head"].labels, 3, axis=1), np.arange(12)]))
    crowd = Crowd(3 * few, np.full(4, 3))
    found = crowd_emd(few, False, crowd, trees, "query", **PLAIN)
    np.testing.assert_allclose(found, tree_emd(X, {**trees, "head": everything}, "query"), rtol=1e-12)


def test_heads_are_counted_to_the_landmark_that_attends_alike(tmp_path: Path) -> None:
    few = attention(10, 5)
    X = np.concatenate([few, few[:, :, ::-1]], axis=2)
    crowd = crowd_of(store_of(tmp_path / "store", [X]).tensor(0), np.arange(5))
    np.testing.assert_array_equal(crowd.counts, np.full(5, 2))
    np.testing.assert_allclose(crowd.sums, 2 * few, rtol=1e-6)


def test_landmarks_leave_the_ranking_of_the_heads_as_it_is() -> None:
    batches = [attention(40, 160, seed) for seed in range(3)]
    exact = np.mean([measure_batch(X, settings()).entropies for X in batches], axis=0)
    found = np.mean([measure_batch(X, settings(landmarks=40)).entropies for X in batches], axis=0)
    assert spearmanr(exact, found)[0] > 0.98
    lowest = [set(np.argsort(values)[:16].tolist()) for values in (exact, found)]
    assert len(lowest[0] & lowest[1]) >= 13  # trees of slightly perturbed copies keep no more


def test_a_report_on_very_many_heads_says_that_it_approximates_and_does_not_grow_with_their_square(
    tmp_path: Path,
) -> None:
    group = joined([attention(12, 90), attention(12, 90, seed=1)], settings(landmarks=30, batches=2))
    assert group.geometry.affinity.shape == (30, 30)
    assert group.geometry.tree.n == 90
    assert group.geometry.diffusion.shape == (90, 3)
    assert any("approximation" in sentence and "30 of them" in sentence for sentence in limit_sentences(group))
    model = ModelInfo("drawn", None, None, "torch", "tensor", "generic")
    report = Report(model, settings(landmarks=30), Provenance("drawn", "", ""), {"all": group})
    loaded = Report.load(report.save(tmp_path / "report"))
    np.testing.assert_array_equal(loaded.group("all").geometry.affinity_rows, group.geometry.affinity_rows)
    assert loaded.fingerprint == report.fingerprint
    assert loaded.settings.landmarks == 30
    report.write_page(tmp_path / "report.html")
    report.plot.affinity()


def test_few_heads_are_compared_each_with_each_and_the_report_says_nothing_of_landmarks() -> None:
    group = joined([attention(12, 20), attention(12, 20, seed=1)], settings(batches=2))
    assert group.geometry.landmarks is None
    assert not any("approximation" in sentence for sentence in limit_sentences(group))
