"""Saving proves itself: what was written is loaded again, with and without us, and everything that belongs is there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from oattn_hub.errors import InvalidInput, OattnError, SurgeryError
from oattn_hub.hub.checkpoint_card import checkpoint_readme
from oattn_hub.hub.tasks import task_of_class
from oattn_hub.models.load import load_model
from oattn_hub.pruning import PruningPlan, load_pruned, proof, read_manifest
from oattn_hub.pruning.belongings import copy_belongings


def llama(**more: Any) -> Any:
    import transformers

    torch.manual_seed(0)
    # a Llama config wants the hidden size to be a multiple of the number of heads: 48 is one of 8, 6, 4 and 3
    sizes = {
        "hidden_size": 48,
        "head_dim": 6,
        "num_hidden_layers": 2,
        "intermediate_size": 48,
        "vocab_size": 60,
        "pad_token_id": 0,
    }
    config = transformers.LlamaConfig(num_attention_heads=8, num_key_value_heads=4, **{**sizes, **more})
    return transformers.LlamaForCausalLM(config).eval()


def prune(model: Any, heads: list[tuple[int, int]], **options: Any) -> Any:
    inputs = {"input_ids": torch.arange(3, 15)[None]}
    return PruningPlan.from_heads(model, heads).apply(model, inputs=[inputs], measure=False, **options)


@pytest.mark.fresh_process
def test_a_checkpoint_is_loaded_in_a_process_without_us(tmp_path: Path) -> None:
    prune(llama(), [(0, 1), (1, 2), (1, 3)]).save_pretrained(tmp_path)
    verified = read_manifest(tmp_path).verified
    assert verified["oattn_hub.from_pretrained"] == "weights and outputs"
    assert "without oattn_hub" in verified["AutoModelForCausalLM"]


@pytest.mark.fresh_process
def test_a_file_that_does_not_load_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oattn_hub.pruning.checkpoint.transformers_source", lambda *_: "1 / 0")
    with pytest.raises(SurgeryError, match="ZeroDivisionError"):
        prune(llama(), [(0, 1)]).save_pretrained(tmp_path)
    assert not (tmp_path / "oattn_pruned.json").exists()


def test_outputs_that_differ_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(folder: Path, way: Any, batch: Any) -> Any:
        return {name: value + 0.01 for name, value in right(folder, way, batch).items()}

    right = proof.run_without_us
    monkeypatch.setattr(proof, "run_without_us", wrong)
    with pytest.raises(SurgeryError, match="logits differs by"):
        prune(llama(), [(0, 1)]).save_pretrained(tmp_path)
    assert not (tmp_path / "oattn_pruned.json").exists()
    with pytest.raises(OattnError, match="no complete pruned checkpoint"):
        load_pruned(tmp_path)


def test_other_weights_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that hardly change what the model says."""

    def wrong(folder: Path) -> Any:
        model = load_pruned(folder)
        model.lm_head.weight.data[0, 0] += 1e-6
        return model

    monkeypatch.setattr(proof, "load_pruned", wrong)
    with pytest.raises(SurgeryError, match=r"other weights.*lm_head"):
        prune(llama(), [(0, 1)]).save_pretrained(tmp_path)


def test_what_is_no_number_in_both_is_equal() -> None:
    """Masked logits are minus infinity, and a model may say NaN; so does its copy, which is no reason to refuse it."""
    said = {"logits": torch.tensor([1.0, float("-inf"), float("nan")])}
    proof.compare(said, {"logits": said["logits"].clone()}, "a copy")
    for other in ([1.0, float("-inf"), 0.0], [1.0, float("inf"), float("nan")], [1.0, 0.0, float("nan")]):
        with pytest.raises(SurgeryError, match="logits differs by"):
            proof.compare(said, {"logits": torch.tensor(other)}, "a copy")


