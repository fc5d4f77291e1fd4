"""A checkpoint that is not whole is refused with one sentence: by our loader, and by the file that travels with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from oattn_hub.errors import FormatError, SurgeryError
from oattn_hub.files import sealed, sha256_file
from oattn_hub.pruning import PruningPlan, load_pruned
from oattn_hub.pruning.portable import add_bias
from oattn_hub.pruning.proof import run_without_us

State = dict[str, torch.Tensor]


def saved(folder: Path, name: str = "bert") -> Any:
    """A pruned model with a head on it, saved to ``folder``."""
    import transformers

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    if name == "bert":
        model = transformers.BertForMaskedLM(transformers.BertConfig(vocab_size=60, **sizes))
    else:
        model = transformers.ViTForImageClassification(transformers.ViTConfig(image_size=32, patch_size=8, **sizes))
    pruned = PruningPlan.from_heads(model, [(0, 1), (1, 0), (1, 2)]).apply(model)
    pruned.save_pretrained(folder)
    return pruned


def rehash(folder: Path) -> None:
    """As an honest-looking forger would: the manifest names the hashes of what is there now."""
    manifest = json.loads((folder / "oattn_pruned.json").read_text())
    manifest["sha256"] = {name: sha256_file(folder / name) for name in manifest["sha256"]}
    (folder / "oattn_pruned.json").write_text(json.dumps(sealed(manifest)))


def tamper(folder: Path, change: Callable[[State, str], None]) -> str:
    """Change one weight of the saved file; returns the name that it has there."""
    state = load_file(folder / "model.safetensors")
    name = next(key for key in sorted(state) if key.endswith("query.weight") or key.endswith("q_proj.weight"))
    change(state, name)
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    rehash(folder)
    return name


def drop(state: State, name: str) -> None:
    del state[name]


def rename(state: State, name: str) -> None:
    state[f"{name}_too"] = state[name].clone()


def shrink(state: State, name: str) -> None:
    state[name] = state[name][:-1].clone()


def spoil(state: State, name: str) -> None:
    state[name][0, 0] = float("nan")


def overflow(state: State, name: str) -> None:
    state[name][0, 0] = float("inf")


def round_off(state: State, name: str) -> None:
    state[name] = (100 * state[name]).to(torch.int64)


CHANGES = [
    (drop, "lacks"),
    (rename, "too many"),
    (shrink, "shape|size"),
    (spoil, "not finite"),
    (overflow, "not finite"),
    (round_off, "integers"),
]


@pytest.mark.parametrize("family", ["bert", "vit"])
@pytest.mark.parametrize(("change", "words"), CHANGES)
def test_our_loader(tmp_path: Path, family: str, change: Any, words: str) -> None:
    saved(tmp_path, family)
    tamper(tmp_path, change)
    with pytest.raises(FormatError, match=words):
        load_pruned(tmp_path)


@pytest.mark.parametrize("auto", ["AutoModelForMaskedLM", "AutoModel"])
@pytest.mark.parametrize(("change", "words"), CHANGES)
def test_the_file_that_travels(tmp_path: Path, auto: str, change: Any, words: str) -> None:
    import transformers

    folder = tmp_path / f"{change.__name__}_{auto}"
    saved(folder)
    tamper(folder, change)
    with pytest.raises((ValueError, RuntimeError), match=words):
        getattr(transformers, auto).from_pretrained(folder, trust_remote_code=True)


@pytest.mark.parametrize(("change", "words"), CHANGES)
def test_timm(tmp_path: Path, zoo: Any, change: Any, words: str) -> None:
    """Both ways of a timm checkpoint go through the same check."""
    model, inputs = zoo.BY_NAME["timm-vit"].build()
    arguments = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4}
    pruned = PruningPlan.from_heads(model, [(0, 1), (1, 2)]).apply(model, inputs=[inputs])
    pruned.save_pretrained(tmp_path, model_args=arguments)
    state = load_file(tmp_path / "model.safetensors")
    change(state, "blocks.0.attn.qkv.weight")
    save_file(state, tmp_path / "model.safetensors", {"format": "pt"})
    rehash(tmp_path)
    with pytest.raises(FormatError, match=words):
        load_pruned(tmp_path)
    scope: dict[str, Any] = {"__name__": "modeling_pruned"}
    exec((tmp_path / "modeling_pruned.py").read_text(), scope)
    with pytest.raises(ValueError, match=words):
        scope["create_model"](tmp_path)


def test_timm_with_another_plan(tmp_path: Path, zoo: Any) -> None:
    model, inputs = zoo.BY_NAME["timm-vit"].build()
    arguments = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4}
    pruned = PruningPlan.from_heads(model, [(0, 1), (1, 2)]).apply(model, inputs=[inputs])
    pruned.save_pretrained(tmp_path, model_args=arguments)
    disagree(tmp_path)
    with pytest.raises(FormatError, match="disagree on head 0 of layer 1"):
        load_pruned(tmp_path)
    scope: dict[str, Any] = {"__name__": "modeling_pruned"}
    exec((tmp_path / "modeling_pruned.py").read_text(), scope)
    with pytest.raises(ValueError, match="disagree on head 0 of layer 1"):
        scope["create_model"](tmp_path)


def lack_what_the_class_may_lack(state: State) -> None:
    del state["final_logits_bias"]


def have_what_the_class_may_have(state: State) -> None:
    state["model.encoder.version"] = torch.zeros(3)


def spoil_a_buffer(state: State) -> None:
    state["final_logits_bias"][0, 0] = float("nan")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lack_what_the_class_may_lack, "lacks final_logits_bias"),
        (have_what_the_class_may_have, "too many: model.encoder.version"),
        (spoil_a_buffer, "final_logits_bias holds values that are not finite"),
    ],
)
def test_what_transformers_lets_pass(tmp_path: Path, classes: Any, change: Any, words: str) -> None:
    """A class forgives checkpoints of the original some keys; a pruned one was saved whole. Buffers are weights too."""
    import transformers

    model, folder = classes.tiny("BartForConditionalGeneration"), tmp_path / change.__name__
    inputs = [classes.call(model)]
    PruningPlan.from_heads(model, [(0, 1)]).apply(model, inputs=inputs, measure=False).save_pretrained(folder)
    state = load_file(folder / "model.safetensors")
    change(state)
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    rehash(folder)
    with pytest.raises(FormatError, match=words):
        load_pruned(folder)
    with pytest.raises(ValueError, match=words):
        transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True)


def disagree(folder: Path) -> None:
    """Let the manifest name another head than the cuts remove."""
    manifest = json.loads((folder / "oattn_pruned.json").read_text())
    manifest["plan"]["heads"] = [[0, 1], [1, 0], [1, 3]]
    (folder / "oattn_pruned.json").write_text(json.dumps(sealed(manifest)))


def leave_too_much(folder: Path) -> None:
    """Let the cuts leave more features than the heads that they name."""
    config = json.loads((folder / "config.json").read_text())
    cut = next(
        cut for cut in config["oattn_pruning"]["keep"] if cut["tensor"].endswith("0.attention.output.dense.weight")
    )
    cut["ranges"] = [[0, 32]]
    (folder / "config.json").write_text(json.dumps(config))
    rehash(folder)


@pytest.mark.parametrize(
    ("change", "words"), [(disagree, "disagree on head 2 of layer 1"), (leave_too_much, "leave 32 of 32 features")]
)
def test_a_plan_that_disagrees_with_the_cuts(tmp_path: Path, change: Any, words: str) -> None:
    import transformers

    folder = tmp_path / change.__name__
    saved(folder)
    change(folder)
    with pytest.raises(FormatError, match=words):
        load_pruned(folder)
    for auto in (transformers.AutoModelForMaskedLM, transformers.AutoModel):
        with pytest.raises(ValueError, match=words):
            auto.from_pretrained(folder, trust_remote_code=True)


def test_a_config_that_its_class_refuses(tmp_path: Path) -> None:
    saved(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": "two"}))
    rehash(tmp_path)
    with pytest.raises(FormatError, match="refused by BertConfig"):
        load_pruned(tmp_path)


@pytest.mark.fresh_process
def test_a_process_without_us_refuses_it_too(tmp_path: Path) -> None:
    saved(tmp_path)
    disagree(tmp_path)
    way = {"loader": "AutoModelForMaskedLM", "options": {"trust_remote_code": True}}
    with pytest.raises(SurgeryError, match="disagree on head 2 of layer 1"):
        run_without_us(tmp_path, way, {"input_ids": torch.arange(3, 15)[None]})


def test_a_masked_head_that_speaks(tmp_path: Path) -> None:
    pruned = saved(tmp_path / "cut")
    pruned.save_pretrained(tmp_path, variant="masked")
    assert load_pruned(tmp_path) is not None
    manifest = json.loads((tmp_path / "oattn_pruned.json").read_text())
    manifest["plan"]["heads"].append([0, 2])
    (tmp_path / "oattn_pruned.json").write_text(json.dumps(sealed(manifest)))
    with pytest.raises(FormatError, match="not all zero"):
        load_pruned(tmp_path)


def test_a_bias_that_the_family_does_not_have(tmp_path: Path) -> None:
    """What a refit of the output projection needs: the bias is cut list and weight, and comes back both ways."""
    import transformers

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48, "vocab_size": 60}
    config = transformers.LlamaConfig(num_attention_heads=4, num_key_value_heads=2, **sizes)
    model = transformers.LlamaForCausalLM(config).eval()
    pruned = PruningPlan.from_heads(model, [(0, 1), (1, 0)]).apply(model)
    projection = pruned.model.model.layers[1].self_attn.o_proj
    pruned.cuts["bias"].append("model.layers.1.self_attn.o_proj")
    add_bias(projection)
    with torch.no_grad():
        projection.bias.copy_(torch.arange(32))
    folder = tmp_path / "with_bias"
    pruned.save_pretrained(folder)
    stock = transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True)
    ids = torch.arange(3, 15)[None]
    with torch.no_grad():
        for loaded in (load_pruned(folder), stock):
            assert torch.equal(loaded.model.layers[1].self_attn.o_proj.bias, torch.arange(32.0))
            assert torch.equal(loaded(ids).logits, pruned.model(ids).logits)
