"""Calibration inputs: exact token counts, no overlap, and a clear word about bad data."""

from __future__ import annotations

import wave
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from oattn_hub.attention import LoadedModel, calibration_inputs, capture_inputs, load_model
from oattn_hub.errors import InvalidInput, LoadError, MissingDependency
from oattn_hub.inputs.media import synthetic_image
from oattn_hub.records import ModelInfo


@pytest.fixture(scope="module")
def minilm(minilm_folder: Path) -> LoadedModel:
    return load_model(minilm_folder)


def test_bundled_text_needs_no_data(minilm: LoadedModel) -> None:
    inputs = calibration_inputs(minilm, batches=4, tokens=40)
    assert len(inputs) == 4
    assert all(batch["input_ids"].shape == (1, 40) for batch in inputs)
    assert all(batch["input_ids"][0, 0] == 101 and batch["input_ids"][0, -1] == 102 for batch in inputs)
    assert inputs.tokens == 40
    assert "public domain" in inputs.description
    assert calibration_inputs(minilm, batches=4, tokens=40).fingerprint == inputs.fingerprint
    assert calibration_inputs(minilm, batches=4, tokens=40, seed=1).fingerprint != inputs.fingerprint


def _stream(inputs: Any) -> list[int]:
    return [int(token) for batch in inputs for token in batch["input_ids"][0, 1:-1]]


