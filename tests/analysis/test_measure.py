"""From tensors to a group's numbers: every setting of the questionnaire reaches what it is about."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import spearmanr
from transformers import BertConfig, BertModel

import oattn_hub as oh
from oattn_hub.analysis.measure import join_batches, measure_batch
from oattn_hub.attention.store import AttentionStore, StoreInfo
from oattn_hub.attention.writer import StoreWriter
from oattn_hub.geometry import Questionnaire, diffusion, flexible_tree, head_entropies
from oattn_hub.records import ModelInfo, Settings
from oattn_hub.report import GroupResult
from oattn_hub.report.control_words import control_sentences, limit_sentences
from oattn_hub.report.group_storage import group_from, group_parts

Array = NDArray[Any]


class Head(NamedTuple):
    layer: int
    layer_name: str
    head: int


def tensors(count: int = 4, n: int = 14, heads: int = 10) -> list[Array]:
    rng = np.random.default_rng(0)
    scores = 3 * rng.random((count, n, n, heads)) * np.linspace(0.2, 2.0, heads)
    return [np.exp(X) / np.exp(X).sum(axis=1, keepdims=True) for X in scores]


def store_of(folder: Path, batches: list[Array]) -> AttentionStore:
    info = StoreInfo(ModelInfo("drawn", None, None, "torch", "tensor", "generic"), ("probs",))
    writer = StoreWriter(folder, info, resume=False)
    for number, X in enumerate(batches):
        batch = writer.begin_batch()
        batch.add_layer("all", X.shape[0], X.shape[1], 0, "layer.0", X.shape[2])
        batch.add_heads("all", "probs", X.transpose(2, 0, 1))
        writer.finish_batch(batch, f"input {number}", [])
    writer.release()
    return AttentionStore.open(folder)


def joined(batches: list[Array], questionnaire: Mapping[str, Any] | None = None) -> GroupResult:
    settings = Settings("probs", len(batches), 14, 0, Questionnaire(**(questionnaire or {})).get_params())
    heads = [Head(number // 5, f"layer.{number // 5}", number % 5) for number in range(batches[0].shape[2])]
    return join_batches("all", heads, batches[0], [measure_batch(X, settings) for X in batches], settings)


@pytest.mark.parametrize("tree", ["flexible", "binary"])
def test_row_normalisation_reaches_head_tree_and_diffusion_map(tree: str) -> None:
    batches = tensors()
    group = joined(batches, {"normalisation": "row", "tree": tree})
    affinity = np.mean(
        [Questionnaire(normalisation="row", tree=tree).fit(X).affinities_["head"] for X in batches], axis=0
    )
    np.testing.assert_allclose(group.geometry.diffusion, diffusion(affinity, 4, "row").coordinates()[:, 1:], atol=1e-5)
    assert not np.allclose(group.geometry.diffusion_eigenvalues, diffusion(affinity, 4, "density").values[1:])
    if tree == "flexible":
        assert group.geometry.tree == flexible_tree(group.geometry.affinity.astype(np.float64), normalisation="row")


@pytest.mark.parametrize(
    ("correlation", "words"),
    [
        (-0.92, "nearly in the opposite order of the plain Shannon entropy"),
        (-0.77, "partly in the opposite order of the plain Shannon entropy"),
        (0.1, "otherwise than the plain Shannon entropy"),
    ],
)
def test_half_a_correlation_is_not_called_none(correlation: float, words: str) -> None:
    """At -0.77 a report said that the ranking was another one, and that geometry alone knew it."""
    group = joined(tensors())
    assert group.haar.controls is not None
    controls = replace(group.haar.controls, shannon=correlation)
    found = " ".join(control_sentences(replace(group, haar=replace(group.haar, controls=controls))))
    assert words in found
    assert ("something that row entropies do not" in found) == (correlation == 0.1)


def test_the_network_entropy_counts_what_ties_at_the_end() -> None:
    batches = tensors(2)
    group = joined(batches)
    shown = np.abs(group.haar.network_coefficients, dtype=np.float64).sum(axis=1)
    assert group.haar.network_coefficients.shape == (2, 100)
    np.testing.assert_allclose(group.haar.network_entropies, shown, rtol=0.2)


def test_a_group_says_what_its_ranking_owes_to_the_method() -> None:
    batches = tensors(4)
    group = joined(batches)
    assert group.haar.controls is not None
    assert group.haar.tree_spread is not None
    trees = Questionnaire().fit(batches[0]).trees_
    everything = spearmanr(group.haar.entropies[0], head_entropies(batches[0], trees, None)).statistic
    assert group.haar.controls.all_functions == pytest.approx(everything)
    rows = -np.sum(batches[0] * np.log(batches[0]), axis=1).mean(axis=0)
    assert group.haar.controls.shannon == pytest.approx(spearmanr(group.haar.entropies[0], rows).statistic)
    assert (group.haar.tree_spread >= 0).all()
    assert set(group.haar.controls.convergence) == {"query", "key", "head"}
    sentences = " ".join(control_sentences(group))
    for word in ("Shannon", "shuffled", "Haar functions", "noise", "pass"):
        assert word in sentences
    assert "too few" not in sentences + " ".join(limit_sentences(group))
    assert "too few" in " ".join(limit_sentences(joined(batches[:3])))


def test_controls_survive_the_round_trip() -> None:
    group = joined(tensors(2))
    again = group_from(*group_parts(group))
    assert again.haar.controls == group.haar.controls
    assert again.haar.details is not None
    np.testing.assert_array_equal(again.haar.details, group.haar.details)


def test_details_are_the_entropies_without_the_constant_on_every_batch() -> None:
    batches = tensors(3)
    group = joined(batches)
    assert group.haar.details is not None
    for X, detail in zip(batches, group.haar.details, strict=True):
        expected = head_entropies(X, Questionnaire().fit(X).trees_, constant=False)
        np.testing.assert_allclose(detail, expected, rtol=1e-9)


def test_a_device_computes_every_distance_of_an_analysis(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = store_of(tmp_path / "store", [X.astype(np.float32) for X in tensors(2)])
    here = oh.Analyzer(progress=lambda *_: None).run(store)
    monkeypatch.delattr("oattn_hub.geometry.kernels.add_overlaps")  # what compares slices without a device
    there = oh.Analyzer(device="cpu", progress=lambda *_: None).run(store)
    for one, other in zip(here.heads, there.heads, strict=True):
        assert other.entropy == pytest.approx(one.entropy, rel=1e-9)


def test_a_model_on_a_gpu_is_organised_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """However it came there; a report is otherwise the same."""
    config = BertConfig(vocab_size=60, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32)
    bert = BertModel(config).eval()
    data = [{"input_ids": torch.arange(start, start + 12)[None]} for start in (3, 20)]
    here = oh.analyze(bert, data, batches=2)
    monkeypatch.setattr("oattn_hub.models.placement.cuda_of", lambda model: "cpu")  # as if that were a GPU
    monkeypatch.delattr("oattn_hub.geometry.kernels.add_overlaps")  # what compares slices without a device
    there = oh.analyze(bert, data, batches=2, seed=1)
    for one, other in zip(here.heads, there.heads, strict=True):
        assert other.entropy == pytest.approx(one.entropy, rel=1e-6)
