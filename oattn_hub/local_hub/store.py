"""All repos of one local Hub, under one folder that one process owns."""

from __future__ import annotations

import fcntl
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from threading import RLock
from typing import TextIO
from uuid import uuid4

from oattn_hub.errors import OattnError, StorageError
from oattn_hub.local_hub.accounts import Account, Accounts
from oattn_hub.local_hub.blobs import BlobStore
from oattn_hub.local_hub.faults import Fault, repo_not_found
from oattn_hub.local_hub.repos import Repo, State, entry_for, now

REPO_TYPES = ("model", "dataset", "space")
_NAME = re.compile(r"(?!.*(?:--|\.\.))[\w][\w.-]{0,94}[\w]|\w", re.ASCII)
_RESERVED = ("api", "datasets", "models", "spaces")
_RESERVE = 2**28  # bytes of the disk that uploads leave free
_SMALL = 2**20  # such requests are always tried: deleting takes one, too
_GIT_ATTRIBUTES = b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n"


class HubStore:
    """Repos, contents and accounts."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(parents=True, exist_ok=True)
        self._lock_file = self._own_folder()
        self.blobs = BlobStore(root)
        self.accounts = Accounts(root)
        self._lock = RLock()
        shutil.rmtree(root / "trash", ignore_errors=True)
        opened = (_open_repo(path.parent) for path in root.glob("repos/*/*/*/repo.json"))
        self._repos = {(repo.state.type, repo.state.id): repo for repo in opened if repo is not None}

    def close(self) -> None:
        """Let another process have the folder."""
        self._lock_file.close()

    def check_room(self, n_bytes: int) -> None:
        """Refuse what would fill the disk, before the first byte is stored."""
        free = shutil.disk_usage(self.root).free
        if n_bytes > max(free - _RESERVE, 0) and n_bytes > _SMALL:
            raise Fault(507, f"The local Hub has {free:,} bytes left, and {n_bytes:,} are to come")

    def open(self, repo_type: str, repo_id: str, account: Account | None, write: bool = False) -> Repo:
        """The repo, if this account may read (or write) it."""
        repo = self._repos.get((repo_type, repo_id))
        if repo is None or not _may_read(repo, account):
            raise repo_not_found(anonymous=account is None)
        if write:
            check_write(account, repo_id.split("/")[0])
        return repo

    def repo(self, repo_type: str, repo_id: str) -> Repo:
        """The repo, whoever asks; for requests that carry their permission in the address."""
        found = self._repos.get((repo_type, repo_id))
        if found is None:
            raise repo_not_found(anonymous=False)
        return found

    def visible(self, repo_type: str, account: Account | None) -> Iterator[Repo]:
        """The repos that this account may know of, in order of their ids."""
        with self._lock:
            repos = sorted(self._repos.items())
        return (repo for (kind, _), repo in repos if kind == repo_type and _may_read(repo, account))

    def create(self, repo_type: str, repo_id: str, private: bool, account: Account) -> Repo:
        """Make a repo; one that exists is a conflict, and its ``url`` goes with the answer as the client wants."""
        self._check_id(repo_type, repo_id)
        check_write(account, repo_id.split("/")[0])
        with self._lock:
            if (repo_type, repo_id) in self._repos:
                raise Fault(409, "You already created this repo", body={"url": f"/{repo_id}", "name": repo_id})
            attributes = entry_for(".gitattributes", self.blobs.add([_GIT_ATTRIBUTES], len(_GIT_ATTRIBUTES)))
            state = State(id=repo_id, type=repo_type, created=now(), private=private)
            repo = Repo.create(self._folder(repo_type, repo_id), state, {".gitattributes": attributes}, account.name)
            self._repos[repo_type, repo_id] = repo
        return repo

    def delete(self, repo: Repo) -> None:
        """Take the repo away in one step."""
        with self._lock, repo.lock:
            del self._repos[repo.state.type, repo.state.id]
            trash = self.root / "trash" / uuid4().hex
            trash.parent.mkdir(exist_ok=True)
            repo.folder.rename(trash)
        shutil.rmtree(trash, ignore_errors=True)

    def move(self, repo: Repo, new_id: str, account: Account) -> None:
        """Give the repo another name."""
        self._check_id(repo.state.type, new_id)
        check_write(account, new_id.split("/")[0])
        with self._lock, repo.lock:
            if (repo.state.type, new_id) in self._repos:
                raise Fault(409, f"{new_id} already exists")
            target = self._folder(repo.state.type, new_id)
            target.parent.mkdir(parents=True, exist_ok=True)
            repo.folder.rename(target)
            del self._repos[repo.state.type, repo.state.id]
            self._repos[repo.state.type, new_id] = Repo.open(target)

    def _folder(self, repo_type: str, repo_id: str) -> Path:
        return self.root / "repos" / f"{repo_type}s" / repo_id

    def _check_id(self, repo_type: str, repo_id: str) -> None:
        parts = repo_id.split("/")
        if repo_type not in REPO_TYPES:
            raise Fault(400, f"Repo type {repo_type!r} is not one of {', '.join(REPO_TYPES)}")
        if len(parts) != 2 or not all(_NAME.fullmatch(part) for part in parts) or parts[0] in _RESERVED:
            raise Fault(400, f"Invalid repo id {repo_id!r}: it is namespace/name, of letters, digits, '-', '_' and '.'")

    def _own_folder(self) -> TextIO:
        lock_file = (self.root / "lock").open("w")
        try:
            fcntl.flock(lock_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock_file.close()
            raise StorageError(
                f"Another local Hub is running on {self.root}. Stop it or choose another --dir."
            ) from error
        return lock_file


def _open_repo(folder: Path) -> Repo | None:
    """The repo, or None if its state was damaged: one such repo must not keep all others from being served."""
    try:
        return Repo.open(folder)
    except (OattnError, KeyError, TypeError, ValueError) as error:
        print(f"oattn hub: {folder} is damaged and is not served ({error})", file=sys.stderr)
        return None


def check_role(account: Account | None) -> Account:
    """Refuse whoever is not known, or has a token that may only read."""
    if account is None:
        raise Fault(401, "Invalid username or password.")
    if account.role != "write":
        raise Fault(403, f"The token of {account.name} may read only")
    return account


def check_write(account: Account | None, namespace: str) -> None:
    """Refuse whoever may not change repos under ``namespace``."""
    if account is None:
        raise Fault(401, "Invalid username or password.")
    if not account.may_write(namespace):
        raise Fault(403, f"{account.name} has no write right under the namespace {namespace}")


def _may_read(repo: Repo, account: Account | None) -> bool:
    return not repo.state.private or (account is not None and account.owns(repo.state.id.split("/")[0]))
