"""The names that scripts outside this repository rely on, used as they use them, on a tiny BERT."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oattn_hub as oh


@pytest.fixture(scope="module")
def folder(save_word_tokenizer: Callable[[Path], int], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT with a word-level tokenizer, saved as a user's local folder."""
    import torch
    from transformers import BertConfig, BertForMaskedLM

    target = tmp_path_factory.mktemp("tiny-bert")
    sizes = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 6, "intermediate_size": 64}
    torch.manual_seed(0)
    BertForMaskedLM(BertConfig(vocab_size=save_word_tokenizer(target), **sizes)).save_pretrained(target)
    return target


@pytest.fixture(scope="module")
def report(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = tmp_path_factory.mktemp("run")
    return oh.analyze(str(folder), data=None, batches=3, tokens=24, kind="probs", seed=0, out=out)


def test_capture_store_and_tensors(folder: Path, tmp_path: Path) -> None:
    import torch
    from transformers import BertModel

    model = BertModel.from_pretrained(folder).eval()
    with oh.capture(model, kinds=("probs",), store=tmp_path / "store") as store:
        model(input_ids=torch.arange(10)[None])
    assert store.n_batches == 1
    again = oh.AttentionStore.open(tmp_path / "store")
    assert len(again.groups) == 1
    X = again.tensor(batch=0, kind="probs", group=None)
    assert X.shape == (10, 10, 18)
    np.testing.assert_allclose(X.sum(axis=1), 1, atol=1e-5)
    heads = again.heads(group=None)
    assert [(record.layer, record.head) for record in heads] == [(i, j) for i in range(3) for j in range(6)]
    assert all(isinstance(record.layer_name, str) for record in heads)


def test_geometry_names() -> None:
    from oattn_hub.geometry import (
        PartitionTree,
        Questionnaire,
        cosine_affinity,
        diffusion_map,
        haar_basis,
        haar_transform,
        head_entropies,
        holder_exponent,
        inverse_haar_transform,
        network_entropy,
        organise_head,
        paraproduct,
        softmax_invariance,
        stability,
        tree_emd,
    )

    X = np.random.default_rng(0).random((14, 13, 15))
    q = Questionnaire(n_iters=3, coupling="initial", median="published", zero_is_missing=True).fit(X)
    assert set(q.trees_) == {"query", "key", "head"} == set(q.affinities_)
    tree = q.trees_["query"]
    assert isinstance(tree, PartitionTree)
    assert (tree.labels[0] == 0).all()
    assert len(set(tree.labels[-1].tolist())) == 14
    assert q.history_[2].trees["head"].labels.shape[1] == 15
    entropies = head_entropies(X, q.trees_, m=400, selection="support")
    assert entropies.shape == (15,)
    assert network_entropy(X, q.trees_, m=100) > 0
    basis = haar_basis(tree)
    np.testing.assert_allclose(basis.T @ basis, np.eye(14), atol=1e-12)
    coefficients = haar_transform(X, q.trees_)
    np.testing.assert_allclose(inverse_haar_transform(coefficients, q.trees_), X, atol=1e-12)
    assert paraproduct(X[:, :, 0], "exp", boundary=True).residual.shape == (14, 13)
    assert diffusion_map(q.affinities_["head"]).shape[0] == 15
    assert cosine_affinity(X, axis=2).shape == (15, 15)
    for function in (tree_emd, stability, organise_head, holder_exponent, softmax_invariance):
        assert callable(function)


def test_report_round_trip(report: Any, tmp_path: Path) -> None:
    report.save(tmp_path / "report")
    again = oh.Report.load(tmp_path / "report")
    assert again.heads == report.heads
    record = again.heads[0]
    assert record.entropy_low <= record.entropy <= record.entropy_high
    assert isinstance(record.layer, int)
    assert isinstance(record.head, int)
    assert record.rank >= 0
    assert 0 <= record.bottom_count <= 3
    assert 0 <= record.top_count <= 3
    assert oh.load_report(tmp_path / "report").heads == report.heads


def test_plan_apply_save_and_load(report: Any, tmp_path: Path, same_weights: Any) -> None:
    import torch

    from oattn_hub.models.aligned import FEW_UNITS, units_apart

    plan = report.plan(fraction=0.2)
    assert len(plan.heads) == round(0.2 * 18)
    pruned = plan.apply(model=None)
    pruned.save_pretrained(tmp_path / "pruned")
    again = oh.from_pretrained(tmp_path / "pruned")
    assert same_weights(again, pruned.model)
    ids = torch.arange(12)[None]
    with torch.no_grad():
        assert units_apart(again(input_ids=ids)[0], pruned.model.eval()(input_ids=ids)[0]) <= FEW_UNITS


def test_a_plan_by_hand_masks_like_it_cuts(folder: Path) -> None:
    import torch
    from transformers import BertModel

    model = BertModel.from_pretrained(folder).eval()
    plan = oh.PruningPlan.from_heads(model, [(0, 1), (0, 5)])
    ids = torch.arange(12)[None]
    with torch.no_grad():
        with plan.masked(model):
            masked = model(input_ids=ids)[0]
        cut = plan.apply(model=model).model(input_ids=ids)[0]
        whole = model(input_ids=ids)[0]
    torch.testing.assert_close(cut, masked, atol=1e-5, rtol=0)
    assert not torch.allclose(whole, masked, atol=1e-5)


def test_comparing_a_report_with_itself_finds_no_distance(report: Any) -> None:
    assert oh.compare(report, report) is not None


def test_every_error_is_of_one_tree() -> None:
    with pytest.raises(oh.OattnError):
        oh.Report.load("no/such/folder")
    with pytest.raises(oh.OattnError):
        oh.AttentionStore.open("no/such/folder")
