"""File contents, each stored once under its SHA-256.

A content is first written under ``incoming/``, then renamed into ``blobs/``: a process that is killed leaves at most a
draft, and drafts are thrown away at the next start. Nothing ever changes a blob.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

from oattn_hub.local_hub.faults import Fault


@dataclass(frozen=True)
class Blob:
    """What a content is called: by the Hub's large files (SHA-256) and by git (SHA-1 with git's header)."""

    sha256: str
    git_oid: str
    size: int


class Draft:
    """A content on its way in; counts and hashes what is written."""

    def __init__(self, path: Path, size: int) -> None:
        self.path = path
        self._announced = size
        self._size = 0
        self._stream = path.open("wb")
        self._sha256 = hashlib.sha256()
        self._git = hashlib.sha1(b"blob %d\x00" % size, usedforsecurity=False)

    def write(self, data: bytes) -> None:
        """Append ``data``; more than was announced is refused at once, before it fills the disk."""
        self._size += len(data)
        if self._size > self._announced:
            raise Fault(400, f"The content is longer than the {self._announced} bytes that were announced.")
        self._sha256.update(data)
        self._git.update(data)
        self._stream.write(data)

    def finish(self) -> Blob:
        """Put the content safely on disk and name it."""
        if self._size != self._announced:
            raise Fault(400, f"The content has {self._size} bytes, {self._announced} were announced.")
        self._stream.flush()
        os.fsync(self._stream.fileno())
        return Blob(self._sha256.hexdigest(), self._git.hexdigest(), self._size)

    def close(self) -> None:
        """Forget the draft, if it is still one."""
        self._stream.close()
        self.path.unlink(missing_ok=True)


class BlobStore:
    """The contents of all repos under one folder."""

    def __init__(self, root: Path) -> None:
        self._blobs = root / "blobs"
        self._incoming = root / "incoming"
        shutil.rmtree(self._incoming, ignore_errors=True)  # drafts of a process that was killed
        self._incoming.mkdir(parents=True)
        self._blobs.mkdir(exist_ok=True)

    def path(self, sha256: str) -> Path:
        """Where the content called ``sha256`` lies, whether it is there or not."""
        return self._blobs / sha256[:2] / sha256

    def has(self, sha256: str) -> bool:
        """Whether that content is stored."""
        return self.path(sha256).is_file()

    def read(self, sha256: str) -> bytes:
        """The whole content; for small files."""
        return self.path(sha256).read_bytes()

    def add(self, chunks: Iterable[bytes], size: int, sha256: str | None = None) -> Blob:
        """Store a content of exactly ``size`` bytes; with ``sha256``, only if that is its hash."""
        with self.scratch() as path:
            draft = Draft(path, size)
            try:
                for chunk in chunks:
                    draft.write(chunk)
                blob = draft.finish()
                if sha256 is not None and blob.sha256 != sha256:
                    raise Fault(400, f"The content's SHA-256 is {blob.sha256}, announced was {sha256}.")
                self._place(draft.path, blob.sha256)
            finally:
                draft.close()
        return blob

    @contextmanager
    def scratch(self) -> Iterator[Path]:
        """Yield a path for temporary bytes on the same disk; it is removed afterwards."""
        path = self._incoming / uuid4().hex
        try:
            yield path
        finally:
            path.unlink(missing_ok=True)

    def part_path(self, sha256: str, number: int) -> Path:
        """Where one part of a multipart upload waits for the others."""
        return self._incoming / f"{sha256}.{number:05d}"

    def _place(self, draft: Path, sha256: str) -> None:
        target = self.path(sha256)
        target.parent.mkdir(exist_ok=True)
        draft.replace(target)
        sync_folder(target.parent)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder survive a power cut, where the system can."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