def test_a_model_in_several_precisions_is_told_what_to_do(tmp_path: Path, zoo: Any) -> None:
    """Transformers loads all weights in one precision, which would round some of them."""
    model, inputs = zoo.BY_NAME["bert"].build()
    for name, parameter in model.bfloat16().named_parameters():
        if "LayerNorm" in name:
            parameter.data = parameter.data.float() + 1e-4
    pruned = PruningPlan.from_heads(model, [(0, 1)]).apply(model, inputs=[inputs], measure=False)
    with pytest.raises(SurgeryError, match=r"several precisions \(bfloat16, float32\).*model\.float\(\)"):
        pruned.save_pretrained(tmp_path / "mixed")
    assert not (tmp_path / "mixed/oattn_pruned.json").exists()


def test_a_class_that_cannot_be_loaded_in_its_precision_is_our_own_error(tmp_path: Path, zoo: Any) -> None:
    """Half of XLNet's weights are float32 however transformers loads them, so that it does not run in float16."""
    model, inputs = zoo.BY_NAME["xlnet"].build()
    pruned = PruningPlan.from_heads(model.half(), [(0, 1)]).apply(model, inputs=[inputs], measure=False)
    with pytest.raises(SurgeryError, match=r"does not run.*use float32"):
        pruned.save_pretrained(tmp_path)
    assert not (tmp_path / "oattn_pruned.json").exists()


def test_no_verification_is_written_down_and_said(tmp_path: Path) -> None:
    prune(llama(), [(0, 1)]).save_pretrained(tmp_path, verify=False)
    manifest = read_manifest(tmp_path)
    assert manifest.verified is None
    assert "**Not verified**" in checkpoint_readme(tmp_path, manifest)
    prune(llama(), [(0, 1)]).save_pretrained(tmp_path)
    card = checkpoint_readme(tmp_path, read_manifest(tmp_path))
    assert "Not verified" not in card
    assert "`AutoModelForCausalLM`" in card


def test_a_plan_without_heads_is_not_saved_unasked(tmp_path: Path) -> None:
    pruned = prune(llama(), [])
    with pytest.raises(InvalidInput, match="removes no head"):
        pruned.save_pretrained(tmp_path)
    pruned.save_pretrained(tmp_path, allow_empty=True)
    card = checkpoint_readme(tmp_path, read_manifest(tmp_path))
    assert "No head was removed" in card
    assert "smaller and does less work" not in card
    assert "None tokens" not in card


# One head of every group, a whole group of every layer, both at once
EVEN = {
    "one of each group": [(layer, head) for layer in range(2) for head in (0, 3, 5, 6)],
    "whole groups": [(0, 0), (0, 1), (1, 6), (1, 7)],
    "both": [(layer, head) for layer in range(2) for head in (0, 1, 2, 4, 6)],
}


@pytest.mark.parametrize("heads", EVEN.values(), ids=EVEN.keys())
def test_an_even_plan_is_a_plain_checkpoint(heads: list[tuple[int, int]], tmp_path: Path) -> None:
    import transformers

    pruned = prune(llama(), heads)
    pruned.save_pretrained(tmp_path)
    assert not (tmp_path / "modeling_pruned.py").exists()
    assert read_manifest(tmp_path).stock
    config = json.loads((tmp_path / "config.json").read_text())
    assert "auto_map" not in config
    assert "oattn_pruning" not in config
    assert config["model_type"] == "llama"
    stock = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    ids = torch.arange(3, 15)[None]
    with torch.no_grad():
        for again in (stock, load_pruned(tmp_path), load_model(tmp_path).model):
            assert torch.allclose(again(ids).logits, pruned.model(ids).logits, atol=1e-5)
    assert sum(p.numel() for p in stock.parameters()) == pruned.result.parameters_after
    card = checkpoint_readme(tmp_path, read_manifest(tmp_path))
    assert "trust_remote_code" not in card
    assert "plain checkpoint" in card


def test_an_even_plan_of_other_families(tmp_path: Path, zoo: Any) -> None:
    """Configs with a head width of their own can say it; BERT's and GPT-2's cannot, and that is said."""
    for name, stock in (("qwen3", True), ("gemma", True), ("bert", False), ("gpt2", False)):
        model, inputs = zoo.BY_NAME[name].build()
        heads = [(layer, head) for layer in range(2) for head in (0, 2)]
        pruned = PruningPlan.from_heads(model, heads).apply(model, inputs=[inputs], measure=False)
        pruned.save_pretrained(tmp_path / name)
        manifest = read_manifest(tmp_path / name)
        assert manifest.stock is stock, name
        if not stock:
            assert "cannot say that every layer has 2 heads" in manifest.needs_code_because
            assert "cannot say that every layer has 2 heads" in checkpoint_readme(tmp_path / name, manifest)


