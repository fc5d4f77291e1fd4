"""What every file format stands on: bounded reading, seals, checked safetensors, safe names, locks."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oattn_hub.errors import FormatError, LoadError, OattnError, StorageError
from oattn_hub.files import (
    atomic_path,
    folder_lock,
    read_header,
    read_json,
    read_sealed,
    read_tensors,
    safe_name,
    write_sealed,
    write_tensors,
    write_text,
)


@pytest.mark.parametrize(
    "text",
    ["[" * 5000 + "]" * 5000, '{"a":' * 200 + "1" + "}" * 200, "1" * 5000, '"\\ud800"', "{", "", "\ufeff{}"],
    ids=["brackets", "objects", "digits", "half a character", "cut off", "empty", "byte order mark"],
)
def test_json_that_would_trip_a_parser_is_refused_in_one_sentence(tmp_path: Path, text: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(FormatError, match=r"x\.json is not valid JSON"):
        read_json(path)


def test_a_file_larger_than_its_kind_needs_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with (tmp_path / "x.json").open("wb") as stream:
        stream.truncate(2**40)  # a sparse file: a terabyte that takes no room
    with pytest.raises(FormatError, match="1,099,511,627,776 bytes"):
        read_json(tmp_path / "x.json")


@pytest.mark.skipif(os.name == "nt", reason="no named pipes in folders")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "x.json")
    for read in (read_json, read_tensors):
        with pytest.raises(LoadError, match="not a plain file"):
            read(tmp_path / "x.json")
    with pytest.raises(LoadError):
        read_json(tmp_path)


def test_every_changed_byte_of_a_sealed_document_is_noticed(tmp_path: Path) -> None:
    path, value = tmp_path / "x.json", {"heads": [[0, 1]], "cost": 0.25, "name": "é"}
    write_sealed(path, value)
    assert read_sealed(path) == value
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with suppress(FormatError):
            assert read_sealed(path) == value  # a space became another kind of space


def test_a_document_without_its_seal_is_not_a_sealed_one(tmp_path: Path) -> None:
    for value in ({"heads": []}, [1], None):
        (tmp_path / "x.json").write_text(json.dumps(value))
        with pytest.raises(FormatError, match=r"x\.json"):
            read_sealed(tmp_path / "x.json")


def test_every_changed_byte_of_an_array_file_is_noticed(tmp_path: Path) -> None:
    path, arrays = tmp_path / "x.safetensors", {"a": np.arange(6.0), "b": np.zeros((0, 3), np.int32)}
    write_tensors(path, arrays)
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with suppress(FormatError):
            again = {name: array.tolist() for name, array in read_tensors(path).items()}
            assert again == {name: array.tolist() for name, array in arrays.items()}


def _file(header: Any, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def _entry(shape: Any, offsets: Any, dtype: Any = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    "content",
    [
        b"", b"1234567", _file({}, length=2**63), _file(b"[]"), _file(b"{"), _file({"a": 1}), _file({"a": {}}),
        _file({"a": _entry([2**40, 2**40], [0, 4])}, bytes(4)), _file({"a": _entry([1], [0, 2**60])}, bytes(4)),
        _file({"a": _entry([-1], [0, 4])}, bytes(4)), _file({"a": _entry([1.0], [0, 4])}, bytes(4)),
        _file({"a": _entry([1], [0, 4], "F33")}, bytes(4)), _file({"a": _entry([1], [0, 4], [])}, bytes(4)),
        _file({"a": _entry([1], [4, 8])}, bytes(8)), _file({"a": _entry([1], [0, 4])}, bytes(5)),
        _file({"a": _entry([1], [0, 4]), "b": _entry([1], [0, 4])}, bytes(4)),
        _file({"__metadata__": {"a": 1}}), _file({"__metadata__": []}), _file({"a": _entry([0] * 40, [0, 0])}),
        _file(b'{"a":' * 5000), _file({"a": {**_entry([1], [0, 4]), "more": 1}}, bytes(4)),
    ],
)  # fmt: skip
def test_a_lying_safetensors_header_is_refused_before_memory_is_taken(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(content)
    for read in (read_tensors, read_header):
        with pytest.raises(FormatError, match=r"x\.safetensors"):
            read(path)


@pytest.mark.parametrize(
    "name",
    ["../up", "/etc/passwd", "a/b", "a\\b", "..", ".", "", ".git", "con", "a\x00b", "a\nb", "x" * 300, "ü", "a."],
)
def test_a_name_from_a_file_is_one_part_of_a_path(tmp_path: Path, name: str) -> None:
    safe = safe_name(name)
    assert (tmp_path / safe).resolve().parent == tmp_path.resolve()
    assert len(safe) <= 100
    assert safe_name(safe) == safe
    assert safe != safe_name(name + "2")
    (tmp_path / f"{safe}.png").touch()


def test_drafts_of_a_killed_process_go_away_with_the_next_write(tmp_path: Path) -> None:
    code = f"""
