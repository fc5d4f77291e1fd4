"""Sweeps stop and go on anywhere, and one bad model costs the others nothing."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from oattn_hub.cli import main
from oattn_hub.errors import InvalidInput, LoadError
from oattn_hub.report import Report
from oattn_hub.report.answer import answer
from oattn_hub.sweep import Status, read_models, run_sweep
from oattn_hub.sweep.engines import LocalEngine
from oattn_hub.sweep.state import Options, SweepFolder

from .conftest import SMALL, InProcess, MakeModel

TRUSTING = replace(SMALL, trust_remote_code=True)


def test_a_list_has_options_comments_and_no_doubles(tmp_path: Path) -> None:
    (tmp_path / "models.txt").write_text("# ours\n\nme/a\nme/b revision=v2 cpus=2 memory_gb=1.5 # big\nme/a\n")
    a, b = read_models(tmp_path / "models.txt")
    assert (a.model, b.model, b.loading, b.resources) == (
        "me/a",
        "me/b",
        {"revision": "v2"},
        {"cpus": "2", "memory_gb": "1.5"},
    )
    assert len({a.name, b.name, *(job.name for job in read_models(["me/b", "me/b revision=v3"]))}) == 4


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([], "names no model"),
        (["me/a colour=red"], "Line 1 .*colour.*known are revision"),
        (["me/a", "me/b cpus=many"], "Line 2 .*cpus='many'"),
        (["me/a 'open"], "Line 1 .*No closing quotation"),
    ],
)
def test_a_bad_list_is_refused_by_line(lines: list[str], words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        read_models(lines)


def test_a_list_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match=r"nowhere\.txt cannot be read"):
        read_models(tmp_path / "nowhere.txt")


def test_one_failing_model_does_not_stop_the_rest(make_model: MakeModel, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    lines = [str(make_model("a")), str(tmp_path / "empty"), str(make_model("bb"))]
    reported: list[Status] = []
    result = run_sweep(lines, tmp_path / "out", InProcess(), SMALL, retries=1, report=reported.append)
    assert [status.state for status in result.statuses] == ["done", "failed", "done"]
    assert str(tmp_path / "empty") in result.statuses[1].error
    for job in (read_models(lines)[0], read_models(lines)[2]):
        assert len(Report.load(tmp_path / "out" / job.name).heads) == 4
        assert (tmp_path / "out" / job.name / "report.html").is_file()
    # again: nothing of what is done is touched, what failed is tried again and now works
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("report.json")}
    (tmp_path / "empty").rmdir()
    make_model("ccc").rename(tmp_path / "empty")
    reported.clear()
    result = run_sweep(lines, tmp_path / "out", InProcess(), SMALL, report=reported.append)
    assert [(status.model, status.state) for status in reported] == [(str(tmp_path / "empty"), "done")]
    assert (result.count("done"), before) == (3, {path: path.stat().st_mtime_ns for path in before})


def test_only_what_may_pass_is_tried_again(make_model: MakeModel, tmp_path: Path) -> None:
    class Flaky(InProcess):
        calls = 0

        def run(self, root, jobs, options):  # type: ignore[no-untyped-def]
            for job in jobs:
                self.calls += 1
                sweep = SweepFolder(root)
                lasting = Path(job.model).name == "a"
                yield job, sweep.write(job, sweep.status(job).failed("the disk is full", again=not lasting))

    flaky = Flaky()
    result = run_sweep([str(make_model("a")), str(make_model("bb"))], tmp_path / "out", flaky, SMALL, retries=3)
    assert (flaky.calls, result.count("failed")) == (1 + 4, 2)


def test_a_folder_keeps_its_options(make_model: MakeModel, tmp_path: Path) -> None:
    lines = [str(make_model("a"))]
    run_sweep(lines, tmp_path / "out", InProcess(), SMALL)
    with pytest.raises(InvalidInput, match=r"other options: tokens=16 \(was 8\)"):
        run_sweep(lines, tmp_path / "out", InProcess(), replace(SMALL, tokens=16))
    run_sweep(lines, tmp_path / "out", InProcess(), TRUSTING)  # a permission is not an option


def test_a_model_that_another_sweep_holds_is_left_alone(make_model: MakeModel, tmp_path: Path) -> None:
    lines = [str(make_model("a"))]
    script = "import sys\nfrom oattn_hub.sweep import read_models\nfrom oattn_hub.sweep.state import SweepFolder\n"
    script += "with SweepFolder(sys.argv[1]).hold(read_models(sys.argv[2:])[0]):\n"
    script += "  print('held', flush=True)\n  sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "out"), *lines], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert run_sweep(lines, tmp_path / "out", InProcess(), SMALL).statuses[0].state == "waiting"
        holder.kill()
    with SweepFolder(tmp_path / "out").hold(read_models(lines)[0], wait=5):  # a killed owner gives it back
        pass
    assert run_sweep(lines, tmp_path / "out", InProcess(), SMALL).count("done") == 1


def test_what_a_killed_sweep_left_is_done_again(make_model: MakeModel, tmp_path: Path) -> None:
    lines = [str(make_model("a"))]
    (job,) = read_models(lines)
    sweep = SweepFolder(tmp_path / "out")
    sweep.write(job, Status(job.model, "running", tries=1))
    assert run_sweep(lines, tmp_path / "out", InProcess(), SMALL).statuses[0].tries == 2
    (sweep.folder(job) / "status.json").write_text("{")  # torn
    assert run_sweep(lines, tmp_path / "out", InProcess(), SMALL).count("done") == 1
    (sweep.folder(job) / "report.json").unlink()  # done, says the status, but the report is gone
    assert run_sweep(lines, tmp_path / "out", InProcess(), SMALL).count("done") == 1
    assert Report.load(sweep.folder(job)).heads


def test_warm_processes_survive_a_model_that_kills_them(make_model: MakeModel, tmp_path: Path) -> None:
    lines = [str(make_model("kk", kills="once")), str(make_model("a"))]
    result = run_sweep(lines, tmp_path / "out", LocalEngine(workers=1), TRUSTING, retries=1)
    assert [(status.state, status.tries) for status in result.statuses] == [("done", 2), ("done", 1)]


@pytest.mark.slow
def test_a_model_that_always_kills_its_worker_fails_alone(make_model: MakeModel, tmp_path: Path) -> None:
    lines = [str(make_model("kk", kills="always")), str(make_model("a")), str(make_model("bb"))]
    result = run_sweep(lines, tmp_path / "out", LocalEngine(workers=2), TRUSTING, retries=1)
    assert [(status.state, status.tries) for status in result.statuses] == [("failed", 2), ("done", 1), ("done", 1)]
    assert "worker died" in result.statuses[0].error


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_a_sweep_that_is_killed_leaves_no_workers_and_goes_on(make_model: MakeModel, tmp_path: Path) -> None:
    (tmp_path / "models.txt").write_text("\n".join(str(make_model(name)) for name in ("a", "bb", "ccc")))
    words = ["sweep", str(tmp_path / "models.txt"), "--out", str(tmp_path / "out")]
    words += ["--batches", "2", "--tokens", "8", "--workers", "1"]
    process = subprocess.Popen([sys.executable, "-m", "oattn_hub.cli", *words], start_new_session=True)
    jobs, sweep = read_models(tmp_path / "models.txt"), SweepFolder(tmp_path / "out")
    deadline = time.monotonic() + 300
    while sweep.status(jobs[0]).state != "done" and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    for job in jobs:
        with sweep.hold(job, wait=60):  # the worker ended with its parent
            pass
    assert main(words) == 0
    assert [sweep.status(job).state for job in jobs] == ["done"] * 3


@pytest.mark.slow
def test_ray_runs_the_same_work(make_model: MakeModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ray = pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # ray warns about its own default otherwise
    monkeypatch.setenv("RAY_worker_niceness", "0")  # on busy cores a nice worker gets no time at all
    lines = [f"{make_model('a')} cpus=1", str(make_model("kk", kills="once")), str(tmp_path)]
    result = run_sweep(lines, tmp_path / "out", "ray", TRUSTING, workers=1, retries=1)
    assert [status.state for status in result.statuses] == ["done", "done", "failed"]
    assert not ray.is_initialized()


def test_without_ray_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ImportError, match=r"pip install 'oattn_hub\[ray\]'"):
        run_sweep(["me/a"], tmp_path / "out", "ray")


def test_the_leaderboard_shows_every_report_and_every_failure(
    make_model: MakeModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = make_model("<b>a")
    (tmp_path / "empty").mkdir()
    board = run_sweep([f"'{good}'", str(tmp_path / "empty")], tmp_path / "out", InProcess(), SMALL).leaderboard
    (row,) = board.rows
    report = Report.load(tmp_path / "out" / Path(row.page).parent)
    assert (row.heads, row.layers, row.parameters) == (4, 2, report.model.n_parameters)
    assert row.network_entropy == report.network[0].entropy
    assert (row.spearman, row.removable) == (report.stability[0].spearman, None)
    page = (tmp_path / "out/leaderboard.html").read_text()
    assert "<b>a" not in page
    assert "&lt;b&gt;a" in page
    assert str(tmp_path / "empty") in page
    with (tmp_path / "out/leaderboard.csv").open(newline="") as file:
        (read,) = csv.DictReader(file)
    assert float(read["network_entropy"]) == row.network_entropy
    for name in ("report.json", "report.safetensors"):
        damaged = tmp_path / "out" / Path(row.page).parent / name
        damaged.write_bytes(damaged.read_bytes()[:-40])
        again = run_sweep([f"'{good}'"], tmp_path / "out", InProcess(), SMALL).leaderboard
        assert again.rows == (row,)  # made again


@pytest.mark.slow
def test_an_evaluated_sweep_says_what_is_removable(make_model: MakeModel, tmp_path: Path) -> None:
    options = Options(batches=2, tokens=24, evaluate=True)
    board = run_sweep([str(make_model("a"))], tmp_path / "out", InProcess(), options).leaderboard
    assert board.failures == {}
    report = Report.load(tmp_path / "out" / Path(board.rows[0].page).parent)
    found = answer(report).removal
    # it was read off the loss, while the model's own page answers by divergence
    assert board.rows[0].removable == (len(found.heads) / len(report.heads) if found else 0.0)


def test_the_command_says_how_every_model_ended(
    make_model: MakeModel, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oattn_hub.sweep.rounds.LocalEngine", lambda workers: InProcess())
    (tmp_path / "models.txt").write_text(f"{make_model('a')}\n{tmp_path}\n")
    words = ["sweep", str(tmp_path / "models.txt"), "--out", str(tmp_path / "out"), "--retries", "0", "--json"]
    assert main([*words, "--batches", "2", "--tokens", "8"]) == 1
    printed = capsys.readouterr()
    assert [status["state"] for status in json.loads(printed.out)["models"]] == ["done", "failed"]
    assert "2 models: 1 done, 1 failed" in printed.err
    assert "will be tried again" not in printed.err  # a folder without a model is the same a minute later
    assert "…" not in printed.err  # names and titles are whole: they were cut to fit
