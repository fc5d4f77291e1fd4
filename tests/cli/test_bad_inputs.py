"""A hundred things people type wrong: one line each, no traceback, nothing written, and torch never imported."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

BAD = {
    "analyze": [
        "", "   ", "./nowhere", "/no/such/folder", "~/no-such-model", "a/b/c", "owner/name/extra", "a b", "-",
        "owner/", "/owner", "../x", "C:\\models\\bert", "model!", "näme/modell", "tiny --batches 0",
        "tiny --batches -3", "tiny --batches two", "tiny --batches 1.5", "tiny --tokens 1", "tiny --tokens 0",
        "tiny --tokens many", "tiny --seed -1", "tiny --seed x", "tiny --kind prob", "tiny --kind ''",
        "tiny --data nowhere.txt", "tiny --data EMPTY", "tiny --data EMPTYDIR", "tiny --data ''",
        "tiny --data dataset:", "tiny --data dataset:a/b/c", "tiny --out FILE", "tiny --out FULL",
        "tiny --out FILE/inside", "tiny --unknown", "tiny more",
        "FILE --batches 1", "EMPTYDIR --batches 1", "FULL --batches 1", "tiny --task nonsense",
        "tiny --adapter nonsense", "MODEL --gguf-file nowhere.gguf", "tiny --gguf-file ../x.gguf", "tiny --revision ''",
        "MODEL --batches 1", "PICKLES --batches 1", "BROKEN --batches 1", "PICKLES --allow-pickle --revision main",
        "tiny --data BINARY", "tiny --out /dev/null", "LINK --seed 0", "LOOP --seed 0", "bert--base", "a/LONG", "LONG",
        "tiny --data PIPE", "tiny --data /dev/zero", "tiny --data BLANKS", "tiny --data LINK", "tiny --out LINK",
        "tiny --out LOOP", "tiny --out LINK/inside", "tiny --out LONG", "tiny --out ''", "REPORT --seed 0",
        "tiny --device cpu --device-map auto", "tiny --offload-folder FILE", "tiny --data COLUMNS",
        "tiny --data FLOATS", "tiny --data NEGATIVE", "tiny --kind probs,scores", "tiny --dtype int8",
    ],
    "capture": [
        "tiny", "./nowhere --out x", "tiny --out x --batches 0", "tiny --out x --tokens 1", "tiny --out x --kind all",
        "tiny --out x --dtype float64", "tiny --out x --pool 0", "tiny --out x --seed -1",
        "tiny --out x --data nowhere.txt", "tiny --out x --data EMPTY",
        "EMPTYDIR --out x", "tiny --out x --adapter nonsense", "tiny --out x --task nonsense",
        "tiny --out FULL", "tiny --out FILE", "tiny --out FULL --resume", "MODEL --out x",
    ],
    "evaluate": [
        "nowhere", "FULL", "FILE", "REPORT --inputs 0", "REPORT --inputs -1", "REPORT --inputs x",
        "REPORT --tokens 0", "REPORT --seeds 0", "REPORT --seeds 4", "REPORT --seed -1", "REPORT --data nowhere.txt",
        "REPORT --data EMPTY", "REPORT --scores nonsense", "REPORT --scores ''", "REPORT --model ./nowhere",
        "REPORT --model EMPTYDIR", "REPORT --figure FULL", "REPORT --figure FILE/x.png", "REPORT --scores random",
        "REPORT --figure ''", "REPORT --seeds 99999999999", "REPORT --device cpu --device-map auto",
        "REPORT --data COLUMNS", "REPORT --figure curves.xyz", "REPORT --model PICKLES", "REPORT --data BINARY",
    ],
    "validate": [
        "nowhere", "FULL", "FILE", "REPORT --batches 3", "REPORT --batches x", "REPORT --draws 4", "REPORT --inputs 1",
        "REPORT --seed -1", "REPORT --remove ''", "REPORT --remove 0", "REPORT --remove 5-1", "REPORT --remove 1-",
        "REPORT --remove x", "REPORT --domains ''", "REPORT --domains nowhere.txt", "REPORT --domains EMPTY",
        "REPORT --domains ,", "REPORT --model ./nowhere", "REPORT --draws 99999999999",
        "REPORT --remove 1-99999999",
    ],
    "prune": [
        "nowhere", "FULL", "REPORT", "REPORT --budget 200%", "REPORT --budget -1%", "REPORT --budget x",
        "REPORT --budget nan", "REPORT --budget ''", "REPORT --fraction 1.5", "REPORT --fraction 0",
        "REPORT --fraction -0.1",
        "REPORT --fraction nan", "REPORT --fraction 200%", "REPORT --fraction x%",
        "REPORT --fraction 0.2 --budget 1%", "REPORT --heads 1", "REPORT --heads x.y",
        "REPORT --heads 0.1,,", "REPORT --heads ''", "REPORT --fraction 0.1 --min-heads-per-layer -1",
        "REPORT --fraction 0.1 --variant thin", "REPORT --fraction 0.1 --out FILE",
        "REPORT --fraction 0.1 --out FULL", "REPORT --fraction 0.1 --data nowhere.txt",
        "REPORT --fraction 0.1 --model ./nowhere",
        "REPORT --fraction 0.1 --calibration nowhere.txt", "REPORT --budget 1% --metric nonsense",
        "REPORT --budget 1% --lengths 0", "REPORT --budget 1% --lengths ''", "REPORT --budget 1% --lengths 128,x",
        "REPORT --fraction 0.1 --plan FULL", "REPORT --fraction 0.1 --plan FILE/x.json", "FILE", "NOPLAN",
        "REPORT --fraction 0.1 --seed -1", "REPORT --heads 0.1", "REPORT --fraction 0.1 --out LINK",
        "REPORT --fraction 0.1 --data PIPE", "REPORT --fraction 0.1 --calibration BLANKS",
    ],
    "heal": [
        "nowhere --out x", "FULL --out x", "FILE --out x", "PRUNED", "PRUNED --out FULL", "PRUNED --out FILE",
        "PRUNED --out x --minutes 0", "PRUNED --out x --minutes nan", "PRUNED --out x --inputs 0",
        "PRUNED --out x --rate 0", "PRUNED --out x --lengths 0", "PRUNED --out x --data nowhere.txt",
        "PRUNED --out x --calibration EMPTY", "PRUNED --out x --model ./nowhere", "PRUNED --out x --seed -1",
    ],
    "export": [
        "MODEL", "./nowhere --onnx x", "PICKLES --allow", "GGUF --onnx FULL", "GGUF --onnx FILE", "GGUF --gguf FULL",
        "GGUF --gguf x.gguf --like nowhere.gguf", "GGUF --gguf x.gguf --dtype float8",
    ],
    "benchmark": [
        "nowhere --lm-eval x", "PRUNED", "PRUNED --pairs nowhere.csv", "PRUNED --pairs EMPTY", "PRUNED --lm-eval ''",
        "PRUNED --lm-eval x --limit 0",
    ],
    "migrate": [
        "nowhere --out x", "FULL --out x", "FILE --out x", "MODEL", "MODEL --out FULL", "MODEL --out FILE",
    ],
    "sweep": [
        "nowhere --out x", "FULL --out x", "EMPTY --out x", "FILE", "FILE --out FILE", "FILE --out FULL",
        "FILE --out x --workers 0", "FILE --out x --kind prob", "FILE --out x --batches 0",
        "FILE --out x --engine slurm", "FILE --out x --engine hf-jobs", "FILE --out x --dry-run",
    ],
    "adapters": [
        "--explain ./nowhere", "--explain EMPTYDIR", "nothing-is-called-this",
    ],
    "heads": [
        "nowhere", "FULL", "FILE", "REPORT --csv FULL", "REPORT --csv ''", "REPORT --csv FILE/x", "REPORT --csv LINK",
        "REPORT --csv PIPE", "LONG", "LOOP", "REPORT --json --csv out.csv",
    ],
    "compare": [
        "REPORT", "REPORT nowhere", "nowhere REPORT", "REPORT REPORT --out FULL", "REPORT REPORT --out FILE",
        "REPORT REPORT --out LINK", "REPORT LOOP",
    ],
    "publish": [
        "REPORT", "nowhere me/x", "REPORT x", "REPORT me/x/y", "REPORT me/..", "REPORT 'me/a b'",
        "REPORT me/x --report nowhere", "FULL me/x", "REPORT me/x --base-model nonsense",
        "REPORT me/x --dry-run FULL", "REPORT me/x --dry-run FILE", "REPORT me/x --include nowhere.md",
    ],
    "pull": [
        "", "nonsense", "me/x/y", "../x", "me/x --to FULL", "me/x --to FILE",
    ],
    "card": [
        "nowhere", "REPORT --repo nonsense", "FULL", "REPORT --base-model nonsense", "REPORT --out FULL",
        "REPORT --out FILE",
    ],
    "hub": [
        "", "start", "variants nonsense", "serve --port 70000", "serve --port x", "serve --dir FILE",
        "serve --user ''", "serve --user 'a b'", "serve --org a/b", "serve --dir ''",
    ],
    "completion": [
        "", "powershell",
    ],
    "": [
        "", "analyse tiny", "--nothing",
    ],
}  # fmt: skip
RUNNER = """
import io, json, shlex, sys
from contextlib import redirect_stderr, redirect_stdout
from oattn_hub.cli import main

