"""A publish sends what the manifest names, nothing else, never through a link."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from oattn_hub.cli import main
from oattn_hub.errors import FormatError, InvalidInput, OattnError
from oattn_hub.files import read_json, write_json
from oattn_hub.files.documents import SEAL, sealed
from oattn_hub.hub import push_folder
from oattn_hub.hub.content import content_ids
from oattn_hub.pruning import PruningPlan

if TYPE_CHECKING:
    from oattn_hub.report import Report


@pytest.fixture
def checkpoint(bert_folder: Path, tmp_path: Path) -> Path:
    folder = tmp_path / "checkpoint"
    PruningPlan.from_heads(str(bert_folder), [(0, 1)]).apply(measure=False).save_pretrained(folder)
    return folder


@pytest.fixture
def saved_report(report: Report, tmp_path: Path) -> Path:
    return report.save(tmp_path / "saved")


def litter(folder: Path, outside: Path) -> None:
    """What lies around in people's folders."""
    outside.mkdir()
    (outside / "id_rsa").write_text("SECRET")
    for name in (".env", "train.log", "notes/todo.txt", ".git/config", "notes/.hidden", "old.safetensors", "x.json"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("SECRET")
    (folder / "key.json").symlink_to(outside / "id_rsa")
    (folder / "all.safetensors").symlink_to(outside / "id_rsa")
    (folder / "outside").symlink_to(outside)
    (folder / "loop").symlink_to(folder)
    (folder / "gone").symlink_to(folder / "nothing")


def published(folder: Path, out: Path, **options: Any) -> dict[str, int]:
    done = push_folder(folder, "me/x", dry_run=out, **options)
    for name in done.files:
        assert "include" in options or b"SECRET" not in (out / name).read_bytes()
    return done.files


@pytest.mark.parametrize("kind", ["checkpoint", "saved_report"])
def test_what_lies_around_in_the_folder_is_not_published(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    folder: Path = request.getfixturevalue(kind)
    clean = published(folder, tmp_path / "clean")
    litter(folder, tmp_path / "private")
    assert published(folder, tmp_path / "littered").keys() == clean.keys()


@pytest.mark.parametrize("kind", ["checkpoint", "saved_report"])
def test_include_adds_by_name_and_pattern(kind: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    folder: Path = request.getfixturevalue(kind)
    clean = published(folder, tmp_path / "clean")
    litter(folder, tmp_path / "private")
    files = published(folder, tmp_path / "more", include=["train.log", "notes/*"])
    assert files.keys() - clean.keys() == {"train.log", "notes/todo.txt"}
    assert files["train.log"] == len("SECRET")
    for pattern, error in {"outside/*": InvalidInput, "key.json": InvalidInput, "../private/id_rsa": FormatError,
                           ".git/config": FormatError, "/etc/passwd": FormatError, "none*": InvalidInput,
                           "loop/train.log": InvalidInput}.items():  # fmt: skip
        with pytest.raises(error):
            push_folder(folder, "me/x", dry_run=tmp_path / "no", include=[pattern])


def test_the_dry_run_shows_each_file_with_its_size(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkpoint / "LICENSE").write_text("x" * 1234)
    words = ["publish", str(checkpoint), "me/x", "--dry-run", str(tmp_path / "dry"), "--include", "LICENSE"]
    assert main(words) == 0
    printed = capsys.readouterr()
    shown = printed.out + printed.err
    assert "LICENSE  1,234 bytes" in shown
    assert f"model.safetensors  {(checkpoint / 'model.safetensors').stat().st_size:,} bytes" in shown


def test_a_file_of_the_manifest_that_is_a_link_is_not_followed(checkpoint: Path, tmp_path: Path) -> None:
    weights = checkpoint / "model.safetensors"
    weights.rename(tmp_path / "elsewhere.safetensors")
    weights.symlink_to(tmp_path / "elsewhere.safetensors")
    with pytest.raises(InvalidInput, match="is a link"):
        push_folder(checkpoint, "me/x", dry_run=tmp_path / "dry")


@pytest.mark.parametrize("name", ["../private", "/etc/passwd", "a/../../b", ".git/config", "a\\b", ""])
def test_a_manifest_cannot_name_files_outside_its_folder(checkpoint: Path, tmp_path: Path, name: str) -> None:
    (tmp_path / "private").write_text("SECRET")
    manifest = {key: value for key, value in read_json(checkpoint / "oattn_pruned.json").items() if key != SEAL}
    manifest["files"].append(name)
    was_sealed = SEAL in read_json(checkpoint / "oattn_pruned.json")
    write_json(checkpoint / "oattn_pruned.json", sealed(manifest) if was_sealed else manifest)
    with pytest.raises(OattnError):
        push_folder(checkpoint, "me/x", dry_run=tmp_path / "dry")


def test_links_and_loops_in_a_folder_are_our_own_error(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / ".oattn.lock").touch()
    (folder / "README.md").write_text("x")
    assert list(content_ids(folder)) == ["README.md"]
    (folder / "loop").symlink_to(folder)
    with pytest.raises(InvalidInput, match="loop is a link"):
        content_ids(folder)


def test_group_names_do_not_lead_out_of_the_folder(report: Report, tmp_path: Path) -> None:
    from dataclasses import replace

    from oattn_hub.hub import write_card
    from oattn_hub.hub.push import write_report_folder

    group = next(iter(report.groups.values()))
    names = ("../../escaped", "/tmp/escaped", "..", "a/b")
    hostile = replace(report, groups={name: replace(group, name=name) for name in names})
    place = tmp_path / "deep/er/place"
    hostile.save(tmp_path / "saved")
    hostile.save_figures(place / "figures")
    write_report_folder(hostile, place / "published")
    write_card(tmp_path / "saved", place / "card")
    outside = [path for path in tmp_path.rglob("*.png") if place not in path.parents]
    assert outside == []
    readme = (place / "published/README.md").read_text()
    assert "../" not in readme.split("## Where it comes from")[0].replace("../../escaped", "")


def test_html_in_a_model_id_is_shown_and_never_becomes_html(report: Report, tmp_path: Path) -> None:
    from dataclasses import replace

    from oattn_hub.hub.card import report_readme

    name = "<img src=x onerror=alert(1)><script>alert(2)</script>"
    hostile = replace(report, model=replace(report.model, id=name, architecture=name, license=name, revision=name))
    text = report_readme(hostile, [Path("heads.png")])
    body = text.split("<!-- oattn_hub: written", 1)[1]
    assert "<img" not in body
    assert "<script" not in body
    assert "&lt;img" in body
