"""Where weights are: number formats, devices, and models that accelerate keeps on the disk."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import BertConfig, BertModel

import oattn_hub as oh
from oattn_hub.errors import InvalidInput
from oattn_hub.models.identify import weights_fingerprint
from oattn_hub.models.placement import cuda_of

OPTIONS = {"batches": 2, "tokens": 8}


@pytest.fixture
def folder(tmp_path: Path, save_word_tokenizer: Callable[[Path], int]) -> Path:
    """A tiny BERT with a tokenizer."""
    words = save_word_tokenizer(tmp_path / "bert")
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(0)
    BertModel(BertConfig(vocab_size=words, max_position_embeddings=32, **sizes)).save_pretrained(tmp_path / "bert")
    return tmp_path / "bert"


@pytest.mark.parametrize(("place", "expected"), [("cuda:1", "cuda:1"), ("cpu", None), ("meta", None)])
def test_the_gpu_that_a_model_is_on(place: str, expected: str | None) -> None:
    weights = SimpleNamespace(device=torch.device(place))
    model = torch.nn.Module()
    model.parameters = lambda *_: iter([weights])  # type: ignore[assignment,method-assign,return-value]
    assert cuda_of(model) == expected
    assert cuda_of(torch.nn.Identity()) is None


ON_DISK = {"embeddings": "cpu", "encoder": "disk", "pooler": "disk"}


def test_an_offloaded_model_is_analysed_like_any_other(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    plain = oh.analyze(folder, **OPTIONS)
    spread = oh.analyze(folder, **OPTIONS, device_map=ON_DISK, offload_folder=tmp_path / "offload")
    assert [head.entropy for head in spread.heads] == pytest.approx([head.entropy for head in plain.heads])
    loaded = oh.load_model(folder, device_map=ON_DISK, offload_folder=tmp_path / "offload")
    assert {parameter.device.type for parameter in loaded.model.encoder.parameters()} == {"meta"}
    # the model as an object, too: its weights are read from the disk to tell it from others
    report = oh.analyze((loaded.model, loaded.processor), **OPTIONS)
    assert report.model.revision == weights_fingerprint(BertModel.from_pretrained(folder))
    assert [head.entropy for head in report.heads] == pytest.approx([head.entropy for head in plain.heads])


def test_a_dtype_is_the_models_own(folder: Path) -> None:
    loaded = oh.load_model(folder, dtype="bfloat16", device="cpu")
    assert {parameter.dtype for parameter in loaded.model.parameters()} == {torch.bfloat16}
    assert len(oh.analyze(folder, **OPTIONS, dtype="bfloat16").heads) == 4


def test_what_cannot_be_is_refused(folder: Path) -> None:
    with pytest.raises(InvalidInput, match="dtype is 'int3'"):
        oh.load_model(folder, dtype="int3")
    with pytest.raises(InvalidInput, match="give one of them"):
        oh.load_model(folder, device="cpu", device_map="auto")
    with pytest.raises(InvalidInput, match="device is 'toaster'"):
        oh.load_model(folder, device="toaster")
