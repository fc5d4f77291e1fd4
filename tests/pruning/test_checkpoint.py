"""Checkpoints: they load with us, without us, and not at all once tampered with."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from oattn_hub.attention import load_model
from oattn_hub.errors import FormatError, InvalidInput, LoadError, SurgeryError
from oattn_hub.models.aligned import FEW_UNITS, units_apart
from oattn_hub.pruning import PruningPlan, load_pruned, migrate, read_manifest

WITHOUT_US = """
import sys, json
sys.modules["oattn_hub"] = None  # any import of it fails
import torch, transformers
folder, auto = sys.argv[1:]
model = getattr(transformers, auto).from_pretrained(folder, trust_remote_code=True).eval()
with torch.no_grad():
    output = model(input_ids=torch.arange(3, 15)[None])[0]
print(json.dumps([type(model).__name__, output.flatten()[:200].tolist()]))
"""


def run_without_us(folder: Path, auto: str, cache: Path) -> tuple[str, torch.Tensor]:
    environment = {"HF_HOME": str(cache), "PATH": "", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-c", WITHOUT_US, str(folder), auto]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=cache, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    name, values = json.loads(done.stdout.splitlines()[-1])
    return name, torch.tensor(values)


def pruned_masked_lm(folder: Path) -> Any:
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
    model = BertForMaskedLM(BertConfig(vocab_size=60, **sizes)).eval()
    pruned = PruningPlan.from_heads(model, [(0, 1), (1, 0), (1, 2), (2, 3)]).apply(model)
    pruned.save_pretrained(folder)
    return pruned


def test_loads_without_oattn_hub(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    pruned = pruned_masked_lm(folder)
    ids = torch.arange(3, 15)[None]
    with torch.no_grad():
        expected, hidden = pruned.model(input_ids=ids)[0], pruned.model.bert(input_ids=ids)[0]
    name, found = run_without_us(folder, "AutoModelForMaskedLM", tmp_path)
    assert name == "BertForMaskedLM"
    assert units_apart(found, expected.flatten()[:200]) <= FEW_UNITS
    name, found = run_without_us(folder, "AutoModel", tmp_path)
    assert name == "BertModel"
    assert units_apart(found, hidden.flatten()[:200]) <= FEW_UNITS


def test_our_loader_warns_of_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """transformers knows no "pruned_bert", and said so while it looked for a tokenizer."""
    pruned_masked_lm(tmp_path)
    capsys.readouterr()
    warnings: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: warnings.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("transformers").addHandler(handler)
    try:
        load_model(tmp_path)
    finally:
        logging.getLogger("transformers").removeHandler(handler)
    assert (warnings, capsys.readouterr().err) == ([], "")


@pytest.mark.parametrize("auto", ["AutoModelForMaskedLM", "AutoModel", "AutoConfig"])
def test_without_the_flag_the_error_names_it(tmp_path: Path, auto: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import transformers

    monkeypatch.setattr("builtins.input", lambda _: "n")  # transformers asks at a terminal
    pruned_masked_lm(tmp_path)
    with pytest.raises(ValueError, match="trust_remote_code=True"):
        getattr(transformers, auto).from_pretrained(tmp_path)


def test_load_model_takes_a_pruned_folder(tmp_path: Path, ids: dict[str, torch.Tensor], same_weights: Any) -> None:
    pruned = pruned_masked_lm(tmp_path)
    again = load_model(tmp_path).model
    assert same_weights(again, pruned.model)
    with torch.no_grad():
        assert units_apart(again(**ids)[0], pruned.model(**ids)[0]) <= FEW_UNITS


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "modeling_pruned.py"])
def test_a_tampered_checkpoint_is_refused(tmp_path: Path, name: str) -> None:
    pruned_masked_lm(tmp_path)
    content = bytearray((tmp_path / name).read_bytes())
    content[len(content) // 2] ^= 1
    (tmp_path / name).write_bytes(bytes(content))
    with pytest.raises(FormatError, match=f"{name} was changed"):
        load_pruned(tmp_path)


def test_an_incomplete_checkpoint_is_refused(tmp_path: Path) -> None:
    pruned_masked_lm(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(FormatError, match="missing"):
        load_pruned(tmp_path)
    (tmp_path / "oattn_pruned.json").unlink()
    with pytest.raises(FormatError, match="no complete pruned checkpoint"):
        load_pruned(tmp_path)
    with pytest.raises(LoadError, match="not a folder"):
        load_pruned(tmp_path / "nowhere")


def test_a_model_that_was_trained_on(tmp_path: Path, same_weights: Any) -> None:
    """transformers saves it without a manifest: our loader takes it all the same, and is as strict."""
    from safetensors.torch import load_file, save_file

    pruned_masked_lm(tmp_path / "pruned")
    model = load_model(tmp_path / "pruned").model
    with torch.no_grad():
        model.cls.predictions.bias.add_(1)
    model.save_pretrained(tmp_path / "trained")
    assert same_weights(load_model(tmp_path / "trained").model, model)
    assert same_weights(load_pruned(tmp_path / "trained"), model)
    weights = tmp_path / "trained/model.safetensors"
    state = load_file(weights)
    state.pop("cls.predictions.bias")
    save_file(state, weights, {"format": "pt"})
    with pytest.raises(FormatError, match=r"lacks cls\.predictions\.bias"):
        load_pruned(tmp_path / "trained")


def test_manifest_says_what_was_done(tmp_path: Path) -> None:
    pruned = pruned_masked_lm(tmp_path)
    manifest = read_manifest(tmp_path)
    assert manifest.plan == pruned.plan
    assert manifest.result.heads_after == 8
    assert manifest.result.parameters_after == sum(p.numel() for p in pruned.model.parameters())


@pytest.mark.parametrize("heads", [[(0, 1), (2, 3)], [(layer, 1) for layer in range(3)]], ids=["uneven", "plain"])
def test_who_loads_a_pruned_folder_knows_what_it_was_pruned_from(tmp_path: Path, heads: list[tuple[int, int]]) -> None:
    """Uneven layers are rebuilt by cuts; even ones are a plain checkpoint, which can be pruned again."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
    BertModel(BertConfig(vocab_size=60, **sizes)).save_pretrained(tmp_path / "base")
    PruningPlan.from_heads(tmp_path / "base", heads).apply(tmp_path / "base").save_pretrained(tmp_path / "pruned")
    original, info = load_model(tmp_path / "base").info, load_model(tmp_path / "pruned").info
    assert (info.base_model, info.removed) == (original.id, tuple(heads))
    again = PruningPlan.from_heads(tmp_path / "pruned", [(1, 0)])
    assert again.model.removed == tuple(heads)  # numbers of the original, where those of the plan are of what was left
    if read_manifest(tmp_path / "pruned").stock:
        assert again.apply(tmp_path / "pruned").result.heads_after == 8
    else:
        with pytest.raises(SurgeryError, match=rf"the original \({original.id}; plan\.model\.removed"):
            again.apply(tmp_path / "pruned")


