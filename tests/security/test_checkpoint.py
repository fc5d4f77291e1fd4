"""Pruned checkpoints of a stranger, whose manifest has a seal that fits."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from oattn_hub.errors import FormatError
from oattn_hub.files import read_json, sha256_file, write_json
from oattn_hub.files.documents import SEAL, sealed
from oattn_hub.hub import card_of
from oattn_hub.pruning import PruningPlan, load_pruned, read_manifest

if TYPE_CHECKING:
    from oattn_hub.report import Report

Change = Callable[[dict[str, Any]], Any]


@pytest.fixture(scope="module")
def whole(bert_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pruned") / "whole"
    PruningPlan.from_heads(str(bert_folder), [(0, 1)]).apply(measure=False).save_pretrained(folder)
    return folder


@pytest.fixture
def checkpoint(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "checkpoint"))


def rewrite(folder: Path, of_manifest: Change = dict, of_cuts: Change = dict) -> None:
    """Let a stranger change both files, and write checksums and seal that fit."""
    config = read_json(folder / "config.json")
    of_cuts(config["oattn_pruning"])
    write_json(folder / "config.json", config)
    manifest = {key: value for key, value in read_json(folder / "oattn_pruned.json").items() if key != SEAL}
    manifest["sha256"]["config.json"] = sha256_file(folder / "config.json")
    of_manifest(manifest)
    write_json(folder / "oattn_pruned.json", sealed(manifest))


MANIFESTS: dict[str, Change] = {
    "no plan": lambda m: m.pop("plan"),
    "no checksums": lambda m: m.pop("sha256"),
    "checksums in a list": lambda m: m.update(sha256=["config.json"]),
    "a plan of text": lambda m: m.update(plan="all"),
    "heads of text": lambda m: m["plan"].update(heads="all"),
    "heads below zero": lambda m: m["plan"].update(heads=[[0, -1]]),
    "more heads than there are": lambda m: m["plan"].update(n_heads=0),
    "a model of text": lambda m: m["plan"].update(model="bert"),
    "a model with a permission": lambda m: m["plan"]["model"].update(trust_remote_code=True),
    "a result of text": lambda m: m["result"].update(parameters_before="many"),
    "a class that is a number": lambda m: m.update({"class": 5}),
    "a class with a line of code": lambda m: m.update({"class": "BertModel\nimport evil"}),
    "a file outside": lambda m: m["sha256"].update({"../../etc/passwd": "0" * 64}),
    "an absolute file": lambda m: m["sha256"].update({"/etc/passwd": "0" * 64}),
    "a file with a NUL": lambda m: m["files"].append("a\0b"),
    "a file of a long name": lambda m: m["files"].append("x" * 5000),
}


@pytest.mark.parametrize("lie", MANIFESTS)
def test_a_manifest_that_does_not_fit_itself_is_refused(checkpoint: Path, lie: str) -> None:
    rewrite(checkpoint, of_manifest=MANIFESTS[lie])
    for use in (read_manifest, load_pruned, card_of):
        with pytest.raises(FormatError):
            use(checkpoint)


CUTS: dict[str, Change] = {
    "more than the memory": lambda c: c["keep"][0].update(ranges=[[0, 10**12]], size=10**12),
    "many times": lambda c: c["keep"][0].update(ranges=[[0, 32]] * 100_000),
    "before the start": lambda c: c["keep"][0].update(ranges=[[-5, 3]]),
    "no ranges": lambda c: c["keep"][0].pop("ranges"),
    "ranges of text": lambda c: c["keep"][0].update(ranges="all"),
    "a tensor that is not there": lambda c: c["keep"][0].update(tensor="no.such.weight"),
    "an axis that is not there": lambda c: c["keep"][0].update(axis=7),
    "a module that is not there": lambda c: c["set"].append({"module": "nowhere", "attribute": "a", "value": 1}),
    "a class for an attribute": lambda c: c["set"].append({"module": "", "attribute": "__class__", "value": 1}),
    "a behaviour that is not there": lambda c: c["behave"].append(
        {"module": "", "behaviour": "system", "arguments": {}}
    ),
    "lists that are numbers": lambda c: c.update(keep=5),
    "sites of text": lambda c: c.update(sites="all"),
    "another version": lambda c: c.update(version=99),
}


@pytest.mark.parametrize("lie", CUTS)
def test_cuts_that_do_not_fit_the_model_are_refused_before_memory_is_taken(checkpoint: Path, lie: str) -> None:
    rewrite(checkpoint, of_cuts=CUTS[lie])
    with pytest.raises(FormatError):
        load_pruned(checkpoint)


def test_a_manifest_that_lost_its_seal_is_refused(checkpoint: Path) -> None:
    manifest = read_json(checkpoint / "oattn_pruned.json")
    write_json(checkpoint / "oattn_pruned.json", {key: value for key, value in manifest.items() if key != SEAL})
    for use in (read_manifest, load_pruned, card_of):
        with pytest.raises(FormatError, match="was changed"):
            use(checkpoint)


def test_a_model_that_says_nothing_of_its_source_has_a_card(checkpoint: Path) -> None:
    rewrite(checkpoint, of_manifest=lambda manifest: manifest["plan"]["model"].pop("source"))
    assert card_of(checkpoint)


def test_no_line_of_code_comes_into_the_card_out_of_a_file(checkpoint: Path) -> None:
    """Readers copy what the card shows them, so a name in it must be a name."""
    config = read_json(checkpoint / "config.json")
    write_json(checkpoint / "config.json", {**config, "auto_map": {"AutoModel\nimport evil\n": "modeling_pruned.A"}})
    assert "evil" not in card_of(checkpoint)


def test_no_name_turns_the_direction_of_a_card(checkpoint: Path) -> None:
    turned = "bert\u202egnp\u2066\u200f"
    rewrite(checkpoint, of_manifest=lambda manifest: manifest["plan"]["model"].update(id=turned, revision=turned))
    assert not re.search("[\u200e\u200f\u202a-\u202e\u2066-\u2069]", card_of(checkpoint))


@pytest.mark.parametrize("change", [{"n_heads": 0}, {"heads": [[0, -1]]}, {"heads": [[0, head] for head in range(99)]}])
def test_a_plan_that_no_model_fits_is_refused(report: Report, change: dict[str, Any]) -> None:
    with pytest.raises(FormatError, match="The plan removes"):
        PruningPlan.from_json({**report.plan(heads=[(0, 1)]).to_json(), **change})


def test_an_honest_checkpoint_loads(checkpoint: Path) -> None:
    rewrite(checkpoint)
    assert load_pruned(checkpoint).training is False
