"""One process at a time: locks that the system gives back when their owner ends, however it ends."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from oattn_hub.errors import FolderInUse
from oattn_hub.files.atomic import storage_errors

LOCK_FILE = ".oattn.lock"
_PAUSE = 0.05  # seconds between two looks at a lock that somebody holds


@contextmanager
def folder_lock(folder: Path, wait: float | None = None) -> Iterator[None]:
    """Hold ``folder`` while the block runs, wherever else it is asked for: other threads, other processes.

    ``wait`` is how many seconds to wait for another owner, None for as long as it takes. Whoever gives up says who
    holds the folder. The lock is a file in the folder, which is made if need be; it goes away with the owner.
    """
    path = folder / LOCK_FILE
    descriptor = _acquire(path, folder, wait)
    try:
        yield
    finally:
        with suppress(OSError):  # Windows keeps a file that is open
            path.unlink()
        os.close(descriptor)


def _acquire(path: Path, folder: Path, wait: float | None) -> int:
    start = time.monotonic()
    while True:
        with storage_errors(folder):
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        if _try_lock(descriptor) and _is_still(path, descriptor):
            os.truncate(descriptor, 0)
            os.write(descriptor, json.dumps({"process": os.getpid()}).encode())
            return descriptor
        holder = _holder(path)
        os.close(descriptor)
        if wait is not None and time.monotonic() - start >= wait:
            raise FolderInUse(f"{folder} is being written by {holder}. Wait until it ends, or name another folder.")
        time.sleep(_PAUSE)


def _is_still(path: Path, descriptor: int) -> bool:
    """Whether the file that was locked is the one that has the name: its last owner removes it."""
    try:
        return os.path.samestat(path.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _holder(path: Path) -> str:
    with suppress(OSError, ValueError, KeyError, TypeError):
        return f"process {int(json.loads(path.read_bytes())['process'])}"
    return "another process"


if os.name == "nt":
    import msvcrt

    def _try_lock(descriptor: int) -> bool:
        try:
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        except OSError:
            return False
        return True

else:
    import fcntl

    def _try_lock(descriptor: int) -> bool:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        return True
