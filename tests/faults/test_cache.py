"""The cache heals: whatever is damaged in it is made again, and the report is the one an undisturbed run gives."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import oattn_hub as oh
from oattn_hub.analysis import cache
from oattn_hub.analyzer import analyze
from oattn_hub.errors import CaptureError, StorageError
from oattn_hub.files import folder_lock

if TYPE_CHECKING:
    from oattn_hub.report import Report


class Stop(Exception):
    """The moment at which a run is interrupted."""


def batches() -> list[dict[str, Any]]:
    import torch

    made = torch.Generator().manual_seed(1)
    return [{"input_ids": torch.randint(0, 64, (1, 12), generator=made)} for _ in range(3)]


def run(model: Any, **options: Any) -> Report:
    return analyze(model, data=batches(), batches=3, tokens=12, **options)


def interrupted_at(stage: str, done: int) -> Callable[..., None]:
    def progress(name: str, count: int, total: int) -> None:
        if (name, count) == (stage, done):
            raise Stop

    return progress


@pytest.fixture(scope="module")
def expected(bert_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OATTN_HOME", str(tmp_path_factory.mktemp("undisturbed")))
        return run(str(bert_folder)).fingerprint


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 16
    path.write_bytes(content)


DAMAGES: dict[str, tuple[str, Callable[[Path], None]]] = {
    "a bit of a measurement": ("measured/*.safetensors", lambda path: flip(path, -5)),
    "a measurement cut off": ("measured/*.safetensors", lambda path: path.write_bytes(path.read_bytes()[:100])),
    "an empty measurement": ("measured/*.safetensors", lambda path: path.write_bytes(b"")),
    "a bit of captured attention": ("attention/batch-00000/*.safetensors", lambda path: flip(path, -5)),
    "a bit of a header": ("attention/batch-00000/*.safetensors", lambda path: flip(path, 40)),
    "captured attention gone": ("attention/batch-00000/*.safetensors", Path.unlink),
    "a cut off index": ("attention/index.json", lambda path: path.write_bytes(path.read_bytes()[:50])),
    "a changed index": ("attention/index.json", lambda path: flip(path, 200)),
    "a bit of the kept contexts": ("attention/contexts.json", lambda path: flip(path, 60)),
    "contexts cut off": ("attention/contexts.json", lambda path: path.write_bytes(path.read_bytes()[:30])),
    "contexts that are a number": ("attention/contexts.json", lambda path: path.write_text("5")),
    "an index that is a list": ("attention/index.json", lambda path: path.write_text("[]")),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_stage_is_made_again(home: Path, bert_folder: Path, expected: str, damage: str) -> None:
    with pytest.raises(Stop):
        run(str(bert_folder), progress=interrupted_at("organise", 2))
    pattern, spoil = DAMAGES[damage]
    found = sorted(home.glob(f"runs/*/{pattern}"))
    assert found
    spoil(found[0])
    assert run(str(bert_folder)).fingerprint == expected


def test_a_damaged_report_is_made_again(home: Path, bert_folder: Path, expected: str) -> None:
    for text in ("", "[]", "{", '{"format": "oattn_hub.report"}'):
        assert run(str(bert_folder)).fingerprint == expected
        next(home.glob("runs/*/report/report.json")).write_text(text)
    assert run(str(bert_folder)).fingerprint == expected


def test_a_damaged_note_of_a_request_is_no_answer(home: Path, bert_folder: Path) -> None:
    run(str(bert_folder))
    folder = next(home.glob("runs/*"))
    request = cache.Request(str(bert_folder), None, {}, {})
    made = cache.Run("x")
    made.folder = folder
    request.remember(made)
    assert request.answer() is not None
    (note,) = home.glob("requests/*.json")
    whole = note.read_text()
    for text in (whole[:20], "[]", '{"run": 5}', '{"run": "../.."}', whole.replace(folder.name, "0" * 32), ""):
        note.write_text(text)
        assert request.answer() is None
    request.remember(made)
    assert request.answer() is not None


def test_a_model_changed_with_equal_size_and_time_is_noticed(home: Path, bert_folder: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(bert_folder, tmp_path / "model")
    weights = tmp_path / "model/model.safetensors"
    before = cache._model_signature(str(tmp_path / "model"), {})
    times = weights.stat()
    flip(weights, -3)
    os.utime(weights, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert weights.stat().st_mtime_ns == times.st_mtime_ns
    assert cache._model_signature(str(tmp_path / "model"), {}) != before


def test_nan_in_attention_names_the_layer_and_the_head(home: Path, bert_folder: Path) -> None:
    import torch
    from transformers import BertModel

    model = BertModel.from_pretrained(bert_folder)
    with torch.no_grad():
        model.encoder.layer[1].attention.self.query.weight[16:24] = float("nan")  # type: ignore[union-attr, index]
    with pytest.raises(CaptureError, match=r"head 2 in layer 1 \(encoder\.layer\.1"):
        run(model)


def test_temporary_files_of_a_killed_process_go_away_at_the_next_start(
    home: Path, bert_folder: Path, expected: str
) -> None:
    from oattn_hub.files.atomic import _HOST

    with pytest.raises(Stop):
        run(str(bert_folder), progress=interrupted_at("organise", 2))
    folder = next(home.glob("runs/*/measured"))
    orphan = folder / f".x.safetensors.{_HOST}-{2**22 + 1}-01234567.part"  # no such process
    living = folder / f".x.safetensors.{_HOST}-{os.getpid()}-01234567.part"
    orphan.touch()
    living.touch()
    with pytest.raises(Stop):
        run(str(bert_folder), progress=interrupted_at("organise", 2))
    assert not orphan.exists()
    assert living.exists()
    assert run(str(bert_folder)).fingerprint == expected
    assert list(home.rglob("*.part")) == []


def test_a_clock_set_back_changes_nothing(home: Path, bert_folder: Path, expected: str) -> None:
    with pytest.raises(Stop):
        run(str(bert_folder), progress=interrupted_at("organise", 2))
    for path in home.rglob("*"):
        os.utime(path, (2_000_000_000, 2_000_000_000))  # as if written in the future
    assert run(str(bert_folder)).fingerprint == expected


def test_a_second_save_into_one_folder_says_who_holds_it(bert_folder: Path, tmp_path: Path) -> None:
    from oattn_hub.pruning import PruningPlan

    pruned = PruningPlan.from_heads(str(bert_folder), [(0, 1)]).apply(measure=False)
    with folder_lock(tmp_path / "out"), pytest.raises(StorageError, match=f"process {os.getpid()}"):
        pruned.save_pretrained(tmp_path / "out")
    pruned.save_pretrained(tmp_path / "out")
    assert not list((tmp_path / "out").glob(".*"))


def test_a_full_disk_under_prune_is_one_sentence(
    bert_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from safetensors import SafetensorError

    from oattn_hub.pruning import PruningPlan

    def full(*args: Any, **kwargs: Any) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    pruned = PruningPlan.from_heads(str(bert_folder), [(0, 1)]).apply(measure=False)
    monkeypatch.setattr(type(pruned.model), "save_pretrained", full)
    with pytest.raises(StorageError, match="No space left on device"):
        pruned.save_pretrained(tmp_path / "out")


def test_a_read_only_disk_is_one_sentence_whatever_is_written(
    home: Path, bert_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from oattn_hub.pruning import PruningPlan

    report = run(str(bert_folder))
    plan = PruningPlan.from_heads(str(bert_folder), [(0, 1)])
    pruned = plan.apply(measure=False)
    disk, mkdir = tmp_path / "disk", os.mkdir

    def read_only(path: Any, *args: Any) -> None:
        if Path(path).is_relative_to(disk):
            raise OSError(errno.EROFS, "Read-only file system")
        mkdir(path, *args)

    monkeypatch.setattr(os, "mkdir", read_only)
    monkeypatch.setenv("OATTN_HOME", str(disk / "home"))
    writers: list[Callable[[], Any]] = [
        lambda: report.save(disk / "report"),
        lambda: report.write_page(disk / "new/page.html"),
        lambda: report.save_figures(disk / "figures"),
        lambda: oh.adapt(pruned.model).hook(disk / "store"),
        lambda: plan.save(disk / "plans/plan.json"),
        lambda: pruned.save_pretrained(disk / "pruned"),
        lambda: run(str(bert_folder)),
    ]
    for write in writers:
        with pytest.raises(StorageError, match=f"Could not write {disk}.*: Read-only file system"):
            write()
