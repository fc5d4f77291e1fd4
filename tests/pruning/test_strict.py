"""A checkpoint that is not whole is refused with one sentence: by our loader, and by the file that travels with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from oattn_hub.errors import FormatError
from oattn_hub.files import sealed, sha256_file
from oattn_hub.pruning import PruningPlan, load_pruned
from oattn_hub.pruning.portable import add_bias

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


def test_a_plan_that_names_other_heads(tmp_path: Path) -> None:
    saved(tmp_path)
    manifest = json.loads((tmp_path / "oattn_pruned.json").read_text())
    manifest["plan"]["heads"] = [[0, 1], [1, 0], [1, 3]]
    (tmp_path / "oattn_pruned.json").write_text(json.dumps(sealed(manifest)))
    with pytest.raises(FormatError, match="disagree on head 2 of layer 1"):
        load_pruned(tmp_path)


def test_cuts_that_leave_other_features(tmp_path: Path) -> None:
    saved(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    cut = next(
        cut for cut in config["oattn_pruning"]["keep"] if cut["tensor"].endswith("0.attention.output.dense.weight")
    )
    cut["ranges"] = [[0, 32]]
    (tmp_path / "config.json").write_text(json.dumps(config))
    rehash(tmp_path)
    with pytest.raises(FormatError, match="leave 32 of 32 features"):
        load_pruned(tmp_path)


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
