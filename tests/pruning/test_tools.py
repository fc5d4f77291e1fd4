"""A pruned checkpoint in the tools that people load models with, each the real one.

=====================  ==========================================
tool                   models
=====================  ==========================================
stock ``AutoModel*``   test_classes.py
``pipeline``           BERT, Llama, ViT
sentence-transformers  MiniLM
PEFT, Trainer          Llama, BERT
``torch.export``       MiniLM-like BERT, Llama (grouped), ViT
ONNX + onnxruntime     the same
``torch.compile``      Llama (slow)
int8                   BERT
timm                   ViT, masked
accelerate             Llama
=====================  ==========================================
"""

from __future__ import annotations

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from oattn_hub.errors import OattnError
from oattn_hub.models.load import load_model
from oattn_hub.pruning import PruningPlan, load_pruned, read_manifest

# Warnings of the tools about themselves.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),
    pytest.mark.filterwarnings("ignore:torch.ao.quantization is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning"),
]

IDS = {"input_ids": torch.arange(3, 15)[None], "attention_mask": torch.ones(1, 12, dtype=torch.long)}
SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48}
HEADS = [(0, 1), (1, 2), (1, 3), (1, 6)]


def llama() -> Any:
    """Four groups of two queries, as in SmolLM2 or Llama 3; the cut leaves the groups uneven."""
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=60, num_attention_heads=8, num_key_value_heads=4, pad_token_id=0, eos_token_id=None, **SIZES
    )
    return transformers.LlamaForCausalLM(config).eval()


def bert(name: str = "BertForMaskedLM") -> Any:
    import transformers

    torch.manual_seed(0)
    config = transformers.BertConfig(vocab_size=60, num_attention_heads=8, **SIZES)
    return getattr(transformers, name)(config).eval()


def vit() -> Any:
    import transformers

    torch.manual_seed(0)
    config = transformers.ViTConfig(num_attention_heads=8, image_size=32, patch_size=8, num_labels=3, **SIZES)
    return transformers.ViTForImageClassification(config).eval()


PIXELS = {"pixel_values": torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))}
MODELS = {"bert": (bert, IDS), "llama": (llama, IDS), "vit": (vit, PIXELS)}
AUTOS = {"bert": "AutoModelForMaskedLM", "llama": "AutoModelForCausalLM", "vit": "AutoModelForImageClassification"}


def saved(name: str, folder: Path) -> tuple[Any, dict[str, torch.Tensor]]:
    """A pruned model of this family, saved to ``folder``, and inputs for it."""
    make, inputs = MODELS[name]
    model = make()
    pruned = PruningPlan.from_heads(model, HEADS).apply(model, inputs=[inputs], measure=False)
    pruned.save_pretrained(folder, verify=False)
    return pruned.model, inputs


def stock(name: str, folder: Path, **options: Any) -> Any:
    """The checkpoint as transformers loads it."""
    import transformers

    return getattr(transformers, AUTOS[name]).from_pretrained(folder, trust_remote_code=True, **options)


