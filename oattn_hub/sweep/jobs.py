"""The engine ``hf-jobs``: one Hugging Face job per model, which publishes its report; we submit, look and download.

The Hub is the scheduler. A job's number is kept in the model's status file, so that the same command, typed again,
submits what was never submitted, asks about what runs, and downloads what is done.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oattn_hub.errors import HubError, InvalidInput
from oattn_hub.sweep.listing import ModelJob
from oattn_hub.sweep.state import Options, Status, SweepFolder

if TYPE_CHECKING:
    from huggingface_hub import HfApi

IMAGE = "ghcr.io/astral-sh/uv:python3.12-bookworm"
_ENDED = {"COMPLETED", "CANCELED", "ERROR", "DELETED"}
_FOLDER = "report"


@dataclass(frozen=True)
class HfJobs:
    """Runs models as jobs of ``namespace``, which pays for them and gets their reports.

    Args:
        namespace: A user or an organisation.
        package: What ``uvx --from`` installs in the job.
        flavor: The hardware, unless a line of the list names its own.
        timeout: The longest a job may take.
        private: Whether the repos of the reports are private.
        token: A Hub token that may write to the namespace; the job gets it as a secret.
    """

    namespace: str
    package: str = "oattn_hub"
    flavor: str = "cpu-upgrade"
    timeout: str = "2h"
    private: bool = False
    token: str | None = None

    def run(self, root: Path, jobs: Sequence[ModelJob], options: Options) -> Iterator[tuple[ModelJob, Status]]:
        """Submit or look at every job once; those that still run stay ``running``."""
        api = self._api()
        sweep = SweepFolder(root)
        for job in jobs:
            with sweep.hold(job):
                status = sweep.status(job)
                try:
                    after = self._look(api, sweep, job, status) or self._submit(api, job, options, status)
                except InvalidInput as error:
                    after = status.failed(str(error), again=False)
                except (HubError, OSError) as error:
                    after = status.failed(f"{type(error).__name__}: {error}", again=False)
                yield job, sweep.write(job, after)

    def request(self, job: ModelJob, options: Options) -> dict[str, Any]:
        """The arguments of ``HfApi.run_job``, without the token."""
        if Path(job.model).is_dir():
            raise InvalidInput(f"{job.model} is a folder of this machine, which a job cannot see. Publish it first.")
        return {
            "image": IMAGE,
            "command": ["sh", "-c", self._command(job, options)],
            "flavor": job.resources.get("flavor", self.flavor),
            "timeout": self.timeout,
            "labels": {"oattn-sweep": job.name[:60]},
            "namespace": self.namespace,
        }

    def repo_id(self, job: ModelJob) -> str:
        """Where the job publishes its report."""
        return f"{self.namespace}/{job.name}-heads"

    def shown(self, job: ModelJob, options: Options) -> str:
        """The same job, as one types it."""
        request = self.request(job, options)
        words = ["hf", "jobs", "run", "--detach", "--namespace", self.namespace, "--secrets", "HF_TOKEN"]
        words += ["--flavor", request["flavor"], "--timeout", self.timeout, IMAGE, *request["command"]]
        return shlex.join(words)

    def _command(self, job: ModelJob, options: Options) -> str:
        tool = ["uvx", "--from", self.package, "oattn"]
        measure = [*tool, "analyze", job.model, "--out", _FOLDER, *_flags(job, options)]
        judge = [*tool, "evaluate", _FOLDER]
        publish = [*tool, "publish", _FOLDER, self.repo_id(job), *(["--private"] if self.private else [])]
        return " && ".join(shlex.join(part) for part in (measure, *([judge] if options.evaluate else []), publish))

    def _submit(self, api: HfApi, job: ModelJob, options: Options, status: Status) -> Status:
        request = self.request(job, options)
        made = api.run_job(**request, secrets={"HF_TOKEN": self._token()})
        return replace(status, state="running", tries=status.tries + 1, error="", remote_job=made.id)

    def _look(self, api: HfApi, sweep: SweepFolder, job: ModelJob, status: Status) -> Status | None:
        """What became of the job that was submitted; None if there is none, or one that is worth another try."""
        if not status.remote_job or status.state == "failed":
            return None
        found = api.inspect_job(job_id=status.remote_job, namespace=self.namespace)
        stage = str(getattr(found.status.stage, "value", found.status.stage))
        if stage not in _ENDED:
            return replace(status, state="running")
        if stage != "COMPLETED":
            reason = found.status.message or "its log says why"
            return status.failed(f"Job {status.remote_job} ended as {stage} ({reason}).", again=False)
        self._download(sweep.folder(job), job)
        return replace(status, state="done")

    def _download(self, folder: Path, job: ModelJob) -> None:
        from oattn_hub.analyzer import PAGE_FILE
        from oattn_hub.hub import load_report

        report = load_report(self.repo_id(job), token=self.token)
        report.save(folder)
        report.write_page(folder / PAGE_FILE)

    def _api(self) -> HfApi:
        from huggingface_hub import HfApi

        return HfApi(token=self.token)

    def _token(self) -> str:
        from huggingface_hub import get_token

        token = self.token or get_token()
        if token is None:
            raise InvalidInput("A job needs a token to publish its report, and there is none. Log in: hf auth login.")
        return token


def _flags(job: ModelJob, options: Options) -> list[str]:
    values: dict[str, Any] = {"batches": options.batches, "tokens": options.tokens, "kind": options.kind}
    values |= {"seed": options.seed, "data": options.data, **job.loading}
    flags = [word for name, value in values.items() if value is not None for word in (_flag(name), str(value))]
    return flags + (["--trust-remote-code"] if options.trust_remote_code else [])


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
