"""SHA-256 of files and of values."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from oattn_hub.errors import LoadError

_BLOCK = 1 << 20


def sha256_file(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    if not path.is_file() and path.exists():  # a pipe would never end, nor would a device
        raise LoadError(f"{path} is not a plain file. Name the file itself.")
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def fingerprint(*parts: object) -> str:
    """The SHA-256 of JSON-able values, bytes and arrays; equal inputs give equal fingerprints on any machine.

    >>> fingerprint("a", 1) == fingerprint("a", 1) != fingerprint("a", 2)
    True
    """
    return joint_fingerprint(parts)


def joint_fingerprint(parts: Iterable[object]) -> str:
    """:func:`fingerprint` of parts that need not all be in memory at once."""
    digest = hashlib.sha256()
    for part in parts:
        if isinstance(part, bytes):
            content = part
        elif isinstance(part, np.ndarray):
            content = f"{part.dtype.str}{part.shape}".encode() + np.ascontiguousarray(part).tobytes()
        else:
            content = json.dumps(part, sort_keys=True, ensure_ascii=False).encode()
        digest.update(len(content).to_bytes(8, "little") + content)
    return digest.hexdigest()
