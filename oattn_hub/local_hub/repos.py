"""Repos with history: immutable commits, and one small file per repo that says where its branches stand.

A commit is written first and the branch moved last, by replacing ``repo.json`` in one step. Whenever the process is
killed, a repo is in the state before or after the commit and never between.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from threading import RLock
from typing import Any

from oattn_hub.files import read_json, write_json
from oattn_hub.local_hub.blobs import Blob, sync_folder
from oattn_hub.local_hub.faults import Fault

_COMMIT_ID = re.compile(r"[0-9a-f]{40}")
_LARGE_FILE = 10 * 2**20
# What the Hub's own .gitattributes hands to large-file storage.
_LARGE_SUFFIXES = (
    ".7z", ".arrow", ".bin", ".bz2", ".ckpt", ".gguf", ".gz", ".h5", ".joblib", ".model", ".msgpack", ".npy", ".npz",
    ".onnx", ".ot", ".parquet", ".pb", ".pickle", ".pkl", ".pt", ".pth", ".rar", ".safetensors", ".tar", ".tflite",
    ".tgz", ".wasm", ".xz", ".zip", ".zst",
)  # fmt: skip


@dataclass(frozen=True)
class Entry:
    """One file of a commit."""

    sha256: str
    git_oid: str
    size: int
    lfs: bool

    @property
    def oid(self) -> str:
        """What git calls the file: for a large file, the hash of the pointer that stands in for it."""
        return hashlib.sha1(self._pointer, usedforsecurity=False).hexdigest() if self.lfs else self.git_oid

    @property
    def etag(self) -> str:
        """What names the content in a download."""
        return self.sha256 if self.lfs else self.git_oid

    @property
    def pointer_size(self) -> int:
        """The length of the pointer file."""
        return len(self._pointer_text)

    @property
    def _pointer_text(self) -> bytes:
        return f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {self.size}\n".encode()

    @property
    def _pointer(self) -> bytes:
        return b"blob %d\x00" % self.pointer_size + self._pointer_text


def is_large(path: str, size: int) -> bool:
    """Whether the Hub keeps such a file in large-file storage."""
    return size > _LARGE_FILE or (size > 0 and path.endswith(_LARGE_SUFFIXES))


def entry_for(path: str, blob: Blob) -> Entry:
    """The tree entry of a content under a path."""
    return Entry(blob.sha256, blob.git_oid, blob.size, is_large(path, blob.size))


@dataclass(frozen=True)
class Commit:
    """A state of the repo, whole: its files and where it came from."""

    oid: str
    parents: tuple[str, ...]
    title: str
    message: str
    author: str
    date: str
    files: Mapping[str, Entry]


@dataclass(frozen=True)
class State:
    """Everything about a repo that changes; replaced as a whole."""

    id: str
    type: str
    created: str
    private: bool = False
    gated: str | bool = False
    refs: Mapping[str, str] = field(default_factory=dict)  # full name, e.g. refs/heads/main -> commit
    discussions: tuple[dict[str, Any], ...] = ()


def now() -> str:
    """The time in the one format the client reads."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


