"""Files of a model that ask the libraries underneath for code, pickles or other models; unreadable cards."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from oattn_hub.errors import FormatError, LoadError, OattnError
from oattn_hub.files import read_json, sha256_file, write_json
from oattn_hub.files.documents import SEAL, sealed
from oattn_hub.models.load import load_model
from oattn_hub.models.screening import tensors_only
from oattn_hub.pruning import PruningPlan, load_pruned


@pytest.fixture
def model(bert_folder: Path, tmp_path: Path) -> Path:
    """A copy of the tiny BERT that a test may spoil."""
    return Path(shutil.copytree(bert_folder, tmp_path / "model"))


@pytest.fixture
def unpickled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What torch was asked to unpickle."""
    import torch

    asked: list[str] = []
    load = torch.load

    def noted(file: Any, *args: Any, **options: Any) -> Any:
        asked.append(str(file))
        return load(file, *args, **options)

    monkeypatch.setattr(torch, "load", noted)
    return asked


def set_config(folder: Path, **settings: Any) -> None:
    folder.mkdir(exist_ok=True)
    present = read_json(folder / "config.json") if (folder / "config.json").exists() else {}
    write_json(folder / "config.json", {**present, **settings})


@pytest.mark.parametrize(
    "settings",
    [
        {"attn_implementation": "evil/kernel"}, {"_attn_implementation": "evil/kernel@main:forward"},
        {"_attn_implementation_internal": "evil/kernel"}, {"experts_implementation": "evil/kernel"},
        {"attn_implementation": {"": "eager", "text_config": "evil/kernel"}},
        {"text_config": {"attn_implementation": "evil/kernel"}}, {"parts": [{"attn_implementation": "evil/kernel"}]},
    ],
)  # fmt: skip
def test_a_config_names_no_kernel_of_the_hub(model: Path, settings: dict[str, Any]) -> None:
    set_config(model, **settings)
    with pytest.raises(LoadError, match=r"which is code of the Hub.*--trust-remote-code"):
        load_model(str(model))