def logits(model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    with torch.no_grad():
        return model(**inputs).logits


@pytest.mark.parametrize(("name", "task"), [("bert", "fill-mask"), ("llama", "text-generation")])
def test_pipeline_of_text(name: str, task: str, tmp_path: Path, save_word_tokenizer: Any) -> None:
    import transformers

    model, _ = saved(name, tmp_path / name)
    save_word_tokenizer(tmp_path / name)
    tool = transformers.pipeline(task, model=str(tmp_path / name), trust_remote_code=True, device="cpu")
    assert torch.equal(logits(tool.model, IDS), logits(model, IDS))
    text = "the and [MASK] of" if task == "fill-mask" else "the and of"
    options = {} if task == "fill-mask" else {"max_new_tokens": 3, "do_sample": False}
    assert tool(text, **options)


def test_pipeline_of_images(tmp_path: Path) -> None:
    import transformers
    from PIL import Image

    model, _ = saved("vit", tmp_path / "vit")
    transformers.ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(tmp_path / "vit")
    tool = transformers.pipeline(
        "image-classification", model=str(tmp_path / "vit"), trust_remote_code=True, device="cpu"
    )
    assert torch.equal(logits(tool.model, PIXELS), logits(model, PIXELS))
    assert len(tool(Image.new("RGB", (40, 40), "red"))) == 3


def test_sentence_transformers(tmp_path: Path, minilm_folder: Path) -> None:
    """The modules of the embedding model travel along: same norm, same length, same embeddings as our loader's."""
    tools = pytest.importorskip("sentence_transformers")
    base = tmp_path / "base"
    shutil.copytree(minilm_folder, base)
    for name, text in {
        "modules.json": json.dumps(
            [
                {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
                {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
                {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
            ]
        ),
        "sentence_bert_config.json": '{"max_seq_length": 256, "do_lower_case": false}',
        "1_Pooling/config.json": '{"word_embedding_dimension": 384, "pooling_mode_mean_tokens": true}',
    }.items():
        (base / name).parent.mkdir(exist_ok=True)
        (base / name).write_text(text)
    (base / "2_Normalize").mkdir(exist_ok=True)
    loaded = load_model(base)
    plan = PruningPlan.from_heads(loaded, [(0, 1), (3, 2), (5, 11)])
    folder = plan.apply(loaded, measure=False).save_pretrained(tmp_path / "pruned", verify=False)
    assert read_manifest(folder).base_card["library_name"] == "sentence-transformers"
    tool = tools.SentenceTransformer(str(folder), trust_remote_code=True, device="cpu")
    assert tool.max_seq_length == 256
    words = ["A head that nobody needs.", "Attention."]
    found = torch.tensor(tool.encode(words))
    assert torch.allclose(found.norm(dim=1), torch.ones(2), atol=1e-5)
    batch = loaded.processor(words, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = load_pruned(folder)(**batch).last_hidden_state
    weights = batch["attention_mask"].unsqueeze(-1)
    expected = torch.nn.functional.normalize((hidden * weights).sum(1) / weights.sum(1))
    assert torch.allclose(found, expected, atol=1e-5)
    _held_in_memory(tools.SentenceTransformer(str(base), device="cpu"), plan, tmp_path / "held")


def _held_in_memory(encoder: Any, plan: PruningPlan, folder: Path) -> None:
    """A SentenceTransformer is saved as it is held, which its files need not say."""
    tools = pytest.importorskip("sentence_transformers")
    encoder.max_seq_length = 99
    encoder.append(tools.models.Dense(384, 16))
    plan.apply(encoder, measure=False, allow_other_weights=True).save_pretrained(folder, verify=False)
    again = tools.SentenceTransformer(str(folder), trust_remote_code=True, device="cpu")
    assert again.max_seq_length == 99
    encoder[0].model = load_pruned(folder)
    words = ["A head that nobody needs.", "Attention."]
    assert torch.allclose(torch.tensor(again.encode(words)), torch.tensor(encoder.encode(words)), atol=1e-6)
    assert again.encode(words).shape == (2, 16)


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_peft_on_top(name: str, tmp_path: Path) -> None:
    """LoRA with PEFT's own choice of modules: forward, backward, merge."""
    peft = pytest.importorskip("peft")
    model, inputs = saved(name, tmp_path / "base")
    tuned = peft.get_peft_model(stock(name, tmp_path / "base"), peft.LoraConfig(r=2, init_lora_weights=False))
    before = logits(tuned, inputs)
    assert not torch.allclose(before, logits(model, inputs))
    tuned(**inputs, labels=inputs["input_ids"]).loss.backward()
    grown = [parameter.grad for parameter in tuned.parameters() if parameter.requires_grad]
    assert grown
    assert all(gradient is not None and gradient.isfinite().all() for gradient in grown)
    merged = tuned.merge_and_unload()
    assert torch.allclose(logits(merged, inputs), before, atol=1e-5)


def test_trainer(tmp_path: Path) -> None:
    """Training goes on where pruning ended, and what the Trainer saves loads again."""
    import transformers

    saved("llama", tmp_path / "llama")
    model = stock("llama", tmp_path / "llama")
    before = logits(model, IDS)
    options = {"max_steps": 2, "report_to": [], "use_cpu": True, "save_strategy": "no", "disable_tqdm": True}
    arguments = transformers.TrainingArguments(output_dir=str(tmp_path / "out"), **options)
    row = {"input_ids": IDS["input_ids"][0], "labels": IDS["input_ids"][0]}
    trainer = transformers.Trainer(model, arguments, train_dataset=[row, row])
    trainer.train()
    after = logits(model.eval(), IDS)
    assert not torch.allclose(after, before)
    trainer.save_model(str(tmp_path / "tuned"))
    again = stock("llama", tmp_path / "tuned")
    assert torch.allclose(logits(again, IDS), after, atol=1e-6)
    with pytest.raises(ValueError, match="trust_remote_code"):
        transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "tuned", trust_remote_code=False)


@pytest.mark.parametrize("name", MODELS)
def test_export(name: str, tmp_path: Path) -> None:
    model, inputs = saved(name, tmp_path)
    options = {"use_cache": False} if name == "llama" else {}
    program = torch.export.export(load_pruned(tmp_path), (), {**inputs, **options}, strict=False)
    found = program.module()(**inputs, **options).logits
    assert torch.allclose(found, logits(model, inputs), atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_onnx(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    runtime = pytest.importorskip("onnxruntime")
    model, inputs = saved(name, tmp_path / name)

    class OnlyLogits(torch.nn.Module):
        def __init__(self, model: Any) -> None:
            super().__init__()
            self.model = model

        def forward(self, *args: torch.Tensor) -> torch.Tensor:
            options = {"use_cache": False} if name == "llama" else {}
            found: torch.Tensor = self.model(**dict(zip(inputs, args, strict=True)), **options).logits
            return found

    file = tmp_path / "model.onnx"
    wrapped = OnlyLogits(stock(name, tmp_path / name)).eval()
    torch.onnx.export(wrapped, tuple(inputs.values()), file, dynamo=True, verbose=False)
    session = runtime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    names = [each.name for each in session.get_inputs()]
    given = dict(zip(names, (value.numpy() for value in inputs.values()), strict=False))
    (found,) = session.run(None, given)
    assert torch.allclose(torch.from_numpy(found), logits(model, inputs), atol=1e-4)


@pytest.mark.slow
def test_compile(tmp_path: Path) -> None:
    model, inputs = saved("llama", tmp_path)
    compiled = torch.compile(stock("llama", tmp_path), backend="aot_eager")
    assert torch.allclose(logits(compiled, inputs), logits(model, inputs), atol=1e-5)


def test_dynamic_int8(tmp_path: Path) -> None:
    model, inputs = saved("bert", tmp_path)
    before = logits(model, inputs)
    small = torch.ao.quantization.quantize_dynamic(load_pruned(tmp_path), {torch.nn.Linear}, dtype=torch.qint8)
    assert (logits(small, inputs) - before).norm() <= 0.1 * before.norm()


def test_device_map(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    model, inputs = saved("llama", tmp_path)
    placed = stock("llama", tmp_path, device_map="cpu")
    assert torch.allclose(logits(placed, inputs), logits(model, inputs), atol=1e-6)


def test_a_peft_model_is_merged_first(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    tuned = peft.get_peft_model(llama(), peft.LoraConfig(r=2, init_lora_weights=False)).eval()
    with pytest.raises(OattnError, match="merge_and_unload"):
        PruningPlan.from_heads(tuned, HEADS).apply(tuned, inputs=[IDS])
    merged = copy.deepcopy(tuned).merge_and_unload()
    assert PruningPlan.from_heads(merged, HEADS).apply(merged, inputs=[IDS], measure=False)


def test_a_quantised_model_is_refused() -> None:
    small = torch.ao.quantization.quantize_dynamic(bert(), {torch.nn.Linear}, dtype=torch.qint8)
    with pytest.raises(OattnError, match=r"quanti.*full precision"):
        PruningPlan.from_heads(small, HEADS).apply(small, inputs=[IDS])


def test_a_model_without_values_is_refused() -> None:
    model = llama()
    model.model.layers[0].self_attn.o_proj.to("meta")
    with pytest.raises(OattnError, match=r"has no values.*Load it with its weights"):
        PruningPlan.from_heads(model, HEADS).apply(model, inputs=[IDS])