class Repo:
    """One repo on disk."""

    def __init__(self, folder: Path, state: State) -> None:
        self.folder = folder
        self.lock = RLock()
        self.state = state
        self.commit = lru_cache(maxsize=32)(self._read_commit)

    @classmethod
    def create(cls, folder: Path, state: State, initial: Mapping[str, Entry], author: str) -> Repo:
        """Make a repo whose first commit holds ``initial``."""
        repo = cls(folder, state)
        first = repo.write_commit((), "initial commit", "", author, initial)
        repo.save(refs={"refs/heads/main": first.oid})
        sync_folder(folder.parent)
        return repo

    @classmethod
    def open(cls, folder: Path) -> Repo:
        """Open what :meth:`create` made; the repo is called as its folder is, so that a rename is one step."""
        saved = read_json(folder / "repo.json")
        named = {"id": f"{folder.parent.name}/{folder.name}", "discussions": tuple(saved["discussions"])}
        return cls(folder, State(**{**saved, **named}))

    def save(self, **changes: Any) -> None:
        """Replace the repo's state in one step."""
        with self.lock:
            state = replace(self.state, **changes)
            write_json(self.folder / "repo.json", asdict(state))
            sync_folder(self.folder)
            self.state = state

    def resolve(self, revision: str) -> Commit:
        """The commit that a branch, a tag, ``refs/pr/1`` or a commit id means."""
        refs = self.state.refs
        for name in (revision, f"refs/heads/{revision}", f"refs/tags/{revision}"):
            if name in refs:
                return self.commit(refs[name])
        if _COMMIT_ID.fullmatch(revision) and self._commit_path(revision).exists():
            return self.commit(revision)
        raise Fault(404, f"Invalid rev id: {revision}", "RevisionNotFound")

    def branch_ref(self, revision: str) -> str:
        """The full name of the branch or pull request that a commit may go to."""
        name = revision if revision.startswith("refs/") else f"refs/heads/{revision}"
        if name not in self.state.refs or name.startswith("refs/tags/"):
            raise Fault(404, f"Invalid rev id: {revision}. Only branches take commits.", "RevisionNotFound")
        return name

    def add_ref(self, name: str, oid: str) -> None:
        """Create a branch, a tag or a pull request; an existing one is a conflict."""
        with self.lock:
            if name in self.state.refs:
                raise Fault(409, f"Reference {name} already exists")
            self.save(refs={**self.state.refs, name: oid})

    def remove_ref(self, name: str) -> None:
        """Delete a branch or a tag."""
        with self.lock:
            if name not in self.state.refs:
                raise Fault(404, f"Invalid rev id: {name}", "RevisionNotFound")
            if name == "refs/heads/main":
                raise Fault(403, "The branch main cannot be deleted")
            self.save(refs={key: oid for key, oid in self.state.refs.items() if key != name})

    def append(
        self,
        ref: str,
        change: Callable[[Mapping[str, Entry]], Mapping[str, Entry]],
        title: str,
        message: str,
        author: str,
        parent: str | None = None,
    ) -> Commit:
        """Put a commit on ``ref``; if ``parent`` is given and is not the head, refuse (412)."""
        with self.lock:
            head = self.commit(self.state.refs[ref])
            if parent is not None and parent != head.oid:
                raise Fault(412, f"A commit has happened since. The head of {ref} is {head.oid}, not {parent}.")
            commit = self.write_commit((head.oid,), title, message, author, change(head.files))
            self.save(refs={**self.state.refs, ref: commit.oid})
        return commit

    def history(self, commit: Commit) -> list[Commit]:
        """The commit and its first parents, newest first."""
        commits = [commit]
        while commits[-1].parents:
            commits.append(self.commit(commits[-1].parents[0]))
        return commits

    def uploaded(self, sha256: str) -> Blob | None:
        """The large file of that name, if it was uploaded to this repo."""
        note = self.folder / "objects" / f"{sha256}.json"
        return Blob(**read_json(note)) if note.exists() else None

    def note_upload(self, blob: Blob) -> None:
        """Remember an uploaded large file: a repo commits only what was uploaded to it, not what it can name."""
        with self.lock:
            write_json(self.folder / "objects" / f"{blob.sha256}.json", asdict(blob))

    def _commit_path(self, oid: str) -> Path:
        return self.folder / "commits" / f"{oid}.json"

    def write_commit(
        self, parents: tuple[str, ...], title: str, message: str, author: str, files: Mapping[str, Entry]
    ) -> Commit:
        """Store a commit that no reference leads to yet."""
        content = {
            "parents": parents,
            "title": title,
            "message": message,
            "author": author,
            "date": now(),
            "files": {path: asdict(entry) for path, entry in sorted(files.items())},
        }
        oid = hashlib.sha1(json.dumps(content, sort_keys=True).encode(), usedforsecurity=False).hexdigest()
        path = self._commit_path(oid)
        write_json(path, content)
        sync_folder(path.parent)
        return self.commit(oid)

    def _read_commit(self, oid: str) -> Commit:
        saved = read_json(self._commit_path(oid))
        files = {path: Entry(**entry) for path, entry in saved.pop("files").items()}
        return Commit(oid=oid, files=files, **{**saved, "parents": tuple(saved["parents"])})
