"""``oattn capture`` and ``oattn adapters`` as a user types them."""

from __future__ import annotations

import json
from pathlib import Path

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


def test_capture_says_what_is_wrong_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["capture", str(tmp_path), "--out", str(tmp_path / "store")]) == 1
    assert capsys.readouterr().err.strip().count("\n") == 0
    assert not (tmp_path / "store").exists()


def test_adapters_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["adapters"]) == 0
    assert "llama " in capsys.readouterr().out
    assert main(["adapters", "*vit*", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == ["timm_vit", "vit"]