def test_halves_share_no_token(minilm: LoadedModel, tmp_path: Path) -> None:
    text = "\n\n".join(f"word{number}" for number in range(400))
    (tmp_path / "words.txt").write_text(text)
    whole = minilm.processor(text, add_special_tokens=False)["input_ids"]
    half = len(whole) // 2
    settings = {"batches": half // 30, "tokens": 32, "data": tmp_path / "words.txt"}
    for seed in range(3):
        calibration = _stream(calibration_inputs(minilm, part="calibration", seed=seed, **settings))
        evaluation = _stream(calibration_inputs(minilm, part="evaluation", seed=seed, **settings))
        assert _is_subsequence(calibration, whole[:half])
        assert _is_subsequence(evaluation, whole[half:])


def _is_subsequence(part: list[int], whole: list[int]) -> bool:
    """Windows in order and without overlap read like the text with gaps."""
    rest = iter(whole)
    return all(token in rest for token in part)


def test_text_shorter_than_the_contexts(minilm: LoadedModel, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text("far too short")
    with pytest.raises(InvalidInput, match=r"short\.txt\) has 3 tokens; 6 contexts of 126 need 756"):
        calibration_inputs(minilm, tmp_path / "short.txt")
    with pytest.raises(InvalidInput, match=r"2 texts.* has 4 tokens"):
        calibration_inputs(minilm, ["one two", "three four"])
    with pytest.raises(LoadError, match="cannot be read"):
        calibration_inputs(minilm, tmp_path / "missing.txt")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\xff")
    with pytest.raises(LoadError, match="is not UTF-8 text"):
        calibration_inputs(minilm, tmp_path / "binary.txt")


def test_more_tokens_than_the_model_takes(minilm: LoadedModel) -> None:
    with pytest.raises(InvalidInput, match=r"tokens is 513, but .* takes at most 512"):
        calibration_inputs(minilm, tokens=513)
    with pytest.raises(InvalidInput, match="tokens is 2, but the tokenizer adds 2"):
        calibration_inputs(minilm, tokens=2)


@pytest.mark.parametrize("settings", [{"batches": 0}, {"tokens": 0}, {"part": "test"}])
def test_bad_settings(minilm: LoadedModel, settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=r"batches is|part is"):
        calibration_inputs(minilm, **settings)


def test_ready_made_batches(minilm: LoadedModel) -> None:
    inputs = calibration_inputs(minilm, [{"input_ids": np.array([[101, 2023, 102]])}])
    assert torch.equal(inputs[0]["input_ids"], torch.tensor([[101, 2023, 102]]))
    assert calibration_inputs(minilm, inputs) is inputs
    with pytest.raises(InvalidInput, match="Batch 1 is empty"):
        calibration_inputs(minilm, [{"input_ids": torch.ones(1, 3)}, {"input_ids": torch.ones(1, 0)}])
    with pytest.raises(InvalidInput, match="Argument 'batch' is a dict that is no array of numbers"):
        calibration_inputs(minilm, [{"batch": {"input_ids": torch.ones(1, 3)}}])


def test_a_loader_of_batches(zoo: Any) -> None:
    loaded = load_model(zoo.BY_NAME["bert"].build()[0])
    rows = torch.arange(4, 22).reshape(6, 3)
    found = calibration_inputs(loaded, DataLoader([{"input_ids": row} for row in rows], batch_size=2))
    assert torch.equal(torch.cat([batch["input_ids"] for batch in found]), rows)
    with pytest.raises(InvalidInput, match="Batch 0 is a list"):
        calibration_inputs(loaded, DataLoader(TensorDataset(rows)))


def test_token_ids_as_a_tensor(zoo: Any) -> None:
    loaded = load_model(zoo.BY_NAME["bert"].build()[0])
    rows = torch.arange(4, 22).reshape(2, 9)
    one, other = (calibration_inputs(loaded, data, batches=2, tokens=9) for data in (rows, rows.numpy()))
    assert one.fingerprint == other.fingerprint


def test_a_model_without_its_tokenizer(zoo: Any) -> None:
    with pytest.raises(InvalidInput, match="came without a tokenizer"):
        calibration_inputs(load_model(zoo.BY_NAME["bert"].build()[0]))
    with pytest.raises(InvalidInput, match="plain torch module"):
        calibration_inputs(load_model(nn.MultiheadAttention(8, 2)))


def test_datasets_are_optional(minilm: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(MissingDependency, match=r"pip install oattn_hub\[datasets\]"):
        calibration_inputs(minilm, "dataset:owner/name")


def test_a_dataset_of_the_hub(minilm: LoadedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def load_dataset(path: str, name: str | None, *, split: str, token: str | bool | None) -> dict[str, list[str]]:
        asked.append((path, name, split))
        return {"body": ["One sentence after another."] * 40}

    monkeypatch.setitem(__import__("sys").modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    inputs = calibration_inputs(minilm, "dataset:owner/name?split=valid&column=body&config=en", batches=2, tokens=16)
    assert asked == [("owner/name", "en", "valid")]
    assert inputs[0]["input_ids"].shape == (1, 16)
    assert inputs.description.startswith("dataset:owner/name?")
    with pytest.raises(LoadError, match="text"):
        calibration_inputs(minilm, "dataset:owner/name")


def test_images(zoo: Any, tmp_path: Path) -> None:
    loaded = load_model(zoo.BY_NAME["vit"].build()[0])
    synthetic = calibration_inputs(loaded, batches=2)
    assert [tuple(batch["pixel_values"].shape) for batch in synthetic] == [(1, 3, 32, 32)] * 2
    assert "synthetic" in synthetic.description
    for number in range(3):
        synthetic_image(1, number).save(tmp_path / f"{number}.png")
    inputs = calibration_inputs(loaded, tmp_path, batches=3)
    assert len(inputs) == 3
    with pytest.raises(InvalidInput, match="There are 3 images; 4 batches need 4"):
        calibration_inputs(loaded, tmp_path, batches=4)
    store = capture_inputs(loaded, inputs)
    assert store.shape(0) == (17, 17, 8)
    assert calibration_inputs(loaded, [Image.new("L", (9, 9))], batches=1)[0]["pixel_values"].shape == (1, 3, 32, 32)


def test_a_broken_image_is_named(zoo: Any, tmp_path: Path) -> None:
    loaded = load_model(zoo.BY_NAME["vit"].build()[0])
    synthetic_image(0, 0).save(tmp_path / "good.png")
    (tmp_path / "broken.png").write_bytes((tmp_path / "good.png").read_bytes()[:200])
    with pytest.raises(LoadError, match=r"broken\.png is not a readable image"):
        calibration_inputs(loaded, tmp_path, batches=2)
    with pytest.raises(LoadError, match="does not exist"):
        calibration_inputs(loaded, tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(LoadError, match="holds no image file"):
        calibration_inputs(loaded, tmp_path / "empty")


def test_timm_images(zoo: Any) -> None:
    loaded = load_model(zoo.BY_NAME["timm-vit"].build()[0])
    inputs = calibration_inputs(loaded, batches=1)
    assert capture_inputs(loaded, inputs).shape(0) == (17, 17, 8)


def test_a_decoder_reads_what_the_model_itself_hears(zoo: Any) -> None:
    """With its start token alone, cross attention had one row, and no head could follow the sound."""
    from transformers import WhisperFeatureExtractor, WhisperForConditionalGeneration

    body, _ = zoo.BY_NAME["whisper"].build()
    torch.manual_seed(0)
    model = WhisperForConditionalGeneration(body.config).eval()
    extractor = WhisperFeatureExtractor(feature_size=16, chunk_length=1, hop_length=400)
    loaded = LoadedModel(model, extractor, ModelInfo("tiny", library="transformers", modality="audio"))
    batch = calibration_inputs(loaded, None, batches=1)[0]
    words = batch["decoder_input_ids"]
    with torch.no_grad():
        logits = model(**batch).logits
    logits[..., model.config.eos_token_id] = -torch.inf
    assert words[0, 0] == model.config.decoder_start_token_id
    assert torch.equal(logits[0, :-1].argmax(1), words[0, 1:])
    assert words.shape[1] == min(32, model.config.max_target_positions)
    wordless = LoadedModel(body, extractor, ModelInfo("tiny", library="transformers", modality="audio"))
    assert calibration_inputs(wordless, None, batches=1)[0]["decoder_input_ids"].shape == (1, 1)


def test_sounds(zoo: Any, tmp_path: Path) -> None:
    from transformers import WhisperFeatureExtractor

    model, _ = zoo.BY_NAME["whisper"].build()
    extractor = WhisperFeatureExtractor(feature_size=16, chunk_length=1, hop_length=400)
    loaded = LoadedModel(model, extractor, ModelInfo("tiny", library="transformers", modality="audio"))
    with wave.open(str(tmp_path / "a.wav"), "wb") as stream:
        stream.setparams((2, 2, 8000, 0, "NONE", ""))
        stream.writeframes(np.zeros(8000, dtype="<i2").tobytes())
    for data in (None, tmp_path):
        store = capture_inputs(loaded, calibration_inputs(loaded, data, batches=1))
        assert store.groups == ["encoder", "decoder", "cross"]
    (tmp_path / "b.wav").write_bytes(b"RIFF")
    with pytest.raises(LoadError, match=r"b\.wav is not a readable WAV"):
        calibration_inputs(loaded, tmp_path, batches=2)
