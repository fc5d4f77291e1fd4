"""What is reloaded is what was saved: base and task classes of every family, by our loader and by transformers' own."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from oattn_hub.pruning import PruningPlan, load_pruned
from oattn_hub.pruning.proof import outputs_of
from oattn_hub.pruning.readout import tensors_in
from oattn_hub.pruning.sites import all_heads, head_sites, shared_layers

# Families whose weights transformers renames, splits or joins on their way to the disk, and some that it does not.
_LISTS = (Path(__file__).parents[1] / "data/reload_classes.txt").read_text(encoding="utf-8")
NAMED, OTHERS = (part.split() for part in _LISTS.removeprefix("named").split("others"))


def pruned_of(model: Any, inputs: dict[str, torch.Tensor]) -> Any:
    """The model without a third of its heads."""
    sites = head_sites(model)
    shared = {layer for layers in shared_layers(sites) for layer in layers}
    heads = all_heads(sites)
    some = [head for head in random.Random(0).sample(heads, max(1, len(heads) // 3)) if head[0] not in shared]
    chosen = some or [head for head in heads if head[1] == 0]
    return PruningPlan.from_heads(model, chosen).apply(model, inputs=[inputs], measure=False)


def reloads(name: str, classes: Any, folder: Path) -> None:
    import transformers

    model = classes.tiny(name)
    inputs = classes.call(model)
    pruned = pruned_of(model, inputs)
    pruned.save_pretrained(folder, verify=False)
    mapping = json.loads((folder / "config.json").read_text()).get("auto_map", {name: ""})
    auto = next(auto for auto, served in mapping.items() if served.endswith(f".{name}") or auto == name)
    stock = getattr(transformers, auto).from_pretrained(folder, trust_remote_code=True)
    expected = outputs_of(pruned.loaded, inputs)
    for again in (load_pruned(folder), stock):
        assert {key: value.shape for key, value in again.state_dict().items()} == {
            key: value.shape for key, value in pruned.model.state_dict().items()
        }
        for key, value in pruned.model.state_dict().items():
            assert torch.equal(again.state_dict()[key], value), key
        with torch.no_grad():
            found = tensors_in(again(**inputs))
        assert expected
        for key, value in expected.items():
            assert torch.allclose(found[key], value, rtol=1e-5, atol=1e-5 * value.abs().max().item()), key
    if mapping.get("AutoModel", f".{name}").endswith(f".{name}"):
        return
    base = transformers.AutoModel.from_pretrained(folder, trust_remote_code=True)
    inner = getattr(pruned.model, pruned.model.base_model_prefix).state_dict()
    shared = base.state_dict().keys() & inner.keys()  # a task may build its base with another part (ViT's mask token)
    assert len(shared) > len(inner) / 2
    for key in shared:
        assert torch.equal(base.state_dict()[key], inner[key]), key


@pytest.mark.parametrize("name", NAMED)
def test_named_classes(name: str, classes: Any, tmp_path: Path) -> None:
    reloads(name, classes, tmp_path / name)


@pytest.mark.slow
@pytest.mark.parametrize("name", OTHERS)
def test_other_classes(name: str, classes: Any, tmp_path: Path) -> None:
    reloads(name, classes, tmp_path / name)


# A checkpoint of the first class becomes a model for another task, with a new head.
TASKS = [
    ("BertModel", "AutoModelForSequenceClassification"),
    ("BertForMaskedLM", "AutoModelForTokenClassification"),
    ("LlamaForCausalLM", "AutoModelForSequenceClassification"),
    ("ViTModel", "AutoModelForImageClassification"),
    ("Wav2Vec2Model", "AutoModelForCTC"),
]


@pytest.mark.parametrize(("name", "auto"), TASKS)
def test_a_pruned_model_gets_a_new_head(name: str, auto: str, classes: Any, tmp_path: Path) -> None:
    import transformers

    model = classes.tiny(name)
    pruned = pruned_of(model, classes.call(model))
    base = getattr(pruned.model, pruned.model.base_model_prefix, pruned.model)
    folder = pruned.save_pretrained(tmp_path / name, verify=False)
    tuned = getattr(transformers, auto).from_pretrained(folder, trust_remote_code=True)
    of_base = getattr(tuned, tuned.base_model_prefix).state_dict()
    shared = of_base.keys() & base.state_dict().keys()
    assert len(shared) >= len(of_base) - 2  # BERT's pooler may be new
    assert all(torch.equal(of_base[key], base.state_dict()[key]) for key in shared)
    tuned.save_pretrained(tmp_path / f"{name}_tuned")
    for again in (
        getattr(transformers, auto).from_pretrained(tmp_path / f"{name}_tuned", trust_remote_code=True),
        load_pruned(tmp_path / f"{name}_tuned"),
    ):
        assert type(again).__name__ == type(tuned).__name__
        assert all(torch.equal(again.state_dict()[key], value) for key, value in tuned.state_dict().items())


def test_a_new_head_forgives_no_missing_weight_of_the_base(classes: Any, tmp_path: Path) -> None:
    import transformers
    from safetensors.torch import load_file, save_file

    model = classes.tiny("BertModel")
    folder = pruned_of(model, classes.call(model)).save_pretrained(tmp_path / "lacking", verify=False)
    state = load_file(folder / "model.safetensors")
    state.pop("encoder.layer.1.attention.self.query.weight")
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"lacks bert\.encoder\.layer\.1\.attention\.self\.query"):
        transformers.AutoModelForSequenceClassification.from_pretrained(folder, trust_remote_code=True)
