"""Look at a downloaded file before a library opens it."""

from __future__ import annotations

import json
from pathlib import Path

from oattn_hub.errors import FormatError

MAX_HEADER = 100 * 2**20  # the limit of the safetensors format itself
MAX_JSON = 256 * 2**20  # the largest tokenizers have some tens of megabytes


def check_file(path: Path) -> None:
    """Refuse what only pretends to be safetensors, and text files of absurd size."""
    if path.suffix == ".safetensors":
        _check_safetensors(path)
    elif path.suffix in (".json", ".jsonl", ".md", ".txt", ".html") and path.stat().st_size > MAX_JSON:
        raise FormatError(f"{path.name} has {path.stat().st_size:,} bytes, which no such file needs. Refused.")


def _check_safetensors(path: Path) -> None:
    size = path.stat().st_size
    with path.open("rb") as stream:
        start = stream.read(8)
        header_size = int.from_bytes(start, "little")
        if len(start) < 8 or header_size > min(MAX_HEADER, size - 8):
            if start[:4] == b"PK\x03\x04" or start[:1] == b"\x80":
                raise FormatError(f"{path.name} is a pickle under the name of safetensors; it could run code. Refused.")
            claim = f"its header claims {header_size:,} of {size:,} bytes"
            raise FormatError(f"{path.name} is not safetensors: {claim}. Refused.")
        header = stream.read(header_size)
    _check_offsets(path, header, size - 8 - header_size)


def _check_offsets(path: Path, header: bytes, n_bytes: int) -> None:
    try:
        entries = json.loads(header)
        ends = [entry["data_offsets"][1] for name, entry in entries.items() if name != "__metadata__"]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError) as error:
        raise FormatError(f"{path.name} is not safetensors: its header cannot be read ({error}). Refused.") from error
    if max(ends, default=0) != n_bytes:
        raise FormatError(f"{path.name} is cut off or padded: its header speaks of {max(ends, default=0):,} bytes, "
                          f"{n_bytes:,} are there. Refused.")  # fmt: skip
