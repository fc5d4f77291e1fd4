"""A tiny model in a folder, and a cache of runs of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def bert_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT: 2 layers x 4 heads."""
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    folder = tmp_path_factory.mktemp("models") / "bert"
    BertModel(BertConfig(vocab_size=64, **sizes)).eval().save_pretrained(folder)
    return folder


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of runs."""
    monkeypatch.setenv("OATTN_HOME", str(tmp_path / "home"))
    return tmp_path / "home"
