"""Runs on disk: where an analysis keeps its finished stages, and how it is found again.

A run is addressed by everything that goes into its numbers: model revision, inputs, parameters, the code that computes
and the libraries underneath. So the same call finds the same folder, and a changed one never finds a stale result.

``$OATTN_HOME`` (default: ``$XDG_CACHE_HOME/oattn_hub``, ``~/.cache/oattn_hub``) holds::

    runs/<address>/attention/          captured tensors, while the run is going on
    runs/<address>/measured/           one file per group and batch, while the run is going on
    runs/<address>/report/             the result
    requests/<address>.json            call -> run, so that a repeated call need not even load the model

All of it may be deleted at any time. Where nothing may be written there, runs live as long as the process.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from contextlib import AbstractContextManager
from functools import cache
from pathlib import Path

import oattn_hub
from oattn_hub.analysis.axes import read_contexts
from oattn_hub.analysis.measure import BatchMeasurement
from oattn_hub.attention.store import AttentionStore
from oattn_hub.errors import OattnError
from oattn_hub.files import (
    fingerprint,
    folder_lock,
    read_sealed,
    read_tensors,
    remove_orphans,
    sha256_file,
    write_sealed,
    write_tensors,
)
from oattn_hub.inputs.types import Data, all_are
from oattn_hub.models.identify import is_hub_id
from oattn_hub.models.load import Source
from oattn_hub.models.options import LoadOptions
from oattn_hub.report import Report
from oattn_hub.report.contexts import Sample, sample_arrays, samples_from
from oattn_hub.tokens import default_token
from oattn_hub.types import Json
from oattn_hub.versions import versions

_SOURCES = (
    "analyzer.py", "adapters/*.py", "analysis/*.py", "attention/*.py", "geometry/*.py", "inputs/*.py", "inputs/data/*",
    "models/*.py", "report/contexts.py", "report/group*.py", "report/measured.py", "report/samples.py",
    "report/theory*.py",
)  # fmt: skip
OBJECTS = (
    "tokenizer",
    "processor",
)  # options of loading that no file can hold; the inputs made with them stand for them
NOT_IN_NUMBERS = ("token", "offload_folder", *OBJECTS)  # options that are not part of what a report's numbers hang on
_COMMIT = re.compile(r"[0-9a-f]{40}")
_RUN = re.compile(r"[0-9a-f]{32}")
_SAMPLE = 1 << 16  # bytes of a file that are looked at, at its start, middle and end


def home() -> Path:
    """The folder of all runs."""
    if chosen := os.environ.get("OATTN_HOME"):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    place = Path(base).expanduser() / "oattn_hub"
    nearest = next(parent for parent in (place, *place.parents) if parent.exists())
    return place if os.access(nearest, os.W_OK) else Path(_passing_home().name)


@cache
def _passing_home() -> tempfile.TemporaryDirectory[str]:
    """For users without a home they may write to, as in containers; it goes with the process."""
    return tempfile.TemporaryDirectory(prefix="oattn-")


@cache
def code_fingerprint() -> str:
    """SHA-256 of the files that decide about a report's numbers, so that a changed method never meets an old result."""
    folder = Path(oattn_hub.__file__).parent
    sources = sorted(path for pattern in _SOURCES for path in folder.glob(pattern) if path.is_file())
    return fingerprint([[str(path.relative_to(folder)), sha256_file(path)] for path in sources])


class Run:
    """The folder of one analysis."""

    def __init__(self, *address: object) -> None:
        self.address = fingerprint(*address, code_fingerprint(), versions())
        self.folder = home() / "runs" / self.address[:32]

    @property
    def attention(self) -> Path:
        """Where the captured tensors go."""
        return self.folder / "attention"

    def lock(self) -> AbstractContextManager[None]:
        """Hold the run while a block works on it; another process that asks for the same run waits."""
        return folder_lock(self.folder)

    def forget_damaged(self) -> None:
        """Throw away what a killed process left half-written, and captured tensors that have changed since."""
        for folder in (self.folder, self.folder / "measured", self.folder / "report", home() / "requests"):
            remove_orphans(folder)
        if not self.attention.exists():
            return
        try:
            store = AttentionStore.open(self.attention)
            store.verify()
            read_contexts(self.attention)
            given_back = [
                (group, batch) for group in store.groups for batch in store.batches(group) if batch in store.given_back
            ]
            whole = all(self.measurement(*place) for place in given_back)
        except OattnError:
            whole = False
        if not whole:
            shutil.rmtree(self.attention, ignore_errors=True)

    def measurement(self, group: str, batch: int) -> BatchMeasurement | None:
        """The measurement of one group and batch, if an earlier, interrupted run has finished it, and it is sound."""
        file = self._measured(group, batch)
        try:
            return BatchMeasurement.load(file) if file.exists() else None
        except OattnError:
            return None  # damaged: it is made again

    def keep(self, group: str, batch: int, measurement: BatchMeasurement) -> None:
        """Keep the measurement of one group and batch, so that a run that is interrupted later need not repeat it."""
        measurement.save(self._measured(group, batch))

    def sample(self, group: str, batch: int) -> Sample | None:
        """What was kept of a batch for people to look at, before its tensors were given back."""
        file = self._measured(group, batch).with_suffix(".sample.safetensors")
        return samples_from(read_tensors(file, sealed=True))[0] if file.exists() else None

    def keep_sample(self, group: str, batch: int, sample: Sample) -> None:
        """Keep what people look at of a batch whose tensors are given back."""
        write_tensors(self._measured(group, batch).with_suffix(".sample.safetensors"), sample_arrays([sample]))

    def report(self) -> Report | None:
        """The finished report, if there is a whole one; drafts that a killed process left beside it go."""
        remove_orphans(self.folder / "report")
        return _load_or_none(self.folder / "report")

    def finish(self, report: Report) -> None:
        """Keep the report and give back the room its stages took."""
        report.save(self.folder / "report")
        for stage in ("attention", "measured"):
            shutil.rmtree(self.folder / stage, ignore_errors=True)

    def _measured(self, group: str, batch: int) -> Path:
        return self.folder / "measured" / f"{fingerprint(group)[:16]}-{batch:05d}.safetensors"