def test_a_pruned_checkpoint_names_no_kernel_either(model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "pruned"
    PruningPlan.from_heads(str(model), [(0, 1)]).apply(measure=False).save_pretrained(folder)
    set_config(folder, attn_implementation="evil/kernel")
    manifest = {key: value for key, value in read_json(folder / "oattn_pruned.json").items() if key != SEAL}
    manifest["sha256"]["config.json"] = sha256_file(folder / "config.json")
    write_json(folder / "oattn_pruned.json", sealed(manifest))
    with pytest.raises(LoadError, match="which is code of the Hub"):
        load_pruned(folder)


def test_an_ordinary_implementation_is_no_kernel(model: Path) -> None:
    set_config(model, attn_implementation="eager")
    assert load_model(str(model)).library == "transformers"


@pytest.mark.parametrize(
    "name", ["weights.bin", "../elsewhere.safetensors", "/elsewhere.safetensors", "deep/x.safetensors"]
)
def test_an_index_of_shards_names_safetensors_beside_it(model: Path, unpickled: list[str], name: str) -> None:
    import torch
    from safetensors.torch import load_file

    weights = load_file(model / "model.safetensors")
    (model / "model.safetensors").unlink()
    torch.save(weights, model / "weights.bin")
    write_json(model / "model.safetensors.index.json", {"metadata": {}, "weight_map": dict.fromkeys(weights, name)})
    with pytest.raises(LoadError, match="no safetensors beside it"):
        load_model(str(model))
    assert unpickled == []


@pytest.mark.parametrize("name", ["adapter_model.bin", "other.safetensors.index.json", "../x.safetensors", 5])
def test_a_config_names_safetensors_beside_it(model: Path, unpickled: list[str], name: Any) -> None:
    set_config(model, transformers_weights=name)
    with pytest.raises(OattnError, match="no safetensors beside it"):
        load_model(str(model))
    assert unpickled == []


def test_a_damaged_index_is_one_sentence(model: Path) -> None:
    for text in ("[]", "{}", '{"weight_map": 5}', "{"):
        (model / "model.safetensors.index.json").write_text(text)
        with pytest.raises(FormatError, match="index"):
            load_model(str(model))


def wrapper(model: Path, bomb: Path) -> None:
    set_config(
        model,
        model_type="timm_wrapper",
        architectures=["TimmWrapperModel"],
        architecture="vit_tiny_patch16_224",
        model_args={"checkpoint_path": str(bomb)},
    )


def wrapper_of_another(model: Path, bomb: Path) -> None:
    set_config(model, model_type="timm_wrapper", architectures=["TimmWrapperModel"], architecture=timm_folder(bomb))


def backbone(model: Path, bomb: Path) -> None:
    set_config(model, model_type="timm_backbone", architectures=["TimmBackbone"], backbone=timm_folder(bomb))


def backbone_within(model: Path, bomb: Path) -> None:
    inner = {"model_type": "timm_backbone", "backbone": timm_folder(bomb)}
    set_config(model, model_type="detr", architectures=["DetrModel"], backbone_config=inner)


def timm_folder(bomb: Path) -> str:
    """A timm model whose config names a pickle, as timm is told to load it."""
    folder = bomb.parent / "timm"
    set_config(folder, architecture="resnet18", model_args={"checkpoint_path": str(bomb)}, pretrained_cfg={})
    return f"local-dir:{folder}"


@pytest.mark.parametrize("spoil", [wrapper, wrapper_of_another, backbone, backbone_within])
def test_a_timm_model_within_a_model_decides_about_the_architecture_only(
    model: Path, tmp_path: Path, unpickled: list[str], spoil: Callable[[Path, Path], None]
) -> None:
    bomb = tmp_path / "bomb.bin"
    bomb.write_bytes(pickle.dumps(Bomb(tmp_path / "ran")))
    spoil(model, bomb)
    with pytest.raises(OattnError, match=r"config\.json (sets|names)"):
        load_model(str(model))
    assert unpickled == []
    assert not (tmp_path / "ran").exists()


class Bomb:
    """A pickle that leaves a mark when it is loaded."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


def test_whatever_a_library_unpickles_while_it_loads_are_tensors(tmp_path: Path) -> None:
    import torch

    (tmp_path / "bomb.bin").write_bytes(pickle.dumps(Bomb(tmp_path / "ran"), protocol=2))
    with tensors_only(), pytest.raises(pickle.UnpicklingError):
        torch.load(tmp_path / "bomb.bin", weights_only=False)
    assert not (tmp_path / "ran").exists()
    assert "TORCH_FORCE_WEIGHTS_ONLY_LOAD" not in os.environ


def test_the_guard_holds_until_the_last_thread_has_left(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "TORCH_FORCE_WEIGHTS_ONLY_LOAD"
    monkeypatch.setenv(name, "0")
    entered, leave = threading.Event(), threading.Event()

    def hold() -> None:
        with tensors_only():
            entered.set()
            leave.wait(60)

    other = threading.Thread(target=hold)
    with tensors_only():
        other.start()
        assert entered.wait(60)
    assert os.environ[name] == "1"
    leave.set()
    other.join()
    assert os.environ[name] == "0"


def test_an_adapter_is_said_to_be_one_and_its_base_is_not_loaded(model: Path, tmp_path: Path) -> None:
    adapter = {"base_model_name_or_path": "evil/base", "peft_type": "LORA", "auto_mapping": {"parent_library": "os"}}
    write_json(model / "adapter_config.json", adapter)
    for _ in range(2):
        with pytest.raises(LoadError, match=r"adapter .* of 'evil/base'.*PEFT"):
            load_model(str(model))
        (model / "config.json").unlink(missing_ok=True)  # most adapters come without one


# cards ----------------------------------------------------------------------------------------------------------------

CARDS = {
    "not YAML": "---\na: b: c\n---\n",
    "numbers for names": "---\n1: 2\n---\n",
    "nested without end": f"---\nx: {'[' * 3000}\n---\n",
    "no mapping": "---\n- a\n---\n",
    "never closed": "---\nlicense: mit\n",
    "a date": "---\nlicense: 2024-01-01\n---\n",
    "aliases": "---\na: &a [x, x]\nb: &b [*a, *a]\n" + "c: [*b, *b]\n" * 10_000 + "---\n",
}


@pytest.mark.parametrize("card", CARDS)
def test_a_card_that_nobody_can_read_keeps_no_model_from_being_loaded(model: Path, tmp_path: Path, card: str) -> None:
    (model / "README.md").write_text(CARDS[card])
    loaded = load_model(str(model))
    assert loaded.info.license is None
    PruningPlan.from_heads(loaded, [(0, 1)]).apply(measure=False).save_pretrained(tmp_path / "out", verify=False)


@pytest.mark.parametrize(("written", "understood"), [("mit", "mit"), ("[mit]", "mit"), ("[mit, apache-2.0]", "other")])
def test_one_licence_or_several_are_understood(model: Path, written: str, understood: str) -> None:
    (model / "README.md").write_text(f"---\nlicense: {written}\n---\n# A model\n")
    info = load_model(str(model)).info
    assert info.license == understood
    assert type(info).from_json(json.loads(json.dumps(info.to_json()))) == info


@pytest.mark.parametrize("text", ["5", "[5]", '{"a": 1}', "["])
def test_a_damaged_list_of_sentence_modules_is_one_sentence(model: Path, tmp_path: Path, text: str) -> None:
    (model / "modules.json").write_text(text)
    pruned = PruningPlan.from_heads(str(model), [(0, 1)]).apply(measure=False)
    with pytest.raises(FormatError, match=r"modules\.json"):
        pruned.save_pretrained(tmp_path / "out")


def test_sentence_modules_import_nothing(model: Path, tmp_path: Path) -> None:
    """``type`` names a class for sentence-transformers to import; here it is a text of a file that comes along."""
    modules = [{"idx": 0, "name": "0", "path": "", "type": "antigravity.Transformer"}]
    (model / "modules.json").write_text(json.dumps(modules))
    PruningPlan.from_heads(str(model), [(0, 1)]).apply(measure=False).save_pretrained(tmp_path / "out")
    import sys

    assert "antigravity" not in sys.modules
