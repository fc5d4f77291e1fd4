"""Axes of thousands of positions that nobody asked for are read as means over neighbours, and the report says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import oattn_hub as oh
from oattn_hub.attention import pooling
from oattn_hub.attention.contexts import pool_tokens
from oattn_hub.attention.pooling import PooledStore, pooled_tensor
from oattn_hub.attention.store import AttentionStore, StoreInfo
from oattn_hub.attention.writer import StoreWriter
from oattn_hub.records import ModelInfo
from oattn_hub.report import Report
from oattn_hub.report.control_words import limit_sentences

Array = NDArray[Any]


def store_of(folder: Path, shapes: dict[str, tuple[int, int, int]], tokens: int | None = None) -> AttentionStore:
    info = StoreInfo(ModelInfo("drawn", None, None, "torch", "tensor", "generic"), ("probs",), tokens=tokens)
    writer = StoreWriter(folder, info, resume=False)
    rng = np.random.default_rng(0)
    for _ in range(2):
        batch = writer.begin_batch()
        for layer, (group, (queries, keys, heads)) in enumerate(shapes.items()):
            batch.add_layer(group, queries, keys, layer, f"{group}.{layer}", heads)
            batch.add_heads(group, "probs", rng.dirichlet(np.full(keys, 0.3), size=(heads, queries)))
        writer.finish_batch(batch, "drawn", [])
    writer.release()
    return AttentionStore.open(folder)


@pytest.mark.parametrize("kind", ["probs", "scores", "logits"])
def test_pooling_when_read_is_pooling_when_captured(kind: str) -> None:
    X = np.random.default_rng(0).random((7, 11, 3)).astype(np.float32)
    if kind == "logits":
        X[np.triu_indices(7, k=1, m=11)] = np.nan
    expected = pool_tokens(torch.from_numpy(X.transpose(2, 0, 1)), kind, 3).numpy().transpose(1, 2, 0)
    known = ~np.isnan(expected) if kind == "logits" else np.ones(expected.shape, dtype=bool)
    found = pooled_tensor(X, kind, 3, 3)
    assert found.shape == expected.shape
    if kind == "probs":
        np.testing.assert_allclose(found, expected, rtol=1e-6)
    # means of means when captured, means of all entries when read: the same where blocks are full
    full = found[:2, :3], expected[:2, :3]
    if kind == "scores":
        np.testing.assert_allclose(*full, rtol=1e-6)
    assert (np.isnan(found) == ~known).all()


def test_only_axes_that_nobody_asked_for_are_pooled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooling, "LONG", 20)
    monkeypatch.setattr(pooling, "_LEFT", 10)
    shapes = {"encoder": (30, 30, 3), "cross": (8, 30, 3), "decoder": (20, 20, 3)}
    store = PooledStore(store_of(tmp_path / "sound", shapes))
    assert [store.shape(0, group) for group in shapes] == [(10, 10, 3), (8, 10, 3), (20, 20, 3)]
    assert [store.tensor(1, "probs", group).shape for group in shapes] == [(10, 10, 3), (8, 10, 3), (20, 20, 3)]
    np.testing.assert_allclose(store.tensor(0, "probs", "encoder").sum(axis=1), 1.0, rtol=1e-5)
    asked = PooledStore(store_of(tmp_path / "text", {"all": (30, 30, 3)}, tokens=30))
    assert asked.shape(0) == (30, 30, 3)


def test_the_report_says_what_was_pooled_and_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pooling, "LONG", 20)
    monkeypatch.setattr(pooling, "_LEFT", 10)
    store = store_of(tmp_path / "store", {"encoder": (30, 30, 4), "decoder": (12, 12, 4)})
    report = oh.Analyzer(progress=lambda *_: None).run(store, out=tmp_path / "report")
    encoder, decoder = Report.load(tmp_path / "report").groups.values()
    assert (encoder.pooled, encoder.n_queries) == ((3, 3), 10)
    assert any("3 neighbouring queries and 3 neighbouring keys" in text for text in limit_sentences(encoder))
    assert decoder.pooled == (1, 1)
    assert not any("neighbouring" in text for text in limit_sentences(decoder))
    assert Report.load(tmp_path / "report").fingerprint == report.fingerprint
