"""Only the caller gives permission: nothing that a file or a repo says runs code, unpickles, or chooses a token."""

from __future__ import annotations

import json
import pickle
import shutil
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from oattn_hub.cli import main
from oattn_hub.errors import FormatError, InvalidInput, LoadError, OattnError
from oattn_hub.files import read_json, write_json
from oattn_hub.files.documents import SEAL, sealed
from oattn_hub.hub import from_pretrained, load_report
from oattn_hub.models.load import load_again, load_model
from oattn_hub.pruning import PruningPlan, evaluate
from oattn_hub.records import ModelInfo

if TYPE_CHECKING:
    from oattn_hub.report import Report

HOSTILE = {
    "trust_remote_code": True, "allow_pickle": True, "token": "hf_stolen", "cache_dir": "/somewhere",
    "local_files_only": False,
}  # fmt: skip


class Bomb:
    """A pickle that leaves a mark when it is loaded."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


@pytest.fixture
def code_model(bert_folder: Path, tmp_path: Path) -> Path:
    """A model that comes with code of its own, which leaves a mark when it is run."""
    folder = tmp_path / "attacker"
    shutil.copytree(bert_folder, folder)
    code = f"""
from pathlib import Path
Path({str(tmp_path / "ran")!r}).touch()
from transformers import BertConfig, BertModel
class EvilConfig(BertConfig):
    model_type = "evil"
class EvilModel(BertModel):
    config_class = EvilConfig
"""
    (folder / "evil.py").write_text(code)
    names = {"AutoConfig": "evil.EvilConfig", "AutoModel": "evil.EvilModel", "AutoTokenizer": [None, "evil.Tokenizer"]}
    config = {**read_json(folder / "config.json"), "model_type": "evil", "auto_map": names}
    write_json(folder / "config.json", config)
    write_json(folder / "tokenizer_config.json", {"tokenizer_class": "Tokenizer", "auto_map": names})
    return folder


def hostile_report(report: Report, source: Path, folder: Path, options: dict[str, Any]) -> Path:
    """A saved report whose model lies at ``source``, with the attacker's options written into its file."""
    report.save(folder)
    document = {key: value for key, value in read_json(folder / "report.json").items() if key != SEAL}
    document["model"] = {**document["model"], "source": str(source), "options": options}
    write_json(folder / "report.json", sealed(document))
    return folder


