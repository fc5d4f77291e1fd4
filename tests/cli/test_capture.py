"""``oattn capture`` and ``oattn adapters`` as a user types them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import oattn_hub as oh
from oattn_hub.cli import main


def test_capture_writes_a_store(minilm_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["capture", str(minilm_folder), "--batches", "2", "--tokens", "24", "--out", str(tmp_path / "store")]
    assert main([*arguments, "--kind", "probs", "--kind", "logits"]) == 0
    printed = capsys.readouterr()
    assert "24 queries x 24 keys x 72 heads" in printed.out
    assert "capture: done in" in printed.err
    assert oh.AttentionStore.open(tmp_path / "store").n_batches == 2
    assert main([*arguments, "--kind", "probs", "--kind", "logits"]) == 1
    assert "already holds" in capsys.readouterr().err.splitlines()[-1]
    assert main([*arguments, "--kind", "probs", "--kind", "logits", "--resume", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["groups"] == {"encoder": [24, 24, 72]}


def test_a_report_of_captured_attention_is_read_in_tokens(minilm_folder: Path, tmp_path: Path) -> None:
    """Positions had numbers only, in sounds too, as `oattn capture` kept no contexts."""
    store, run = tmp_path / "store", tmp_path / "run"
    arguments = [str(minilm_folder), "--batches", "2", "--tokens", "24"]
    assert main(["capture", *arguments, "--out", str(store)]) == 0
    assert main(["analyze", str(store), "--out", str(run)]) == 0
    axis = oh.Report.load(run).contexts[0].axis(24)
    assert axis is not None
    assert axis.tokens[0] == "[CLS]"


def test_capture_says_what_is_wrong_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["capture", str(tmp_path), "--out", str(tmp_path / "store")]) == 1
    assert capsys.readouterr().err.strip().count("\n") == 0
    assert not (tmp_path / "store").exists()


def test_adapters_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["adapters"]) == 0
    assert "llama " in capsys.readouterr().out
    assert main(["adapters", "*vit*", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == ["timm_vit", "vit"]


@pytest.fixture(scope="module")
def without_tokenizer(zoo: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A text model as a folder with nothing to read text with."""
    folder = tmp_path_factory.mktemp("model")
    zoo.BY_NAME["llama"].build()[0].save_pretrained(folder)
    return folder


def test_what_is_known_of_a_model_is_explained(without_tokenizer: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["adapters", "--explain", str(without_tokenizer)]) == 0
    printed = capsys.readouterr().out
    assert "adapter llama, 2 attention layers" in printed
    assert "4 heads, 2 key/value heads; output o_proj; q_proj (q), k_proj (k), v_proj (v)" in printed
    assert main(["adapters", "--explain", str(without_tokenizer), "--json"]) == 0
    explained = json.loads(capsys.readouterr().out)
    assert [layer["found"] for layer in explained["layers"]] == ["described by a family"] * 2


def test_token_ids_are_data(without_tokenizer: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    np.save(tmp_path / "ids.npy", np.random.default_rng(0).integers(3, 60, 200))
    capture = ["capture", str(without_tokenizer), "--batches", "2", "--tokens", "16"]
    assert main([*capture, "--out", str(tmp_path / "store")]) == 1
    assert "--data ids.npy" in capsys.readouterr().err
    assert main([*capture, "--data", str(tmp_path / "ids.npy"), "--out", str(tmp_path / "store")]) == 0
    assert "16 queries x 16 keys x 8 heads" in capsys.readouterr().out
    np.save(tmp_path / "other.npy", np.arange(200))
    assert main([*capture, "--data", str(tmp_path / "other.npy"), "--out", str(tmp_path / "more")]) == 1
    assert "the model knows 0 to 59" in capsys.readouterr().err


def test_a_captured_store_gives_the_report_of_the_one_command(
    without_tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on another day, on a machine without the model."""
    np.save(tmp_path / "ids.npy", np.random.default_rng(0).integers(3, 60, 200))
    inputs = ["--data", str(tmp_path / "ids.npy"), "--batches", "3", "--tokens", "16"]
    assert main(["analyze", str(without_tokenizer), *inputs, "--out", str(tmp_path / "at-once")]) == 0
    assert main(["capture", str(without_tokenizer), *inputs, "--out", str(tmp_path / "store")]) == 0
    monkeypatch.delattr("oattn_hub.models.load._load")
    assert main(["analyze", str(tmp_path / "store"), "--out", str(tmp_path / "later")]) == 0
    arrays = [(tmp_path / name / "report.safetensors").read_bytes() for name in ("at-once", "later")]
    assert arrays[0] == arrays[1]
    at_once, later = (oh.Report.load(tmp_path / name) for name in ("at-once", "later"))
    assert later.provenance.command != at_once.provenance.command
    same = replace(later, provenance=replace(later.provenance, command=at_once.provenance.command))
    assert same.fingerprint == at_once.fingerprint
