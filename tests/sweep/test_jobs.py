"""hf-jobs: what the real client would send, and what becomes of the answers."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from oattn_hub.cli import main
from oattn_hub.sweep import read_models, run_sweep
from oattn_hub.sweep.jobs import HfJobs
from oattn_hub.sweep.state import Options, SweepFolder

from .conftest import SMALL, MakeModel

LINES = ["google-bert/bert-base-uncased", "me/big revision=v2 flavor=l4x1"]


@pytest.fixture
def hub_of_jobs(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The real client, with the jobs' side of the Hub played: what was posted, and the stage it answers with."""
    import huggingface_hub
    from huggingface_hub import constants
    from huggingface_hub.utils import _http

    http = _http.httpx2 if hasattr(_http, "httpx2") else _http.httpx
    seen = SimpleNamespace(posted=[], stage="RUNNING", message=None)

    def answer(request: Any) -> Any:
        if request.method == "POST":
            seen.posted.append(json.loads(request.content))
        status = {"stage": seen.stage, "message": seen.message}
        body = {"id": f"job{len(seen.posted)}", "createdAt": "2026-01-01T00:00:00.000Z", "status": status}
        return http.Response(200, json={**body, "owner": {"id": "1", "name": "me", "type": "user"}})

    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    huggingface_hub.set_client_factory(lambda: http.Client(transport=http.MockTransport(answer)))
    yield seen
    huggingface_hub.set_client_factory(_http.default_client_factory)


def test_a_dry_run_prints_the_jobs_and_keeps_the_token_to_itself(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    (tmp_path / "models.txt").write_text("\n".join(LINES))
    words = ["sweep", str(tmp_path / "models.txt"), "--out", str(tmp_path / "out"), "--engine", "hf-jobs"]
    assert main([*words, "--dry-run"]) == 1
    assert "needs --namespace" in capsys.readouterr().err
    assert main([*words, "--dry-run", "--namespace", "me", "--tokens", "64", "--evaluate"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    assert "hf_secret" not in first
    *start, image, shell, flag, command = shlex.split(first)
    assert start[:4] == ["hf", "jobs", "run", "--detach"]
    assert (image.split("/")[0], shell, flag) == ("ghcr.io", "sh", "-c")
    analyze, evaluate, publish = command.split(" && ")
    assert analyze.startswith("uvx --from oattn_hub oattn analyze google-bert/bert-base-uncased --out report")
    assert "--tokens 64" in analyze
    assert evaluate == "uvx --from oattn_hub oattn evaluate report"
    assert publish.startswith("uvx --from oattn_hub oattn publish report me/google-bert_bert-base-uncased-")
    assert "--flavor l4x1" in second
    assert "--revision v2" in second
    assert not (tmp_path / "out").exists()


def test_the_commands_of_a_job_are_ones_that_we_understand() -> None:
    from oattn_hub.cli import build_parser

    job = read_models(["me/big revision=v2 task=fill-mask adapter=bert gguf_file=a.gguf"])[0]
    options = Options(data="dataset:owner/name", evaluate=True, trust_remote_code=True)
    command = HfJobs("me", private=True).request(job, options)["command"][2]
    for part in command.split(" && "):
        words = shlex.split(part)
        args = build_parser().parse_args(words[words.index("oattn") + 1 :])
        assert args.verb in ("analyze", "evaluate", "publish")


def test_jobs_are_submitted_once_then_asked_about(hub_of_jobs: Any, tmp_path: Path) -> None:
    def sweep() -> list[tuple[str, str]]:
        result = run_sweep(LINES, tmp_path / "out", HfJobs("me"), SMALL, retries=0)
        return [(status.state, status.remote_job) for status in result.statuses]

    assert sweep() == [("running", "job1"), ("running", "job2")]
    assert [spec["flavor"] for spec in hub_of_jobs.posted] == ["cpu-upgrade", "l4x1"]
    assert hub_of_jobs.posted[0]["secrets"] == {"HF_TOKEN": "hf_secret"}
    assert "hf_secret" not in json.dumps([{**spec, "secrets": None} for spec in hub_of_jobs.posted])
    assert sweep() == [("running", "job1"), ("running", "job2")]
    assert len(hub_of_jobs.posted) == 2
    hub_of_jobs.stage, hub_of_jobs.message = "ERROR", "out of memory"
    assert [state for state, _ in sweep()] == ["failed", "failed"]
    sweep_folder = SweepFolder(tmp_path / "out")
    assert "ERROR (out of memory)" in sweep_folder.status(read_models(LINES)[0]).error
    hub_of_jobs.stage = "RUNNING"
    assert sweep() == [("running", "job3"), ("running", "job4")]  # what failed is submitted again
    assert not [path for path in (tmp_path / "out").rglob("*") if path.is_file() and "hf_secret" in path.read_text()]


def test_a_finished_job_brings_its_report(
    hub_of_jobs: Any, tmp_path: Path, make_model: MakeModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    import oattn_hub as oh

    report = oh.analyze(make_model("a"), batches=2, tokens=8)
    asked: list[str] = []
    load: Callable[..., Any] = lambda repo_id, token: asked.append(repo_id) or report  # noqa: E731
    monkeypatch.setattr("oattn_hub.hub.load_report", load)
    jobs = HfJobs("me")
    run_sweep(LINES[:1], tmp_path / "out", jobs, SMALL)
    hub_of_jobs.stage = "COMPLETED"
    result = run_sweep(LINES[:1], tmp_path / "out", jobs, SMALL)
    assert (result.count("done"), asked) == (1, [jobs.repo_id(read_models(LINES)[0])])
    assert result.leaderboard.rows[0].heads == 4


def test_a_folder_of_this_machine_is_refused(hub_of_jobs: Any, tmp_path: Path, make_model: MakeModel) -> None:
    result = run_sweep([str(make_model("a"))], tmp_path / "out", HfJobs("me"), SMALL)
    assert "which a job cannot see" in result.statuses[0].error
    assert hub_of_jobs.posted == []
