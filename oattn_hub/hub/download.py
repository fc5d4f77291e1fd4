"""Download and check, before anything is opened.

The commit is pinned first; names and sizes are checked before a byte is fetched, contents by their hash afterwards.
Only data is fetched (safetensors, JSON, text, pictures), and of code only ``modeling_pruned.py``, which stock
transformers needs; other code comes along only with ``trust_remote_code=True``. Nothing that is fetched is run.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from glob import escape
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from oattn_hub.errors import FormatError, HubError, HubNotFound, HubUnavailable, InvalidInput
from oattn_hub.files import storage_errors, write_text
from oattn_hub.hub.client import FIRST_ANSWER_SECONDS, check_repo_id, explained, open_api
from oattn_hub.hub.content import ContentId
from oattn_hub.hub.inspect import check_file

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoSibling
    from torch import nn

    from oattn_hub.report import Report

# Everything that a report or a checkpoint consists of. Pickles (.bin, .pt, .pkl …) are not in it.
DATA_FILES = (".css", ".html", ".jinja", ".json", ".jsonl", ".md", ".model", ".png", ".safetensors", ".svg", ".txt")
# What else belongs to a model: other tokenizers, licences, and the code that a checkpoint's own card speaks of. It is
# only fetched, never run by us.
BELONGINGS = (".bpe", ".spm", ".tiktoken", ".vocab", "LICENSE", "NOTICE", "modeling_pruned.py")
PICKLES = (".bin", ".ckpt", ".joblib", ".pickle", ".pkl", ".pt", ".pth")
MAX_FILES = 10_000


@dataclass(frozen=True)
class _Want:
    """What to fetch, and how."""

    repo_id: str
    revision: str | None
    cache_dir: Path | None
    code: bool


class PullOptions(TypedDict, total=False):
    """What :func:`pull` takes beside the repo."""

    revision: str | None
    token: str | bool | None
    cache_dir: str | Path | None
    local_files_only: bool
    trust_remote_code: bool
    endpoint: str | None


def pull(
    repo_id: str,
    *,
    revision: str | None = None,
    token: str | bool | None = None,
    cache_dir: str | Path | None = None,
    local_files_only: bool = False,
    trust_remote_code: bool = False,
    endpoint: str | None = None,
) -> Path:
    """Download a report or a checkpoint and return its folder in the cache, every file checked by its hash."""
    check_repo_id(repo_id)
    api = open_api(token, endpoint)
    want = _Want(repo_id, revision, Path(cache_dir) if cache_dir else None, trust_remote_code)
    with explained("download", repo_id, api):
        return _from_cache(api, want) if local_files_only or _offline() else _from_hub(api, want)


def load_report(folder_or_repo: str | Path, **options: Unpack[PullOptions]) -> Report:
    """Load a report from a folder or a repo; ``options`` are those of :func:`pull`."""
    from oattn_hub.report import Report

    return Report.load(resolve_folder(folder_or_repo, needs="report.json", **options))


def from_pretrained(
    folder_or_repo: str | Path, *, model: nn.Module | None = None, **options: Unpack[PullOptions]
) -> nn.Module:
    """Load a pruned checkpoint, or any other, from a folder or a repo, in eval mode; no code that comes with it is run.

    ``model`` is a fresh, uncut instance for a class that only you know; ``options`` are those of :func:`pull`.
    """
    folder = resolve_folder(folder_or_repo, needs="config.json", **options)
    if model is not None:
        from oattn_hub.pruning import load_pruned

        return load_pruned(folder, model)
    from oattn_hub.models.load import load_model

    return load_model(folder).model


def copy_to(folder: Path, target: Path) -> Path:
    """Copy a downloaded folder out of the cache, as plain files, to a new or empty folder."""
    if target.exists() and any(target.iterdir()):
        raise InvalidInput(f"{target} is not empty. Name a new or an empty folder.")
    with storage_errors(target):
        try:
            shutil.copytree(folder, target, dirs_exist_ok=True)
        except shutil.Error as error:  # many files, each with its own reason
            raise OSError(0, str(error.args[0][0][2])) from error
    return target


def resolve_folder(folder_or_repo: str | Path, needs: str, **options: Unpack[PullOptions]) -> Path:
    """The local folder itself, or where the repo of that name was downloaded to."""
    local = Path(folder_or_repo)
    folder = local if local.is_dir() else pull(str(folder_or_repo), **options)
    if not (folder / needs).is_file():
        raise FormatError(
            f"{folder_or_repo} has no {needs}, so it is not what was asked for. It has {_listing(folder)}."
        )
    return folder


def _from_hub(api: HfApi, want: _Want) -> Path:
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    try:
        info = api.model_info(want.repo_id, revision=want.revision, files_metadata=True, timeout=FIRST_ANSWER_SECONDS)
    except GatedRepoError:
        raise
    except RepositoryNotFoundError:
        _explain_other_type(api, want.repo_id)
        raise
    files = _select(want, info.siblings or [])
    folder = _download(api, want, str(info.sha), list(files))
    damaged = [path for path, file in files.items() if not _is_intact(folder / path, file)]
    if damaged:  # on the way or in the cache: fetch those again, once
        _forget(folder, damaged)
        _download(api, want, str(info.sha), damaged)
        damaged = [path for path, file in files.items() if not _is_intact(folder / path, file)]
    if damaged:
        _forget(folder, damaged)
        raise HubError(
            f"{damaged[0]} of {want.repo_id} does not have the SHA-256 that the Hub names, twice in a row. "
            "It was thrown away; try again later, or write to the owner of the repo."
        )
    for path in files:
        check_file(folder / path)
    # By the cache's documented layout: so that the branch is found without a network, too.
    if want.revision != info.sha:
        write_text(folder.parents[1] / "refs" / (want.revision or "main"), str(info.sha))
    return folder


def _from_cache(api: HfApi, want: _Want) -> Path:
    """The newest downloaded state; the cache names contents by their hash, so it is checked without a network."""
    from huggingface_hub.errors import LocalEntryNotFoundError

    wanted = [f"*{suffix}" for suffix in _suffixes(want)]
    place: dict[str, Any] = {"revision": want.revision, "cache_dir": want.cache_dir}
    try:
        folder = Path(api.snapshot_download(want.repo_id, allow_patterns=wanted, local_files_only=True, **place))
    except LocalEntryNotFoundError as error:
        raise HubUnavailable(
            f"{want.repo_id} is not (fully) in the cache and the network is not to be used. "
            "Download it once with a network: without --offline, local_files_only and HF_HUB_OFFLINE."
        ) from error
    for path in (path for path in folder.rglob("*") if path.is_file()):
        if not ContentId.of(path).is_called(path.resolve().name):
            _forget(folder, [path.relative_to(folder).as_posix()])
            raise HubError(
                f"{path.name} of {want.repo_id} was damaged in the cache. It is thrown away; download it again."
            )
        check_file(path)
    return folder


def _select(want: _Want, siblings: list[RepoSibling]) -> dict[str, RepoSibling]:
    """The files to fetch; a repo with a name that could lead out of the folder is refused as a whole."""
    if len(siblings) > MAX_FILES:
        raise FormatError(f"{want.repo_id} has {len(siblings)} files; a report or a checkpoint has far fewer.")
    for file in siblings:
        _check_name(want.repo_id, file.rfilename)
    chosen = {file.rfilename: file for file in siblings if file.rfilename.endswith(_suffixes(want))}
    pickles = [file.rfilename for file in siblings if file.rfilename.endswith(PICKLES)]
    if pickles and not any(path.endswith(".safetensors") for path in chosen):
        raise FormatError(
            f"{want.repo_id} has its weights only as a pickle ({pickles[0]}), which can run code. Refused."
        )
    if not chosen:
        raise HubNotFound(f"{want.repo_id} has no report and no checkpoint in it.")
    return chosen


def _check_name(repo_id: str, name: str) -> None:
    path = PurePosixPath(name)
    control = any(ord(letter) < 32 for letter in name)
    if not name or path.is_absolute() or ".." in path.parts or "\\" in name or ":" in name or control:
        raise FormatError(f"{repo_id} has a file named {name!r}, which could be written outside its folder. Refused.")


def _download(api: HfApi, want: _Want, sha: str, paths: list[str]) -> Path:
    patterns = [escape(path) for path in paths]
    return Path(api.snapshot_download(want.repo_id, revision=sha, cache_dir=want.cache_dir, allow_patterns=patterns))


def _is_intact(path: Path, file: RepoSibling) -> bool:
    return path.is_file() and ContentId.of(path).is_remote(file)


def _forget(folder: Path, paths: list[str]) -> None:
    """Throw damaged files out of the cache: the content, and the name that leads to it."""
    for path in paths:
        (folder / path).resolve().unlink(missing_ok=True)
        (folder / path).unlink(missing_ok=True)


def _suffixes(want: _Want) -> tuple[str, ...]:
    return (*DATA_FILES, *BELONGINGS, ".py") if want.code else (*DATA_FILES, *BELONGINGS)


def _explain_other_type(api: HfApi, repo_id: str) -> None:
    for kind in ("dataset", "space"):
        if api.repo_exists(repo_id, repo_type=kind):
            raise HubNotFound(f"{repo_id} is a {kind}, not a model; reports and checkpoints are published as models.")


def _offline() -> bool:
    from huggingface_hub import constants

    return bool(constants.HF_HUB_OFFLINE)


def _listing(folder: Path) -> str:
    names = sorted(os.listdir(folder))  # noqa: PTH208 - names only
    return ", ".join(names[:8]) or "no files"