def test_plan_survives_the_disk(tmp_path: Path, tiny_bert: Any) -> None:
    plan = PruningPlan.from_heads(tiny_bert, [(2, 1), (0, 3), (0, 3)])
    assert plan.heads == [(0, 3), (2, 1)]
    assert PruningPlan.load_file(plan.save(tmp_path / "plan.json")) == plan
    (tmp_path / "plan.json").write_text('{"schema": 9}')
    with pytest.raises(FormatError, match="not a pruning plan"):
        PruningPlan.load_file(tmp_path / "plan.json")


def test_timm_route(tmp_path: Path, zoo: Any) -> None:
    """The folder's own create_model, our loader, and timm itself for the masked variant."""
    model, inputs = zoo.BY_NAME["timm-vit"].build()
    arguments = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 4}
    pruned = PruningPlan.from_heads(model, [(0, 1), (1, 2)]).apply(model, inputs=[inputs])
    with pytest.raises(InvalidInput, match="model_args"):
        pruned.save_pretrained(tmp_path / "wrong")
    pruned.save_pretrained(tmp_path / "cut", model_args=arguments)
    with torch.no_grad():
        expected = pruned.model(inputs["x"])
        assert units_apart(load_pruned(tmp_path / "cut")(inputs["x"]), expected) <= FEW_UNITS
        scope: dict[str, Any] = {"__name__": "modeling_pruned"}
        exec((tmp_path / "cut/modeling_pruned.py").read_text(), scope)
        assert units_apart(scope["create_model"](tmp_path / "cut")(inputs["x"]), expected) <= FEW_UNITS
        import timm

        pruned.save_pretrained(tmp_path / "masked", variant="masked", model_args=arguments)
        stock = timm.create_model(f"local-dir:{tmp_path / 'masked'}", pretrained=True).eval()
        assert (stock(inputs["x"]) - expected).abs().max() <= 1e-5


