"""Files are written whole or not at all."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from oattn_hub.errors import FormatError, LoadError, StorageError
from oattn_hub.files import atomic_path, fingerprint, read_json, read_tensors, sha256_file, write_json, write_tensors


def test_a_failed_write_leaves_the_old_file_and_no_draft(tmp_path: Path) -> None:
    target = tmp_path / "value.json"
    write_json(target, {"old": 1})
    with pytest.raises(RuntimeError, match="stop"), atomic_path(target) as draft:
        draft.write_text("half")
        raise RuntimeError("stop")
    assert read_json(target) == {"old": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["value.json"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("")
    with pytest.raises(StorageError, match=str(blocker)):
        write_json(blocker / "value.json", 1)


def test_nan_never_becomes_json(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "value.json", float("nan"))
    assert not list(tmp_path.iterdir())


def test_tensors_come_back_bit_identical(tmp_path: Path) -> None:
    arrays = {"a": np.arange(6, dtype=np.float32).reshape(2, 3).T, "b": np.array([np.nan, -0.0])}
    write_tensors(tmp_path / "x.safetensors", arrays, {"schema": "1"})
    again = read_tensors(tmp_path / "x.safetensors")
    assert {name: fingerprint(array) for name, array in again.items()} == {
        name: fingerprint(array) for name, array in arrays.items()
    }


def test_tensors_are_as_readable_as_any_other_file(tmp_path: Path) -> None:
    write_tensors(tmp_path / "x.safetensors", {"a": np.zeros(1)})
    write_json(tmp_path / "x.json", 1)
    assert (tmp_path / "x.safetensors").stat().st_mode == (tmp_path / "x.json").stat().st_mode


@pytest.mark.parametrize(("content", "error"), [(b"{", FormatError), (b"\xff\xfe", FormatError), (None, LoadError)])
def test_damaged_and_missing_files_are_told_apart(
    tmp_path: Path, content: bytes | None, error: type[Exception]
) -> None:
    path = tmp_path / "x.json"
    if content is not None:
        path.write_bytes(content)
    for read in (read_json, read_tensors):
        with pytest.raises(error, match=str(path)):
            read(path)


def test_fingerprints_tell_types_and_order_apart() -> None:
    variants = [
        fingerprint("a", "b"),
        fingerprint("ab"),
        fingerprint(b"ab"),
        fingerprint(["a", "b"]),
        fingerprint("b", "a"),
    ]
    assert len(set(variants)) == len(variants)


def test_sha256_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    assert sha256_file(tmp_path / "empty") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def test_reading_takes_as_much_memory_as_the_file_has(tmp_path: Path) -> None:
    write_tensors(tmp_path / "file", {"a": np.zeros(10)})
    tracemalloc.start()
    try:
        read_tensors(tmp_path / "file")
        assert tracemalloc.get_traced_memory()[1] < 2**20
    finally:
        tracemalloc.stop()
