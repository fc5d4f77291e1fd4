"""Files written whole or not at all, and fingerprints of what went into them.

The store, the report, plans and checkpoints all go through here, so that "a run that dies never leaves a
half-written file that opens" is kept in one place.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oattn_hub.errors import FormatError, LoadError, OattnError, StorageError

_BLOCK = 1 << 20


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary sibling of ``path`` that takes its place on success and vanishes on failure."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield draft
        with draft.open("rb") as written:
            os.fsync(written.fileno())
        draft.replace(path)
    except OattnError:
        raise
    except OSError as error:
        raise storage_error(path, error) from error
    finally:
        with suppress(NotADirectoryError):
            draft.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path``, whole or not at all."""
    with atomic_path(path) as draft:
        draft.write_text(text, encoding="utf-8")


def write_json(path: Path, value: Any) -> None:
    """Write ``value`` as readable JSON; NaN is refused, because JSON has none."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def read_json(path: Path) -> Any:
    """Read a JSON file, or say in one sentence what is wrong with it."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise LoadError(f"{path} does not exist.") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise FormatError(f"{path} is not valid JSON ({error}). The file is damaged; make it again.") from error


def write_tensors(path: Path, tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str] | None = None) -> None:
    """Write named arrays as safetensors, whole or not at all."""
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    contiguous = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    with atomic_path(path) as draft:
        draft.touch()
        mode = draft.stat().st_mode  # what the umask allows; safetensors makes its files private to the owner
        try:
            save_file(contiguous, draft, dict(metadata or {}))
            draft.chmod(mode)
        except SafetensorError as error:  # it wraps the system's own error, a full disk for one
            raise OSError(0, str(error)) from error


def read_tensors(path: Path) -> dict[str, NDArray[Any]]:
    """Read all arrays of a safetensors file."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        return load_file(path)
    except FileNotFoundError as error:
        raise LoadError(f"{path} does not exist.") from error
    except SafetensorError as error:
        raise FormatError(f"{path} is not a valid safetensors file ({error}). It is damaged; make it again.") from error


def sha256_file(path: Path) -> str:
    """The SHA-256 of a file's bytes, in hexadecimal."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def fingerprint(*parts: Any) -> str:
    """The SHA-256 of JSON-able values, bytes and arrays; equal inputs give equal fingerprints on any machine.

    >>> fingerprint("a", 1) == fingerprint("a", 1) != fingerprint("a", 2)
    True
    """
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


def storage_error(path: Path, error: OSError) -> StorageError:
    """The sentence for a file that could not be written."""
    reason = error.strerror or str(error)
    return StorageError(
        f"Could not write {path}: {reason}. Nothing was left half-written; free space or choose another folder, "
        "then run the same command again."
    )
