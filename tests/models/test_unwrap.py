"""What users hold: the model inside pipelines, sentence encoders, adapters and compiled modules."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import oattn_hub as oh
from oattn_hub.errors import InvalidInput
from oattn_hub.models.unwrap import unwrap


@pytest.fixture(scope="module")
def folder(save_word_tokenizer: Callable[[Path], int], tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import BertConfig, BertForMaskedLM

    target = tmp_path_factory.mktemp("tiny")
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    torch.manual_seed(0)
    BertForMaskedLM(BertConfig(vocab_size=save_word_tokenizer(target), **sizes)).save_pretrained(target)
    return target


def test_a_pipeline(folder: Path) -> None:
    from transformers import pipeline

    held = pipeline("fill-mask", model=str(folder))
    loaded = oh.load_model(held)
    assert loaded.model is held.model
    assert loaded.processor is held.tokenizer
    assert loaded.modality == "text"


def test_a_sentence_encoder(folder: Path) -> None:
    class Transformer(nn.Module):
        """As sentence_transformers.models.Transformer is built."""

        def __init__(self) -> None:
            super().__init__()
            from transformers import AutoModel, AutoTokenizer

            self.auto_model = AutoModel.from_pretrained(folder)
            self.tokenizer = AutoTokenizer.from_pretrained(folder)

    held = nn.Sequential(Transformer(), nn.Identity())
    loaded = oh.load_model(held)
    assert loaded.model is held[0].auto_model
    assert loaded.processor is held[0].tokenizer


def test_a_pair_a_compiled_module_and_a_diffusers_pipeline() -> None:
    layer = nn.TransformerEncoderLayer(16, 2)

    class StableDiffusionPipeline:
        unet = layer

    assert unwrap((layer, "tokenizer")) == (layer, "tokenizer")
    assert unwrap(torch.compile(layer)) == (layer, None)
    assert unwrap(StableDiffusionPipeline()) == (layer, None)
    for wrong in (3, ["bert"], object()):
        with pytest.raises(InvalidInput, match="holds none that is known"):
            unwrap(wrong)


@pytest.mark.filterwarnings("ignore::FutureWarning")  # peft reads a name that transformers has given up
def test_an_adapter_is_captured_and_cutting_says_to_merge_first(folder: Path) -> None:
    peft = pytest.importorskip("peft")
    from transformers import BertModel

    held: Any = peft.get_peft_model(BertModel.from_pretrained(folder), peft.LoraConfig(target_modules=["query"]))
    ids = torch.arange(9)[None]
    with torch.no_grad(), oh.capture(oh.load_model(held)) as store:
        held(input_ids=ids)
    assert store.shape(0) == (9, 9, 8)
    with pytest.raises(oh.OattnError, match="merge_and_unload"):
        oh.PruningPlan.from_heads(held, [(0, 1)])
    merged = held.merge_and_unload()
    oh.PruningPlan.from_heads(merged, [(0, 1)]).apply(merged)


def test_a_model_compiled_in_place_is_captured_and_stays_compiled(folder: Path) -> None:
    from transformers import BertModel

    model = BertModel.from_pretrained(folder).eval()
    model.compile(backend="eager")
    compiled = model._compiled_call_impl
    with torch.no_grad(), oh.capture(model) as store:
        model(input_ids=torch.arange(9)[None])
    assert store.n_batches == 1
    assert model._compiled_call_impl is compiled


def test_weights_that_are_elsewhere_are_refused_by_us(folder: Path) -> None:
    from transformers import BertModel

    model = BertModel.from_pretrained(folder).to("meta")
    with pytest.raises(oh.OattnError, match="offloaded"):
        oh.PruningPlan.from_heads(model, [(0, 1)])