class Request:
    """A call as it was made, before anything is loaded; remembers the run that answered it."""

    def __init__(self, spec: Source, data: Data, options: LoadOptions, parameters: Mapping[str, object]) -> None:
        parts = (_model_signature(spec, options), _data_signature(data))
        self._file: Path | None = None
        if all(part is not None for part in parts):
            known = {name: value for name, value in options.items() if name not in NOT_IN_NUMBERS}
            address = fingerprint(*parts, known, dict(parameters), code_fingerprint(), versions())
            self._file = home() / "requests" / f"{address[:32]}.json"

    def answer(self) -> Report | None:
        """The report that answered this very call before, if model, data and code are unchanged."""
        if self._file is None or not self._file.exists():
            return None
        try:
            run = str(read_sealed(self._file).get("run"))
        except OattnError:
            return None  # damaged: the model is loaded, and the note is written again
        return _load_or_none(home() / "runs" / run / "report") if _RUN.fullmatch(run) else None

    def remember(self, run: Run) -> None:
        """Note which run answers this call."""
        if self._file is not None:
            write_sealed(self._file, {"run": run.folder.name})


def _load_or_none(folder: Path) -> Report | None:
    if not (folder / "report.json").exists():
        return None
    try:
        return Report.load(folder)
    except OattnError:
        return None  # damaged or of an older version: it is only a cache, so it is made again


def _model_signature(spec: Source, options: LoadOptions) -> list[Json] | None:
    """What shows that the model is the same one as last time, without loading it; None if nothing does."""
    if not isinstance(spec, str | Path) or any(options.get(name) is not None for name in OBJECTS):
        return None
    folder = Path(spec)
    if folder.is_dir():
        return [str(folder.resolve()), _file_signatures(folder)]
    commit = _hub_commit(str(spec), options) if is_hub_id(str(spec)) else None
    return None if commit is None else [str(spec), commit]


def _data_signature(data: Data) -> Json:
    if data is None:
        return "bundled"
    if isinstance(data, str | Path) and Path(data).exists():
        return [str(Path(data).resolve()), _file_signatures(Path(data))]
    return list(data) if all_are(data, str) else None


def _file_signatures(path: Path) -> list[list[Json]]:
    """What shows that a file changed: name, size, times, and some of the content.

    The time of modification can be set back, on purpose or with a copy; the time of the last change of the file's
    entry cannot, unless the clock is, and then the content of most files still shows it.
    """
    files = sorted(item for item in path.rglob("*") if item.is_file()) if path.is_dir() else [path]
    return [[str(item.relative_to(path)), *_file_signature(item)] for item in files]


def _file_signature(path: Path) -> list[Json]:
    stat = path.stat()
    with path.open("rb") as stream:
        parts = []
        for place in (0, stat.st_size // 2, max(stat.st_size - _SAMPLE, 0)):
            stream.seek(place)
            parts.append(stream.read(_SAMPLE))
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino, fingerprint(*parts)]


def _hub_commit(repo_id: str, options: LoadOptions) -> str | None:
    """The commit a Hub id stands for now: asked of the Hub, or of the local cache when offline."""
    from huggingface_hub import HfApi, constants, try_to_load_from_cache

    revision = options.get("revision")
    if revision is not None and _COMMIT.fullmatch(revision):
        return str(revision)
    if not (options.get("local_files_only") or constants.HF_HUB_OFFLINE):
        try:
            return (
                HfApi(token=default_token(options.get("token"))).model_info(repo_id, revision=revision, timeout=5).sha
            )
        except Exception:  # no connection, no such repo, no right: loading the model will say which
            pass
    try:
        cached = try_to_load_from_cache(repo_id, "config.json", cache_dir=options.get("cache_dir"), revision=revision)
    except ValueError:  # no name that the Hub could have: loading the model will say so
        return None
    return Path(cached).parent.name if isinstance(cached, str) else None
