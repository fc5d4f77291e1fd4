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
    assert unwrap(nn.DataParallel(layer)) == (layer, None)
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


def test_a_tokenizer_beside_the_model(folder: Path) -> None:
    from transformers import AutoTokenizer, BertModel

    model, tokenizer = BertModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    with pytest.raises(InvalidInput, match="without a tokenizer"):
        oh.analyze(model, batches=2, tokens=8)
    settings: dict[str, Any] = {"batches": 2, "tokens": 8, "questionnaire": {"n_iters": 1}}
    given = oh.analyze(model, tokenizer=tokenizer, **settings)
    pair = oh.analyze((model, tokenizer), **settings)
    assert [head.entropy for head in given.heads] == [head.entropy for head in pair.heads]
    assert oh.load_model(folder, tokenizer=tokenizer).processor is tokenizer
    with pytest.raises(InvalidInput, match="Give one"):
        oh.load_model(model, tokenizer=tokenizer, processor=tokenizer)
    with pytest.raises(InvalidInput, match="cannot read inputs"):
        oh.load_model(model, tokenizer="bert")


def _half(folder: Path) -> nn.Module:
    from transformers import BertModel

    return BertModel.from_pretrained(folder).bfloat16()


def _int8(folder: Path) -> nn.Module:
    from transformers import BertModel

    model = BertModel.from_pretrained(folder).eval()
    return torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)  # type: ignore[no-untyped-call,no-any-return]


def _on_disk(folder: Path) -> nn.Module:
    from accelerate import disk_offload
    from transformers import BertModel

    offload = folder.parent / "offloaded"
    offload.mkdir(exist_ok=True)
    return disk_offload(BertModel.from_pretrained(folder), offload)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:torch.quantize_per_tensor:UserWarning")
@pytest.mark.parametrize("make", [_half, _int8, _on_disk])
def test_smaller_numbers_and_weights_on_disk_are_captured(folder: Path, make: Callable[[Path], nn.Module]) -> None:
    model = make(folder).eval()
    ids = torch.arange(9)[None]
    with torch.no_grad():
        before = model(input_ids=ids).last_hidden_state
        with oh.capture(model) as store:
            after = model(input_ids=ids).last_hidden_state
    assert torch.equal(before, after)
    assert store.shape(0) == (9, 9, 8)


def test_torchvision() -> None:
    """Swin v2 is cut; v1 takes its scale from the number of heads, so it is masked only."""
    models = pytest.importorskip("torchvision.models")
    sizes = {"patch_size": [4, 4], "embed_dim": 16, "depths": [2], "num_heads": [4], "window_size": [4, 4]}
    torch.manual_seed(0)
    x = torch.randn(1, 3, 32, 32)
    for block, refusal in ((models.swin_transformer.SwinTransformerBlockV2, None), (None, "scale of the scores")):
        model = models.SwinTransformer(**sizes, block=block).eval()
        with torch.no_grad(), oh.capture(model) as store:
            model(x)
        assert store.shape(0) == (16, 16, 8)
        plan = oh.PruningPlan.from_heads(model, [(0, 1), (1, 3)])
        if refusal is None:
            plan.apply(model, inputs=[{"x": x}], measure=False)  # compared with the masked model and an ablation
            continue
        with pytest.raises(oh.OattnError, match=refusal):
            plan.apply(model, inputs=[{"x": x}], measure=False)
        with torch.no_grad(), plan.masked(model):
            masked = model(x)
        assert not torch.allclose(masked, model(x))


def test_open_clip() -> None:
    open_clip = pytest.importorskip("open_clip")
    vision = open_clip.CLIPVisionCfg(layers=2, width=32, head_width=8, patch_size=8, image_size=32)
    text = open_clip.CLIPTextCfg(context_length=16, vocab_size=60, width=32, heads=4, layers=2)
    model = open_clip.CLIP(32, vision, text).eval()
    given = {"image": torch.randn(1, 3, 32, 32), "text": torch.arange(16)[None]}
    with torch.no_grad(), oh.capture(model) as store:
        model(**given)
    assert sorted(store.tensor(0, "probs", group).shape for group in store.groups) == [(16, 16, 8), (17, 17, 8)]
    plan = oh.PruningPlan.from_heads(model, [(site.layer, 1) for site in oh.adapt(model).sites])
    assert plan.apply(model, inputs=[given], measure=False).result.heads_after == 12
