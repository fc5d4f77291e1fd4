"""Loading: folders, timm, modules; and one clear sentence for everything that cannot be loaded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from oattn_hub.attention import load_model
from oattn_hub.errors import InvalidInput, LoadError
from oattn_hub.models.aligned import FEW_UNITS, units_apart


@pytest.fixture
def saved_bert(zoo: Any, tmp_path: Path) -> Path:
    model, _ = zoo.BY_NAME["bert"].build()
    model.save_pretrained(tmp_path / "tiny" / "bert")
    return tmp_path / "tiny" / "bert"


def test_a_folder(saved_bert: Path) -> None:
    loaded = load_model(saved_bert)
    assert type(loaded.model).__name__ == "BertModel"
    assert not loaded.model.training
    assert (loaded.model_id, loaded.modality, loaded.library) == ("tiny/bert", "text", "transformers")
    assert loaded.processor is None
    assert load_model(loaded) is loaded
    again = load_model(str(loaded.source))
    assert again.revision == loaded.revision
    assert len(str(loaded.revision)) == 64


def test_the_revision_follows_the_weights(saved_bert: Path) -> None:
    first = load_model(saved_bert)
    with torch.no_grad():
        first.model.embeddings.word_embeddings.weight[5] += 1
    first.model.save_pretrained(saved_bert)
    assert load_model(saved_bert).revision != first.revision


def test_the_class_that_made_the_checkpoint_is_the_one_that_loads_it(zoo: Any, tmp_path: Path) -> None:
    from transformers import BertConfig, BertForMaskedLM

    BertForMaskedLM(BertConfig(**zoo.BERT)).save_pretrained(tmp_path)
    assert type(load_model(tmp_path).model).__name__ == "BertForMaskedLM"
    assert type(load_model(tmp_path, task="base").model).__name__ == "BertModel"
    with pytest.raises(InvalidInput, match="task is 'summary'; choose from base, causal-lm"):
        load_model(tmp_path, task="summary")


@pytest.mark.parametrize("tied", [True, False])
def test_no_head_is_made_up(zoo: Any, tmp_path: Path, tied: bool) -> None:
    """all-mpnet-base-v2 names the class with a head for words that it was trained from, and comes without that head.

    Its budget was about the loss of random weights: 13.9 nats, where one of 30,527 words at random has 10.3.
    """
    from transformers import BertConfig, BertForMaskedLM

    whole = BertForMaskedLM(BertConfig(**zoo.BERT, tie_word_embeddings=tied))
    whole.save_pretrained(tmp_path / "whole")
    assert type(load_model(tmp_path / "whole").model).__name__ == "BertForMaskedLM"
    whole.bert.save_pretrained(tmp_path / "encoder")
    config = json.loads((tmp_path / "encoder/config.json").read_text())
    (tmp_path / "encoder/config.json").write_text(json.dumps({**config, "architectures": ["BertForMaskedLM"]}))
    found = load_model(tmp_path / "encoder")
    assert type(found.model).__name__ == found.info.architecture == "BertModel"
    assert type(load_model(tmp_path / "encoder", task="masked-lm").model).__name__ == "BertForMaskedLM"


def test_a_timm_folder(zoo: Any, tmp_path: Path) -> None:
    from timm.models import save_for_hf

    model, inputs = zoo.BY_NAME["timm-vit"].build()
    arguments = {**zoo.SMALL_VIT, "num_classes": 5}
    save_for_hf(model, tmp_path, model_config={"model_args": arguments}, safe_serialization=True)
    loaded = load_model(tmp_path)
    assert (loaded.library, loaded.modality) == ("timm", "image")
    assert units_apart(loaded.forward(inputs), model(**inputs)) <= FEW_UNITS


def test_modules(zoo: Any) -> None:
    model, inputs = zoo.BY_NAME["gpt2"].build()
    loaded = load_model(model)
    assert (loaded.library, loaded.modality, loaded.source) == ("transformers", "text", None)
    assert loaded.forward(inputs).last_hidden_state.shape == (1, 12, 32)
    assert load_model(zoo.BY_NAME["clip"].build()[0]).modality == "image+text"
    assert load_model(zoo.BY_NAME["whisper"].build()[0]).modality == "audio"
    assert load_model(zoo.BY_NAME["vit"].build()[0]).modality == "image"
    plain = load_model(nn.Linear(2, 2))
    assert (plain.library, plain.modality, plain.model_id) == ("torch", "tensor", "Linear")


def test_unknown_names(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LoadError, match="no-such/model cannot be loaded"):
        load_model("no-such/model", local_files_only=True)
    with pytest.raises(LoadError, match=r"\./nowhere does not exist"):
        load_model("./nowhere")


def test_folders_that_are_no_model(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"has no config\.json"):
        load_model(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "bert", "architectures": ["BertModel"]}))
    with pytest.raises(LoadError, match=r"has a config\.json and no weights"):
        load_model(tmp_path)
    with pytest.raises(LoadError, match="is a file, not a folder"):
        load_model(tmp_path / "config.json")
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(Exception, match="not valid JSON"):
        load_model(tmp_path)


def test_pickles_are_refused_unless_allowed(saved_bert: Path) -> None:
    from safetensors.torch import load_file

    weights = saved_bert / "model.safetensors"
    torch.save(load_file(weights), saved_bert / "pytorch_model.bin")
    weights.unlink()
    with pytest.raises(LoadError, match=r"only pickles.*allow_pickle=True"):
        load_model(saved_bert)
    assert type(load_model(saved_bert, allow_pickle=True).model).__name__ == "BertModel"


def test_files_that_cannot_be_read_are_not_called_pickles(saved_bert: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers import BertModel

    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("unable to mmap 8 bytes from file <model.safetensors>: Cannot allocate memory (12)")

    monkeypatch.setattr(BertModel, "from_pretrained", fail)
    with pytest.raises(LoadError, match="Cannot allocate memory"):
        load_model(saved_bert)


def test_code_of_the_checkpoint_is_not_run_unless_trusted(saved_bert: Path) -> None:
    config = json.loads((saved_bert / "config.json").read_text())
    config.update(model_type="mine", auto_map={"AutoConfig": "mine.Config", "AutoModel": "mine.Model"})
    (saved_bert / "config.json").write_text(json.dumps(config))
    (saved_bert / "mine.py").write_text("raise SystemExit('this must never run')")
    with pytest.raises(LoadError, match=r"needs code of its own.*trust_remote_code=True"):
        load_model(saved_bert)


def test_several_gguf_files_must_be_told_apart(tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    with pytest.raises(LoadError, match=r"has 2 GGUF files.*\['a.gguf', 'b.gguf'\]"):
        load_model(tmp_path)
