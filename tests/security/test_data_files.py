"""Data to measure with that somebody else made: arrays, pictures and sounds that claim more than they are."""

from __future__ import annotations

import pickle
import struct
import wave
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from oattn_hub.errors import LoadError
from oattn_hub.inputs.ids import read_ids
from oattn_hub.inputs.media import _open_image, read_sound


def npy(header: str, data: bytes = b"") -> bytes:
    text = header.encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + data


ARRAYS = {
    "more than the memory": npy("{'descr': '<i8', 'fortran_order': False, 'shape': (1000000000000,), }\n"),
    "more than a number": npy(f"{{'descr': '<i8', 'fortran_order': False, 'shape': (1{'0' * 22},), }}\n"),
    "less than nothing": npy("{'descr': '<i8', 'fortran_order': False, 'shape': (-5,), }\n"),
    "objects": npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n", pickle.dumps([1])),
    "code": npy("__import__('os').system('false')\n"),
    "brackets": npy("(" * 5000 + "\n"),
    "half an archive": b"PK\x03\x04half",
    "a pickle": pickle.dumps([1, 2]),
    "nothing": b"",
}


@pytest.mark.parametrize("name", ARRAYS)
def test_what_is_no_array_of_ids_is_refused_before_memory_is_taken(tmp_path: Path, name: str) -> None:
    (tmp_path / "ids.npy").write_bytes(ARRAYS[name])
    with pytest.raises(LoadError, match=r"ids\.npy"):
        read_ids(tmp_path / "ids.npy", 10)


def test_an_archive_of_arrays_is_not_unpacked(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "ids.npz", ids=np.zeros(10, dtype=np.int64))
    (tmp_path / "ids.npz").rename(tmp_path / "ids.npy")
    with pytest.raises(LoadError, match="archive"):
        read_ids(tmp_path / "ids.npy", 10)


def test_a_picture_that_unfolds_to_more_than_the_memory_is_refused(tmp_path: Path) -> None:
    import zlib

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    picture = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")
    (tmp_path / "bomb.png").write_bytes(picture)
    with pytest.raises(LoadError, match=r"bomb\.png"):
        _open_image(tmp_path / "bomb.png")


@pytest.mark.parametrize(("rate", "change"), [(1, None), (16_000, b"odd"), (16_000, b"short")])
def test_a_sound_that_lies_about_itself_is_refused(tmp_path: Path, rate: int, change: Any) -> None:
    path = tmp_path / "sound.wav"
    with wave.open(str(path), "wb") as stream:
        stream.setnchannels(2)
        stream.setsampwidth(2)
        stream.setframerate(rate)
        stream.writeframes(b"\0" * 4000)
    content = bytearray(path.read_bytes())
    if change == b"odd":
        content = content[:-2]
    if change == b"short":
        content = content[:20]
    path.write_bytes(content)
    with pytest.raises(LoadError, match=r"sound\.wav"):
        read_sound(path)
