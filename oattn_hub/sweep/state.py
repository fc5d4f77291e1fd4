"""Where a model of a sweep stands, in a file of its own; there is no other state."""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from oattn_hub.codec import decode
from oattn_hub.errors import InvalidInput, OattnError
from oattn_hub.files import folder_lock, read_sealed, write_sealed
from oattn_hub.records import JsonRecord
from oattn_hub.sweep.listing import ModelJob

STATUS_FILE, SETTINGS_FILE = "status.json", "sweep.json"
REPORT_FILE = "report.json"


@dataclass(frozen=True)
class Status(JsonRecord):
    """One model's state: ``waiting``, ``running``, ``busy`` (another sweep has it), ``done`` or ``failed``, and why.

    ``again`` says that another try may help; ``tries`` counts all that were started, also those that were killed.
    """

    model: str
    state: str = "waiting"
    tries: int = 0
    error: str = ""
    again: bool = False
    seconds: float = 0.0
    remote_job: str = ""

    def failed(self, error: str, again: bool) -> Status:
        """The same model after a try that failed."""
        return replace(self, state="failed", error=" ".join(error.split()), again=again)


@dataclass(frozen=True)
class Options:
    """What is measured on every model; a sweep's folder has one set of them, so that its reports compare."""

    data: str | None = None
    batches: int = 6
    tokens: int = 128
    kind: str = "probs"
    seed: int = 0
    evaluate: bool = False
    trust_remote_code: bool = False


class SweepFolder:
    """The folder of a sweep: options, and one folder per model."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).resolve()
        if self.root.is_file():
            raise InvalidInput(f"{root} is a file; name a folder for the sweep.")

    def agree(self, options: Options) -> None:
        """Note the options, or refuse ones that differ from those the folder was started with."""
        file = self.root / SETTINGS_FILE
        if not file.exists():
            write_sealed(file, asdict(options))
            return
        before = asdict(decode(Options, read_sealed(file)))
        now = asdict(replace(options, trust_remote_code=before["trust_remote_code"]))  # a permission changes no number
        if changed := {name: value for name, value in now.items() if value != before[name]}:
            words = ", ".join(f"{name}={value!r} (was {before[name]!r})" for name, value in changed.items())
            raise InvalidInput(f"{self.root} holds a sweep with other options: {words}. Name another folder.")

    def folder(self, job: ModelJob) -> Path:
        """Where a model's report is."""
        return self.root / job.name

    def hold(self, job: ModelJob, wait: float | None = None) -> AbstractContextManager[None]:
        """Have a model to oneself; a place beside its folder, which saving a report locks for itself."""
        return folder_lock(self.root / ".running" / job.name, wait)

    def status(self, job: ModelJob) -> Status:
        """Where a model stands; a status that cannot be read counts as none, because the work can be done again."""
        status = read_status(self.folder(job)) or Status(job.model)
        return Status(job.model) if status.state == "done" and not _has_report(self.folder(job)) else status

    def write(self, job: ModelJob, status: Status) -> Status:
        """Keep where a model stands."""
        write_sealed(self.folder(job) / STATUS_FILE, status.to_json())
        return status

    def statuses(self) -> dict[Path, Status]:
        """Folder -> status of every model that was ever started here."""
        found: dict[Path, Any] = {file.parent: read_status(file.parent) for file in self.root.glob(f"*/{STATUS_FILE}")}
        return {folder: status for folder, status in sorted(found.items()) if status is not None}


def _has_report(folder: Path) -> bool:
    """Whether there is a whole report; a damaged one is made again."""
    from oattn_hub.report import Report

    try:
        Report.load(folder)
    except OattnError:
        return False
    return True


def read_status(folder: Path) -> Status | None:
    """The status in a folder, or None."""
    try:
        return Status.from_json(read_sealed(folder / STATUS_FILE))
    except OattnError:
        return None