def test_plain_module_needs_a_fresh_instance(tmp_path: Path, zoo: Any) -> None:
    specimen = zoo.BY_NAME["torch-encoder"]
    model, inputs = specimen.build()
    pruned = PruningPlan.from_heads(model, [(0, 1), (1, 2)]).apply(model, inputs=[inputs])
    pruned.save_pretrained(tmp_path)
    with pytest.raises(TypeError, match="only you can build"):
        load_pruned(tmp_path)
    with torch.no_grad():
        again = load_pruned(tmp_path, specimen.make())
        assert units_apart(again(**inputs), pruned.model(**inputs)) <= FEW_UNITS


def test_migrate_an_old_checkpoint(tmp_path: Path, tiny_bert: Any, ids: dict[str, torch.Tensor]) -> None:
    """An old checkpoint as transformers 4 wrote it: smaller weights, pruned_heads in the config, nothing else."""
    from safetensors.torch import save_file
    from transformers import BertModel

    removed = {0: [1, 2], 2: [0]}
    state, width = dict(tiny_bert.state_dict()), 8
    for layer, heads in removed.items():
        kept = [row for head in range(4) if head not in heads for row in range(head * width, (head + 1) * width)]
        prefix = f"encoder.layer.{layer}.attention"
        for name in ("query", "key", "value"):
            state[f"{prefix}.self.{name}.weight"] = state[f"{prefix}.self.{name}.weight"][kept].clone()
            state[f"{prefix}.self.{name}.bias"] = state[f"{prefix}.self.{name}.bias"][kept].clone()
        state[f"{prefix}.output.dense.weight"] = state[f"{prefix}.output.dense.weight"][:, kept].clone()
    old = tmp_path / "old"
    old.mkdir()
    save_file(state, old / "model.safetensors", {"format": "pt"})
    config = tiny_bert.config.to_dict() | {"architectures": ["BertModel"], "pruned_heads": {"0": [1, 2], "2": [0]}}
    (old / "config.json").write_text(json.dumps(config))
    with pytest.raises(RuntimeError):
        BertModel.from_pretrained(old)
    with torch.no_grad():
        plan = PruningPlan.from_heads(tiny_bert, [(0, 1), (0, 2), (2, 0)])
        with plan.masked(tiny_bert):
            expected = tiny_bert(**ids)[0]
        migrate(old, tmp_path / "new")
        assert (load_pruned(tmp_path / "new")(**ids)[0] - expected).abs().max() <= 1e-5
    config.pop("pruned_heads")
    (old / "config.json").write_text(json.dumps(config))
    with pytest.raises(InvalidInput, match="nothing to migrate"):
        migrate(old, tmp_path / "new")