answers = []
for line in json.load(sys.stdin):
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = main(shlex.split(line))
        except SystemExit as stop:
            code = stop.code
    answers.append([code, out.getvalue(), err.getvalue()])
print(json.dumps({"answers": answers, "slow": sorted({"torch", "transformers", "timm"} & set(sys.modules))}))
"""


@pytest.fixture
def places(tmp_path: Path) -> dict[str, str]:
    """A report as far as arguments are looked at, a file, and folders with nothing or with something else in them."""
    (tmp_path / "empty.txt").touch()
    (tmp_path / "file.txt").write_text("text")
    for name in ("empty", "full", "report"):
        (tmp_path / name).mkdir()
    (tmp_path / "full/thesis.tex").write_text("ten years of work")
    (tmp_path / "report/report.json").write_text("{}")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    for name, file in (("model", "config.json"), ("pruned", "oattn_pruned.json"), ("pickles", "config.json")):
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text("{}")
    (tmp_path / "pickles/pytorch_model.bin").write_bytes(b"\x80")
    (tmp_path / "gguf").mkdir()
    (tmp_path / "gguf/model.gguf").write_bytes(b"GGUF")
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/config.json").write_text("{")
    (tmp_path / "other.json").write_text('{"model_type": "bert"}')
    (tmp_path / "link").symlink_to(tmp_path / "not-there")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "blanks.txt").write_text(" \n\t\n")
    (tmp_path / "columns.csv").write_text("a,b\n1,2\n")
    np.save(tmp_path / "floats.npy", np.zeros((2, 3)))
    np.save(tmp_path / "negative.npy", np.array([-5, 3]))
    os.mkfifo(tmp_path / "pipe")
    names = {
        "LINK": "link", "LOOP": "loop", "BLANKS": "blanks.txt", "PIPE": "pipe",
        "EMPTYDIR": "empty", "EMPTY": "empty.txt", "FILE": "file.txt", "FULL": "full", "REPORT": "report",
        "MODEL": "model", "PRUNED": "pruned", "NOPLAN": "other.json", "BINARY": "binary.txt", "PICKLES": "pickles",
        "BROKEN": "broken", "GGUF": "gguf", "COLUMNS": "columns.csv",
        "FLOATS": "floats.npy", "NEGATIVE": "negative.npy",
    }  # fmt: skip
    return {name: str(tmp_path / path) for name, path in names.items()} | {"LONG": "a" * 300}


def test_a_hundred_bad_inputs(places: dict[str, str], tmp_path: Path) -> None:
    lines = []
    for verb, rests in BAD.items():
        for rest in rests:
            # the first argument of these verbs is one word, however odd
            one_word = verb in ("analyze", "pull") and "--" not in rest and rest != "tiny more"
            words = f"'{rest}'" if one_word else rest
            for name, path in places.items():
                words = re.sub(rf"\b{name}\b", path, words)
            lines.append(f"{verb} {words}".strip())
    assert len(lines) >= 100
    before = sorted(tmp_path.rglob("*"))
    command, asked = [sys.executable, "-c", RUNNER], json.dumps(lines)
    done = subprocess.run(command, input=asked, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found["slow"] == []  # so that each answer takes a fraction of a second
    for line, (code, out, err) in zip(lines, found["answers"], strict=True):
        assert code in (1, 2), f"oattn {line}: {code} {err}"
        assert out == "", line
        assert "Traceback" not in err
        assert "Free space" not in err, line  # nothing here is a matter of the disk
        last = err.strip().splitlines()[-1]
        assert last.startswith("oattn"), f"oattn {line}: {err}"
        assert last.rstrip().endswith((".", ")", "'")) or code == 2, f"oattn {line}: {last}"
    assert sorted(tmp_path.rglob("*")) == before  # nothing was written
