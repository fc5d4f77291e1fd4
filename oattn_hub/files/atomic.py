"""Files written whole or not at all; what a killed process left half-written goes away with the next write."""

from __future__ import annotations

import hashlib
import os
import platform
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from glob import escape
from pathlib import Path
from uuid import uuid4

from oattn_hub.errors import OattnError, StorageError

_HOST = hashlib.sha256(platform.node().encode()).hexdigest()[:8]
_OWNER = re.compile(rf"\.{_HOST}-(\d+)-[0-9a-f]{{8}}\.part$")


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """Yield a temporary sibling of ``path`` that takes its place on success and vanishes on failure."""
    draft = path.with_name(f".{path.name}.{_HOST}-{os.getpid()}-{uuid4().hex[:8]}.part")
    with storage_errors(path):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            remove_orphans(path.parent, path.name)
            yield draft
            with draft.open("rb") as written:
                os.fsync(written.fileno())
            draft.replace(path)
        finally:
            with suppress(NotADirectoryError):
                draft.unlink(missing_ok=True)


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn what the system and safetensors say about a full or read-only disk into one sentence."""
    try:
        yield
    except OattnError:
        raise
    except OSError as error:
        raise storage_error(path, error) from error
    except Exception as error:
        if type(error).__name__ != "SafetensorError":  # by name: not every command needs that package
            raise
        raise storage_error(path, OSError(0, str(error))) from error


def storage_error(path: Path, error: OSError) -> StorageError:
    """The sentence for a file that could not be written."""
    reason = error.strerror or str(error)
    return StorageError(
        f"Could not write {path}: {reason}. Nothing was left half-written; free space or choose another folder, "
        "then run the same command again."
    )


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path``, whole or not at all."""
    with atomic_path(path) as draft:
        draft.write_text(text, encoding="utf-8")


def remove_orphans(folder: Path, name: str = "*") -> None:
    """Remove drafts (of the file ``name``, or of all) whose process on this machine is no more."""
    pattern = name if name == "*" else escape(name)
    for draft in folder.glob(f".{pattern}.*.part"):
        owner = _OWNER.search(draft.name)
        if owner and not is_running(int(owner[1])):
            draft.unlink(missing_ok=True)


def is_running(process: int) -> bool:
    """Whether a process of that number runs on this machine."""
    if os.name == "nt":  # there os.kill(pid, 0) would end it
        return True
    try:
        os.kill(process, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass
    return True
