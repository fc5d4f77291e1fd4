"""The list of models: one per line, with options for that model alone."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from oattn_hub.errors import InvalidInput, LoadError
from oattn_hub.files import fingerprint, safe_name

LOADING = ("revision", "task", "gguf_file", "adapter")
NUMBERS = ("cpus", "gpus", "memory_gb")  # what ray reserves
RESOURCES = (*NUMBERS, "flavor")  # flavor: the hardware of a Hugging Face job


@dataclass(frozen=True)
class ModelJob:
    """One model of a sweep: what ``analyze`` takes, how it is loaded, and what it needs to run."""

    model: str
    loading: Mapping[str, str] = field(default_factory=dict)
    resources: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of its folder; two lines that ask for different things never share one."""
        plain = not self.loading and not Path(self.model).is_absolute()
        return safe_name(self.model if plain else f"{Path(self.model).name} {fingerprint(self.model, self.loading)}")


def read_models(source: str | Path | Iterable[str]) -> list[ModelJob]:
    """The jobs of a list: a file, or its lines.

    A line is ``MODEL [option=value ...]`` (``revision``, ``task``, ``gguf_file``, ``adapter``; ``cpus``, ``gpus``,
    ``memory_gb``, ``flavor``); ``#`` starts a comment. A folder may be relative to where the command runs.

    >>> read_models(["google-bert/bert-base-uncased", "me/big revision=v2 cpus=4  # slow"])[1].loading
    {'revision': 'v2'}
    """
    lines = _lines(Path(source)) if isinstance(source, str | Path) else list(source)
    jobs: dict[str, ModelJob] = {}
    for number, line in enumerate(lines, start=1):
        words = _words(line, number)
        if words:
            job = _job(words, number)
            jobs.setdefault(job.name, job)  # a model that is named twice is measured once
    if not jobs:
        raise InvalidInput("The list names no model. Write one Hub id or folder per line.")
    return list(jobs.values())


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise LoadError(f"The list of models {path} cannot be read ({reason}). Name a text file.") from error


def _words(line: str, number: int) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError as error:
        raise InvalidInput(f"Line {number} of the list cannot be read ({error}): {line.strip()!r}.") from error


def _job(words: list[str], number: int) -> ModelJob:
    model, *options = words
    pairs = dict(option.partition("=")[::2] for option in options)
    known = (*LOADING, *RESOURCES)
    if unknown := sorted(set(pairs) - set(known)):
        raise InvalidInput(f"Line {number} of the list has unknown options {unknown}; known are {', '.join(known)}.")
    for name in NUMBERS:
        if name in pairs and not _is_number(pairs[name]):
            raise InvalidInput(f"Line {number} of the list has {name}={pairs[name]!r}; give a number, e.g. {name}=2.")
    folder = Path(model)
    return ModelJob(
        str(folder.resolve()) if folder.is_dir() else model,
        {name: pairs[name] for name in LOADING if name in pairs},
        {name: pairs[name] for name in RESOURCES if name in pairs},
    )


def _is_number(text: str) -> bool:
    try:
        return float(text) >= 0
    except ValueError:
        return False
