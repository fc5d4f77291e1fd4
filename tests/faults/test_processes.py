"""Real processes: several at once on one cache, and killed at every file they write."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ANALYZE = """
import sys, torch
from oattn_hub.analyzer import analyze
made = torch.Generator().manual_seed(1)
batches = [{"input_ids": torch.randint(0, 64, (1, 12), generator=made)} for _ in range(2)]
report = analyze(sys.argv[1], data=batches, batches=2, tokens=12)
print(report.fingerprint)
"""
# Ends the process without any clean-up at the n-th file that it is about to put in its place.
KILLED = """
import os, signal
from pathlib import Path
count, replace = [int(os.environ["KILL_AT"])], Path.replace
def counted(self, target):
    count[0] -= 1
    if count[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return replace(self, target)
Path.replace = counted
"""
PRUNE = """
import sys
from oattn_hub.pruning import PruningPlan
PruningPlan.from_heads(sys.argv[1], [(0, 1)]).apply(measure=False).save_pretrained(sys.argv[2])
"""
LOAD = """
import sys, oattn_hub
print(sum(p.numel() for p in oattn_hub.from_pretrained(sys.argv[1]).parameters()))
"""


def start(code: str, home: Path, *words: object, kill_at: int | None = None) -> subprocess.Popen[str]:
    environment = {**os.environ, "OATTN_HOME": str(home), "OMP_NUM_THREADS": "1", "KILL_AT": str(kill_at)}
    text = code if kill_at is None else KILLED + code
    command = [sys.executable, "-W", "ignore", "-c", text, *map(str, words)]
    return subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def finished(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=600)
    return process.returncode, out.strip(), err


@pytest.mark.slow
def test_eight_analyses_at_once_on_one_cache_are_all_right(bert_folder: Path, tmp_path: Path) -> None:
    expected = finished(start(ANALYZE, tmp_path / "alone", bert_folder))[1]
    together = [finished(process) for process in [start(ANALYZE, tmp_path / "home", bert_folder) for _ in range(8)]]
    assert [out for _, out, _ in together] == [expected] * 8, [err for *_, err in together]
    assert not list((tmp_path / "home").rglob("*.part"))


@pytest.mark.slow
def test_an_analysis_killed_at_every_file_ends_with_the_same_report(bert_folder: Path, tmp_path: Path) -> None:
    expected = finished(start(ANALYZE, tmp_path / "alone", bert_folder))[1]
    for kill_at in (1, 3, 5, 7, 9):
        code = finished(start(ANALYZE, tmp_path / f"home-{kill_at}", bert_folder, kill_at=kill_at))[0]
        assert finished(start(ANALYZE, tmp_path / f"home-{kill_at}", bert_folder))[1] == expected, (kill_at, code)
        assert not list((tmp_path / f"home-{kill_at}").rglob("*.part")), kill_at


@pytest.mark.slow
def test_a_prune_killed_at_any_file_is_whole_or_refused_and_can_be_repeated(bert_folder: Path, tmp_path: Path) -> None:
    for kill_at in (1, 2, 3):
        out = tmp_path / f"out-{kill_at}"
        killed = finished(start(PRUNE, tmp_path, bert_folder, out, kill_at=kill_at))[0]
        code, _, err = finished(start(LOAD, tmp_path, out))
        assert killed == 0 or (code != 0 and "oattn_hub.errors" in err), (kill_at, err)
        assert finished(start(PRUNE, tmp_path, bert_folder, out))[0] == 0
        assert finished(start(LOAD, tmp_path, out))[0] == 0
        assert not list(out.glob(".*"))


@pytest.mark.slow
def test_two_prunes_into_one_folder_end_right_or_say_who_holds_it(bert_folder: Path, tmp_path: Path) -> None:
    both = [start(PRUNE, tmp_path, bert_folder, tmp_path / "out") for _ in range(2)]
    ends = [finished(process) for process in both]
    assert any(code == 0 for code, *_ in ends)
    assert all(code == 0 or "is being written by process" in err for code, _, err in ends)
    assert finished(start(LOAD, tmp_path, tmp_path / "out"))[0] == 0
