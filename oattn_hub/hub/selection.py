"""Which files of a folder are published: those that its manifest names and those asked for, never through a link."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path, PurePosixPath

from oattn_hub.errors import FormatError, InvalidInput
from oattn_hub.files import storage_errors

_GIT = ".git"


def copy_files(source: Path, target: Path, names: Iterable[str]) -> None:
    """Copy the named files, with the folders they lie in; each has to be a plain file inside ``source``."""
    for name in names:
        _check_name(source, name)
        path = _plain_file(source, name)
        with storage_errors(target / name):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target / name)


def included(source: Path, patterns: Iterable[str]) -> list[str]:
    """The files that patterns such as ``notes/*.md`` stand for; hidden ones only where a pattern names them so."""
    found: set[str] = set()
    for pattern in patterns:
        _check_name(source, pattern)
        names = {path.relative_to(source).as_posix() for path in source.glob(pattern) if not path.is_dir()}
        if not any(part.startswith(".") for part in PurePosixPath(pattern).parts):
            names = {name for name in names if not _is_hidden(name)}
        if not names:
            raise InvalidInput(f"--include {pattern} stands for no file in {source}.")
        found |= names
    return sorted(found)


def visible_files(folder: Path) -> list[str]:
    """All files of a folder that was written to be published; hidden ones are left out, a link is an error."""
    found = []
    for place, folders, files in os.walk(folder):
        inside = Path(place).relative_to(folder)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted([*files, *(name for name in folders if (Path(place) / name).is_symlink())]):
            if not name.startswith("."):
                found.append((inside / name).as_posix())
    for name in found:
        _plain_file(folder, name)
    return found


def _check_name(source: Path, name: str) -> None:
    path = PurePosixPath(name)
    if not name or path.is_absolute() or ".." in path.parts or "\\" in name or _GIT in map(str.lower, path.parts):
        raise FormatError(f"{source} is to publish {name!r}, which is no file of its own. Nothing was sent.")


def _plain_file(source: Path, name: str) -> Path:
    path = source
    for part in PurePosixPath(name).parts:
        path = path / part
        if path.is_symlink():
            raise InvalidInput(
                f"{path} is a link, and what it leads to may not be meant for others. Nothing was sent; put a copy of "
                "the file in its place (`oattn pull REPO --out DIR` gives plain files)."
            )
    if not path.is_file():
        raise FormatError(f"{path} is to be published and is no plain file. Nothing was sent.")
    return path


def _is_hidden(name: str) -> bool:
    return any(part.startswith(".") for part in PurePosixPath(name).parts)