@pytest.mark.parametrize("options", [HOSTILE, {}, {"task": "base"}, {"trust_remote_code": "true"}])
def test_a_report_of_a_stranger_never_runs_code(
    report: Report, code_model: Path, tmp_path: Path, options: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    folder = hostile_report(report, code_model, tmp_path / "pulled", options)
    with pytest.raises(OattnError):
        load_report(folder).plan(heads=[(0, 1)]).apply()
    with pytest.raises(OattnError):
        load_report(folder).plan(max_loss_increase=0.5)
    with pytest.raises(OattnError):
        evaluate(load_report(folder), scores=["haar"])
    for words in (["prune", folder, "--fraction", "0.2", "--out", tmp_path / "out"], ["evaluate", folder]):
        assert main([str(word) for word in words]) != 0
    assert "Traceback" not in capsys.readouterr().err
    assert not (tmp_path / "ran").exists()


def test_a_plan_of_a_stranger_never_runs_code(report: Report, code_model: Path, tmp_path: Path) -> None:
    for options in (HOSTILE, {"trust_remote_code": "true"}):
        plain = report.plan(heads=[(0, 1)]).to_json()
        plain["model"] = {**plain["model"], "source": str(code_model), "options": options}
        (tmp_path / "plan.json").write_text(json.dumps(sealed(plain)))
        with pytest.raises(OattnError):
            PruningPlan.load_file(tmp_path / "plan.json").apply()
        assert main(["prune", str(tmp_path / "plan.json"), "--out", str(tmp_path / "out")]) != 0
    assert not (tmp_path / "ran").exists()


def test_a_caller_who_grants_it_gets_it(report: Report, code_model: Path, tmp_path: Path) -> None:
    folder = hostile_report(report, code_model, tmp_path / "pulled", {})
    plan = load_report(folder).plan(heads=[(0, 1)])
    with pytest.raises(LoadError, match="--trust-remote-code"):
        plan.apply()
    assert not (tmp_path / "ran").exists()
    with suppress(LoadError):  # its tokenizer is not there
        plan.apply(trust_remote_code=True, measure=False)
    assert (tmp_path / "ran").exists()


def test_what_a_file_says_about_loading_is_a_short_list() -> None:
    info = ModelInfo("m", source="owner/name", revision="a" * 40, options={**HOSTILE, "task": "base", "gguf_file": "x"})  # type: ignore[dict-item]
    assert info.loading_options == {"task": "base", "gguf_file": "x", "revision": "a" * 40}
    with pytest.raises(InvalidInput, match="checkpoint_path"):
        load_again(info, checkpoint_path="x")
    for name in ("../../x.gguf", "/etc/x.gguf"):
        with pytest.raises(InvalidInput, match="gguf_file"):
            load_model("owner/name", gguf_file=name)


# timm -----------------------------------------------------------------------------------------------------------------


@pytest.fixture
def timm_folder(tmp_path: Path) -> Path:
    """A tiny timm ViT, saved by timm itself."""
    import timm
    import torch
    from timm.models import save_for_hf

    torch.manual_seed(0)
    sizes = {"img_size": 32, "patch_size": 16, "embed_dim": 24, "depth": 1, "num_heads": 3, "num_classes": 5}
    model = timm.create_model("vit_tiny_patch16_224", **sizes)
    save_for_hf(model, tmp_path / "timm", model_args=sizes, safe_serialization=True)
    (tmp_path / "timm/pytorch_model.bin").unlink(missing_ok=True)
    return tmp_path / "timm"


@pytest.mark.parametrize(
    "argument",
    ["checkpoint_path", "pretrained_cfg", "pretrained_cfg_overlay", "cache_dir", "pretrained_filter_fn", "pretrained",
     "features_only", "unheard_of", "pruned", "model_cfg", "feature_cfg", "kwargs"],
)  # fmt: skip
def test_a_timm_config_decides_about_the_architecture_only(timm_folder: Path, tmp_path: Path, argument: str) -> None:
    bomb = tmp_path / "bomb.bin"
    bomb.write_bytes(pickle.dumps(Bomb(tmp_path / "ran")))
    config = read_json(timm_folder / "config.json")
    config["model_args"][argument] = str(bomb)
    write_json(timm_folder / "config.json", config)
    with pytest.raises(FormatError, match=argument):
        load_model(str(timm_folder))
    assert not (tmp_path / "ran").exists()


def test_where_a_timm_config_says_its_weights_are_does_not_count(timm_folder: Path, tmp_path: Path) -> None:
    import torch

    expected = load_model(str(timm_folder)).model
    bomb = tmp_path / "bomb.bin"
    bomb.write_bytes(pickle.dumps(Bomb(tmp_path / "ran")))
    config = read_json(timm_folder / "config.json")
    places = {
        "file": str(bomb),
        "url": f"file://{bomb}",
        "hf_hub_id": "evil/x",
        "custom_load": True,
        "source": "local-dir",
    }
    config["pretrained_cfg"] |= places
    write_json(timm_folder / "config.json", config)
    found = load_model(str(timm_folder)).model
    assert all(torch.equal(a, b) for a, b in zip(expected.parameters(), found.parameters(), strict=True))
    assert "state_dict" not in found.pretrained_cfg
    assert not (tmp_path / "ran").exists()


def test_an_unknown_architecture_or_odd_arguments_are_one_sentence(timm_folder: Path) -> None:
    config = read_json(timm_folder / "config.json")
    for change in (
        {"architecture": "evil"},
        {"architecture": 5},
        {"model_args": [1]},
        {"model_args": {"img_size": {}}},
    ):
        write_json(timm_folder / "config.json", {**config, **change})
        with pytest.raises(FormatError, match=r"config\.json"):
            load_model(str(timm_folder))


# pickles --------------------------------------------------------------------------------------------------------------


def pickled(folder: Path, mark: Path) -> Path:
    """The folder with its weights replaced by a pickle that leaves a mark."""
    for weights in folder.glob("*.safetensors"):
        weights.unlink()
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bomb(mark)))
    return folder


def test_no_pickle_is_loaded_unasked(bert_folder: Path, timm_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(bert_folder, tmp_path / "bert")
    for folder in (tmp_path / "bert", timm_folder):
        pickled(folder, tmp_path / "ran")
        for load in (load_model, from_pretrained):
            with pytest.raises(LoadError, match="allow_pickle"):
                load(str(folder))  # type: ignore[operator]
    assert not (tmp_path / "ran").exists()


def test_even_an_allowed_pickle_may_hold_tensors_only(timm_folder: Path, tmp_path: Path) -> None:
    import torch

    expected = load_model(str(timm_folder)).model
    for weights in timm_folder.glob("*.safetensors"):
        weights.unlink()
    torch.save(expected.state_dict(), timm_folder / "pytorch_model.bin")
    found = load_model(str(timm_folder), allow_pickle=True).model
    assert all(torch.equal(a, b) for a, b in zip(expected.parameters(), found.parameters(), strict=True))
    pickled(timm_folder, tmp_path / "ran")
    with pytest.raises(LoadError):
        load_model(str(timm_folder), allow_pickle=True)
    assert not (tmp_path / "ran").exists()


def test_a_pruned_checkpoint_is_loaded_from_safetensors_only(
    bert_folder: Path, timm_folder: Path, tmp_path: Path
) -> None:
    from oattn_hub.files import sha256_file

    for number, source in enumerate((bert_folder, timm_folder)):
        folder = tmp_path / f"pruned-{number}"
        options = {"model_args": read_json(source / "config.json")["model_args"]} if source == timm_folder else {}
        PruningPlan.from_heads(str(source), [(0, 1)]).apply(measure=False).save_pretrained(folder, **options)
        pickled(folder, tmp_path / "ran")
        manifest = {key: value for key, value in read_json(folder / "oattn_pruned.json").items() if key != SEAL}
        names = [path.name for path in folder.iterdir() if path.name != "oattn_pruned.json" and path.is_file()]
        manifest["sha256"] = {name: sha256_file(folder / name) for name in names}
        was_sealed = SEAL in read_json(folder / "oattn_pruned.json")
        write_json(folder / "oattn_pruned.json", sealed(manifest) if was_sealed else manifest)
        with pytest.raises(OattnError):
            from_pretrained(folder)
    assert not (tmp_path / "ran").exists()