def test_an_uneven_plan_carries_its_code(tmp_path: Path) -> None:
    prune(llama(), [(0, 1)]).save_pretrained(tmp_path)
    assert read_manifest(tmp_path).needs_code_because == "its layers keep different numbers of heads"
    assert (tmp_path / "modeling_pruned.py").exists()
    prune(llama(), EVEN["both"]).save_pretrained(tmp_path)  # over the old one
    assert not (tmp_path / "modeling_pruned.py").exists()


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A model folder with everything that may lie in one."""
    folder = tmp_path / "base"
    llama().save_pretrained(folder)
    (tmp_path / "secret.txt").write_text("mine")
    (folder / "link.txt").symlink_to(tmp_path / "secret.txt")
    texts = {
        "tokenizer.json": "{}",
        "chat_template.jinja": "{{ messages }}",
        "LICENSE": "Apache",
        "source.spm": "words",
        "modules.json": json.dumps([{"path": ""}, {"path": "1_Pooling"}, {"path": "2_Dense"}]),
        "sentence_bert_config.json": '{"max_seq_length": 256}',
        "1_Pooling/config.json": "{}",
        "2_Dense/config.json": "{}",
        "2_Dense/model.safetensors": "weights",
        "2_Dense/pytorch_model.bin": "pickle",
        "onnx/config.json": "{}",
        "pytorch_model.bin": "pickle",
        "optimizer.pt": "pickle",
        "script.py": "1 / 0",
        ".git/config": "x",
        "README.md": "---\nlicense: mit\nlibrary_name: sentence-transformers\npipeline_tag: sentence-similarity\n---\n",
    }
    for name, text in texts.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)
    return folder


def test_what_belongs_to_the_base_travels(base: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    copy_belongings(load_model(base), out)
    found = {path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file()}
    assert found == {
        "tokenizer.json",
        "chat_template.jinja",
        "generation_config.json",
        "LICENSE",
        "source.spm",
        "modules.json",
        "sentence_bert_config.json",
        "1_Pooling/config.json",
        "2_Dense/config.json",
        "2_Dense/model.safetensors",
    }


def test_library_and_task_are_those_of_the_base(base: Path, tmp_path: Path) -> None:
    plan = PruningPlan.from_heads(load_model(base), [(0, 1)])
    plan.apply(load_model(base), measure=False).save_pretrained(tmp_path / "out", verify=False)
    card = checkpoint_readme(tmp_path / "out", read_manifest(tmp_path / "out"))
    assert "library_name: sentence-transformers" in card
    assert "pipeline_tag: sentence-similarity" in card


@pytest.mark.parametrize(
    ("name", "task"),
    [
        ("WhisperForConditionalGeneration", "automatic-speech-recognition"),
        ("T5ForConditionalGeneration", "translation"),
        ("ViTModel", "image-feature-extraction"),
        ("ViTForImageClassification", "image-classification"),
        ("Wav2Vec2ForCTC", "automatic-speech-recognition"),
        ("SegformerForSemanticSegmentation", "image-segmentation"),
        ("LlavaForConditionalGeneration", "image-text-to-text"),
        ("BertForMaskedLM", "fill-mask"),
        ("BertModel", "feature-extraction"),
        ("GPT2LMHeadModel", "text-generation"),
    ],
)
def test_the_task_of_a_class(name: str, task: str) -> None:
    assert task_of_class(name, "transformers") == task


def test_a_model_that_answers_with_a_tuple_is_proved_too() -> None:
    class Loaded:
        def forward(self, batch: Any) -> Any:
            return batch["x"], None, batch["x"] + 1

    found = proof.outputs_of(Loaded(), {"x": torch.ones(2)})  # type: ignore[arg-type]
    assert sorted(found) == ["0", "2"]
    assert torch.equal(found["2"], torch.full((2,), 2.0))
