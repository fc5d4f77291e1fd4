"""JSON files: bounded before memory is taken, refused in one sentence, and sealed with their own SHA-256."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from oattn_hub.errors import FormatError, LoadError, OattnError
from oattn_hub.files.atomic import write_text
from oattn_hub.files.fingerprints import fingerprint

MAX_JSON = 256 * 2**20  # the largest tokenizers have some tens of megabytes
MAX_DEPTH = 100
SEAL = "seal"


def read_bytes(path: Path, limit: int) -> bytes:
    """The content of a plain file of at most ``limit`` bytes; a pipe or a device is never waited for."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except FileNotFoundError as error:
        raise LoadError(f"{path} does not exist.") from error
    except (OSError, ValueError) as error:
        raise LoadError(f"{path} cannot be read ({error}).") from error
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise LoadError(f"{path} is not a plain file. Name the file itself.")
        if status.st_size > limit:
            raise FormatError(f"{path} has {status.st_size:,} bytes; such a file has no more than {limit:,}. Refused.")
        with os.fdopen(descriptor, "rb", closefd=False) as stream:
            return stream.read(status.st_size)  # for which it takes memory before it reads
    except OSError as error:
        if isinstance(error, LoadError):
            raise
        raise LoadError(f"{path} cannot be read ({error}).") from error
    finally:
        os.close(descriptor)


def read_json(path: Path, limit: int = MAX_JSON) -> Any:
    """Read a JSON file, or say in one sentence what is wrong with it."""
    return parse_json(read_bytes(path, limit), path)


def parse_json(content: bytes, path: Path) -> Any:
    """The value of a JSON text: UTF-8, at most :data:`MAX_DEPTH` levels; ``path`` is only named in errors."""
    try:
        value = json.loads(content.decode("utf-8"))
        check_depth(value)
        if b"\\ud" in content or b"\\uD" in content:  # half a character: it could never be written again
            json.dumps(value, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:  # undecodable bytes and absurdly long numbers are ValueErrors
        raise FormatError(f"{path} is not valid JSON ({error}). The file is damaged; make it again.") from error
    return value


def check_depth(value: object, limit: int = MAX_DEPTH) -> None:
    """Refuse a value that is nested deeper than any of our files."""
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > limit:
            raise ValueError(f"nested more than {limit} levels deep")
        inner = [item for item in level if isinstance(item, dict | list)]
        level = [child for item in inner for child in (item.values() if isinstance(item, dict) else item)]


@contextmanager
def blamed_on(path: Path) -> Iterator[None]:
    """Whatever the values of a file lead to while the block uses them is said to be the file's fault."""
    try:
        yield
    except (OattnError, OSError):
        raise
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError, AssertionError) as error:
        reason = " ".join(str(error).split())[:200]
        raise FormatError(f"{path}: {reason or type(error).__name__}. Copy or make it again.") from error


def write_json(path: Path, value: object) -> None:
    """Write ``value`` as readable JSON; NaN is refused, because JSON has none."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n")


def sealed(value: Mapping[str, object]) -> dict[str, Any]:
    """The object with the SHA-256 of its content, so that any change to it is noticed."""
    plain = json.loads(json.dumps({key: item for key, item in value.items() if key != SEAL}, allow_nan=False))
    return {**plain, SEAL: fingerprint(plain)}


def write_sealed(path: Path, value: Mapping[str, object]) -> None:
    """Write a JSON object with the SHA-256 of its content."""
    write_json(path, sealed(value))


def read_sealed(path: Path, limit: int = MAX_JSON) -> dict[str, Any]:
    """The object that :func:`write_sealed` wrote, without its seal; refuse one that was changed since."""
    return unsealed(read_json(path, limit), path)


def unsealed(value: object, path: Path) -> dict[str, Any]:
    """The object without its seal, if the seal fits; an object that has none, and any other value, is refused."""
    if not isinstance(value, dict):
        raise FormatError(f"{path} holds a {type(value).__name__}, not an object. The file is damaged; make it again.")
    content = {key: item for key, item in value.items() if key != SEAL}
    if SEAL not in value or value[SEAL] != fingerprint(content):
        raise FormatError(f"{path} was changed after it was written: its SHA-256 does not fit. Copy or make it again.")
    return content
