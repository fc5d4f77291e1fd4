"""A disk that fills up under every verb that writes: one sentence, nothing half-written, and the next try succeeds."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from oattn_hub.report import Report

resource = pytest.importorskip("resource", reason="limits of file sizes are a matter of POSIX")

# A process that may write files of so many bytes only, as on a disk that is full after them.
LIMITED = """
import resource, signal, sys
import numpy, safetensors.torch, torch, transformers
import oattn_hub.cli
limit, *words = sys.argv[1:]
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
if int(limit):
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
sys.exit(oattn_hub.cli.main(words))
"""


def oattn(limit: int, home: Path, *words: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OATTN_HOME": str(home), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    environment |= {"NUMBA_CACHE_DIR": "/nonexistent"} if limit else {}
    command = [sys.executable, "-W", "ignore", "-c", LIMITED, str(limit), *map(str, words)]
    return subprocess.run(command, env=environment, text=True, capture_output=True, timeout=600, check=False)


@pytest.fixture(scope="module")
def work(bert_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A report and a pruned checkpoint, made while there was room."""
    import numpy as np

    folder = tmp_path_factory.mktemp("work")
    np.save(folder / "ids.npy", np.random.default_rng(0).integers(0, 64, 4000))
    done = oattn(0, folder / "home", *ANALYZE(bert_folder, folder, folder / "report"))
    assert done.returncode == 0, done.stderr
    done = oattn(0, folder / "home", "prune", folder / "report", "--heads", "0.1", "--out", folder / "pruned")
    assert done.returncode == 0, done.stderr
    return folder


def ANALYZE(model: Path, work: Path, out: Path) -> list[object]:  # noqa: N802
    return ["analyze", model, "--data", work / "ids.npy", "--batches", "2", "--tokens", "12", "--out", out]


def commands(model: Path, work: Path, out: Path) -> dict[str, list[object]]:
    data = ["--data", work / "ids.npy"]
    return {
        "capture": ["capture", model, *data, "--batches", "2", "--tokens", "12", "--out", out / "capture"],
        "analyze": ANALYZE(model, work, out / "report"),
        "prune": ["prune", work / "report", "--heads", "0.2", "--out", out / "pruned"],
        "masked": ["prune", work / "report", "--heads", "0.2", "--variant", "masked", "--out", out / "masked"],
        "plan": ["prune", work / "report", "--heads", "0.2", "--plan", out / "plan.json"],
        "publish": ["publish", work / "report", "me/x", "--dry-run", out / "dry"],
        "publish a checkpoint": ["publish", work / "pruned", "me/x", "--dry-run", out / "dry-pruned"],
        "publish a page": ["publish", work / "report", "me/x", "--space", "--dry-run", out / "space"],
        "card": ["card", work / "report", "--out", out / "card"],
        "card of a checkpoint": ["card", work / "pruned", "--out", out / "card-pruned"],
        "compare": ["compare", work / "report", work / "report", "--out", out / "comparison"],
        "heads": ["heads", work / "report", "--csv", out / "heads.csv"],
    }


@pytest.mark.slow
@pytest.mark.parametrize("limit", [100, 9000])
@pytest.mark.parametrize("verb", commands(Path(), Path(), Path()))
def test_a_full_disk_is_one_sentence_and_nothing_is_half_written(
    bert_folder: Path, work: Path, tmp_path: Path, verb: str, limit: int
) -> None:
    words = commands(bert_folder, work, tmp_path / "out")[verb]
    done = oattn(limit, tmp_path / "home", *words)
    assert "Traceback" not in done.stderr, done.stderr
    if done.returncode:
        assert re.search("Could not write|The system refused: File too large", done.stderr.splitlines()[-1])
    else:
        assert limit > 100, "nothing fits into a hundred bytes"
    left = [path for place in ("out", "home") for path in (tmp_path / place).rglob("*.part")]
    assert left == []
    Report.load(work / "report")
    if (tmp_path / "out").exists() and verb.startswith(("publish", "card")):
        return  # a dry run wants an empty folder
    again = oattn(0, tmp_path / "home", *words, *(["--resume"] if verb == "capture" else []))
    assert again.returncode == 0, again.stderr