import os, signal
from pathlib import Path
from oattn_hub.files import atomic_path
with atomic_path(Path({str(tmp_path / "x.json")!r})) as draft:
    draft.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", code], check=False)
    assert len(list(tmp_path.iterdir())) == 1
    with atomic_path(tmp_path / "x.json") as mine, atomic_path(tmp_path / "x.json") as other:
        assert mine != other  # two threads write the same file
        mine.write_text("1")
        other.write_text("2")
        assert len(list(tmp_path.iterdir())) == 2  # a living process keeps its drafts
    assert [path.name for path in tmp_path.iterdir()] == ["x.json"]


def test_a_full_disk_is_one_sentence_whoever_reports_it(tmp_path: Path) -> None:
    from safetensors import SafetensorError

    with pytest.raises(StorageError, match="No space left"), atomic_path(tmp_path / "x") as draft:
        draft.touch()
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")
    assert list(tmp_path.iterdir()) == []


def test_a_lock_is_held_by_one_and_names_its_holder(tmp_path: Path) -> None:
    with (
        folder_lock(tmp_path),
        pytest.raises(StorageError, match=f"process {os.getpid()}"),
        folder_lock(tmp_path, wait=0),
    ):
        pass
    with folder_lock(tmp_path, wait=0):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_lock_of_a_killed_owner_is_free(tmp_path: Path) -> None:
    code = f"""
import os, signal
from pathlib import Path
from oattn_hub.files import folder_lock
with folder_lock(Path({str(tmp_path)!r})):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", code], check=False)
    assert len(list(tmp_path.iterdir())) == 1
    with folder_lock(tmp_path, wait=0):
        pass


def test_many_who_wait_for_a_lock_get_it_one_after_the_other(tmp_path: Path) -> None:
    inside, seen = [], []

    def work() -> None:
        for _ in range(10):
            with folder_lock(tmp_path / "run"):
                inside.append(1)
                seen.append(len(inside))
                write_text(tmp_path / "run/x", "1")
                inside.pop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == [1] * 40


def test_a_folder_that_cannot_be_locked_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(OattnError, match="file"), folder_lock(tmp_path / "file"):
        pass


def test_array_files_are_plain_safetensors_and_equal_arrays_give_equal_bytes(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    kinds = ("?", "u1", "i2", ">i4", "f2", "<f4", ">f8", "c8", "u8")
    arrays = {f"ä/{kind}": np.arange(6).reshape(2, 3).astype(kind) for kind in kinds} | {"none": np.zeros((0, 4))}
    for name in ("a", "b"):
        write_tensors(tmp_path / name, arrays, {"format": "x", "more": "y", "last": "z"})
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    for again in (load_file(tmp_path / "a"), read_tensors(tmp_path / "a")):
        assert again.keys() == arrays.keys()
        for name, array in again.items():
            np.testing.assert_array_equal(array, arrays[name])
            assert array.shape == arrays[name].shape


def test_an_array_file_that_lost_its_seal_is_not_one_of_ours(tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    save_file({"a": np.zeros(3)}, tmp_path / "x.safetensors")
    assert read_tensors(tmp_path / "x.safetensors")["a"].shape == (3,)
    with pytest.raises(FormatError, match="SHA-256"):
        read_tensors(tmp_path / "x.safetensors", sealed=True)
    write_tensors(tmp_path / "x.safetensors", {"a": np.zeros(3)})
    assert read_tensors(tmp_path / "x.safetensors", sealed=True)["a"].shape == (3,)
