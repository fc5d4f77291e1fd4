"""Safetensors files: the header is checked here before anything is allocated or mapped."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from oattn_hub.errors import FormatError
from oattn_hub.files.atomic import atomic_path
from oattn_hub.files.documents import parse_json, read_bytes
from oattn_hub.files.fingerprints import fingerprint
from oattn_hub.types import Array

MAX_HEADER = 100 * 2**20  # the limit of the safetensors format itself
MAX_TENSORS = 16 * 2**30  # of files whose arrays are read into memory: reports and measurements
SEAL = "sha256"
# Bits per element; sub-byte types have sizes that are counted over the whole tensor.
_BITS = {
    "BOOL": 8, "F4": 4, "F6_E2M3": 6, "F6_E3M2": 6, "U8": 8, "I8": 8, "F8_E5M2": 8, "F8_E4M3": 8, "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8, "F8_E5M2FNUZ": 8, "I16": 16, "U16": 16, "F16": 16, "BF16": 16, "I32": 32, "U32": 32, "F32": 32,
    "C64": 64, "F64": 64, "I64": 64, "U64": 64,
}  # fmt: skip
_NUMPY = {
    "BOOL": "|b1", "U8": "|u1", "I8": "|i1", "U16": "<u2", "I16": "<i2", "F16": "<f2", "U32": "<u4", "I32": "<i4",
    "F32": "<f4", "U64": "<u8", "I64": "<i8", "F64": "<f8", "C64": "<c8",
}  # fmt: skip
_KINDS = {code: kind for kind, code in _NUMPY.items()}
_ALIGNMENT = 64


@dataclass(frozen=True)
class TensorEntry:
    """Where a tensor lies in its file, and as what."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    end: int


@dataclass(frozen=True)
class TensorHeader:
    """What a safetensors file says it holds, checked against the size of the file."""

    entries: Mapping[str, TensorEntry]
    metadata: Mapping[str, str]
    data_start: int


def write_tensors(path: Path, tensors: Mapping[str, Array], metadata: Mapping[str, str] | None = None) -> None:
    """Write named arrays as safetensors, whole or not at all, with their SHA-256 in the header.

    Written here, because the library puts metadata in an order that differs from run to run: equal arrays give equal
    bytes, and the data starts where vector instructions like it.
    """
    arrays = {name: np.asarray(array, array.dtype.newbyteorder("<"), order="C") for name, array in tensors.items()}
    header: dict[str, object] = {"__metadata__": {**(metadata or {}), SEAL: _seal(arrays)}}
    place = 0
    for name, array in arrays.items():
        header[name] = {
            "dtype": _KINDS[array.dtype.str],
            "shape": array.shape,
            "data_offsets": (place, place + array.nbytes),
        }
        place += array.nbytes
    text = json.dumps(header, ensure_ascii=False).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    with atomic_path(path) as draft, draft.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for array in arrays.values():
            stream.write(array.tobytes())


def read_tensors(path: Path, sealed: bool = False) -> dict[str, Array]:
    """Read all arrays of a safetensors file; one that carries a SHA-256 is refused if its arrays do not have it.

    With ``sealed``, a file without one is refused, too: everything that :func:`write_tensors` wrote has it.
    """
    content = read_bytes(path, MAX_TENSORS)
    header = parse_header(content, len(content), path)
    arrays = {name: _array(content, header, entry, path) for name, entry in header.entries.items()}
    if (sealed or SEAL in header.metadata) and header.metadata.get(SEAL) != _seal(arrays):
        raise FormatError(f"{path} is damaged: its arrays do not have the SHA-256 that was written. Make it again.")
    return arrays


def read_header(path: Path) -> TensorHeader:
    """The checked header of a safetensors file of any size."""
    if not path.is_file():
        raise FormatError(f"{path} is not a plain file. Name the file itself.")
    with path.open("rb") as stream:
        start = stream.read(8)
        length = int.from_bytes(start, "little")
        size = path.stat().st_size
        return parse_header(start + stream.read(min(length, MAX_HEADER)), size, path)


def parse_header(content: bytes, size: int, path: Path) -> TensorHeader:
    """The header at the start of ``content``, of a file of ``size`` bytes; every claim is checked against the size."""
    length = int.from_bytes(content[:8], "little")
    if len(content) < 8 or length > min(MAX_HEADER, size - 8):
        if content[:4] == b"PK\x03\x04" or content[:1] == b"\x80":
            raise FormatError(f"{path} is a pickle under the name of safetensors; it could run code. Refused.")
        raise FormatError(f"{path} is not safetensors: its header claims {length:,} of {size:,} bytes. Refused.")
    try:
        document = parse_json(content[8 : 8 + length], path)
        metadata = document.pop("__metadata__", {})
        if not all(isinstance(item, str) for item in metadata.values()):
            raise TypeError("its metadata are not texts")
        entries = {name: _entry(value) for name, value in document.items()}
    except (FormatError, AttributeError, KeyError, TypeError, ValueError) as error:
        raise FormatError(f"{path} is not safetensors: its header cannot be read ({error}). Refused.") from error
    _check_offsets(entries, size - 8 - length, path)
    return TensorHeader(entries, metadata, 8 + length)


def _entry(value: Mapping[str, Any]) -> TensorEntry:
    if set(value) != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"an entry has the fields {sorted(value)}")
    shape, (start, end) = value["shape"], value["data_offsets"]
    if not isinstance(shape, list) or len(shape) > 32 or not all(map(_is_count, [*shape, start, end])):
        raise ValueError("a shape or an offset is no list of counts")
    if value["dtype"] not in _BITS or math.prod(shape) * _BITS[value["dtype"]] != 8 * (end - start):
        raise ValueError(f"{value['dtype']} {shape} does not take {end - start} bytes")
    return TensorEntry(value["dtype"], tuple(shape), start, end)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**48


def _check_offsets(entries: Mapping[str, TensorEntry], n_bytes: int, path: Path) -> None:
    """Tensors lie one after the other: no gap that hides something, no overlap, nothing after the last."""
    place = 0
    for entry in sorted(entries.values(), key=lambda entry: (entry.start, entry.end)):
        if entry.start != place:
            raise FormatError(f"{path} is damaged: its tensors overlap or leave a gap at byte {place:,}. Refused.")
        place = entry.end
    if place != n_bytes:
        raise FormatError(
            f"{path} is cut off or padded: its header speaks of {place:,} bytes, {n_bytes:,} are there. Refused."
        )


def _array(content: bytes, header: TensorHeader, entry: TensorEntry, path: Path) -> Array:
    if entry.dtype not in _NUMPY:
        raise FormatError(f"{path} holds {entry.dtype}, which none of our files does. Make it again.")
    data = content[header.data_start + entry.start : header.data_start + entry.end]
    return np.frombuffer(bytearray(data), dtype=_NUMPY[entry.dtype]).reshape(entry.shape)


def _seal(arrays: Mapping[str, Array]) -> str:
    return fingerprint(*(part for name in sorted(arrays) for part in (name, arrays[name])))
