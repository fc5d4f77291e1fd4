"""How time and memory of an analysis grow with heads and tokens: every stage, CPU seconds and bytes per entry.

    python benchmarks/scale.py --out benchmarks/results/scale.md            # the growth table: about 25 minutes
    python benchmarks/scale.py --sizes 1024x128 1024x256                    # heads x tokens, on the screen
    python benchmarks/scale.py --long 5120x512 --batches 6 --folder DIR     # one analysis of several batches
    python benchmarks/scale.py --grow                                       # growing trees of 256 to 2,048 points

Each size runs in a process of its own with one thread, on one batch of synthetic attention (that of ``geometry.py``)
in a store on disk, as a capture leaves it. Bytes per entry are the largest resident memory of a stage above what
the process had before the first, mapped files included, divided by queries x keys x heads.

The long run uses all cores that it may use, and the clock. Every finished batch is kept in its folder with its seconds
and the peak of its process; called again it goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from pages import write_page

HEADS = ("128x128", "256x128", "512x128", "1024x128", "2048x128", "5120x128")
TOKENS = ("256x64", "256x128", "256x256", "256x512")
GROWN = (256, 512, 1024, 2048)
STAGES = ("organise", "report", "save", "page")
GOAL_BYTES = 8.0
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def write_batch(folder: Path, heads: int, tokens: int, seed: int = 0) -> None:
    """One batch more in a store, its heads in layers of 32, written head by head."""
    from geometry import attention_heads

    from oattn_hub.attention.store import StoreInfo
    from oattn_hub.attention.writer import StoreWriter
    from oattn_hub.records import ModelInfo

    model = ModelInfo("synthetic", None, None, "torch", "tensor", "generic")
    writer = StoreWriter(folder, StoreInfo(model, ("probs",)), resume=True)
    batch = writer.begin_batch()
    for number, matrix in enumerate(attention_heads((tokens, tokens, heads), seed)):
        if number % 32 == 0:
            layer = number // 32
            batch.add_layer("decoder", tokens, tokens, layer, f"layers.{layer}", min(32, heads - number))
        batch.add_heads("decoder", "probs", matrix[None])
    writer.finish_batch(batch, f"synthetic {seed}", [])
    writer.release()


class Meter:
    """CPU seconds and peak memory of stages."""

    def __init__(self, entries: int) -> None:
        self.entries = entries
        self.before = _memory("VmRSS")
        self.seconds: dict[str, float] = {}
        self.bytes: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Measure the block."""
        _CLEAR.write_text("5")  # the peak starts anew
        began = time.process_time()
        yield
        self.seconds[name] = time.process_time() - began
        self.bytes[name] = (_memory("VmHWM") - self.before) / self.entries


def _memory(name: str) -> int:
    line = next(line for line in _STATUS.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024


def measure(heads: int, tokens: int, folder: Path) -> dict[str, Any]:
    """In this process: every stage on a store that is there."""
    from oattn_hub import Analyzer
    from oattn_hub.attention.store import AttentionStore

    analyzer = Analyzer(progress=lambda *_: None)
    write_batch(folder / "small", 12, 12)
    for precision in ("float32", "float64"):  # everything imported, compiled or read from numba's cache
        small = Analyzer(questionnaire={"precision": precision}, progress=lambda *_: None)
        small.run(AttentionStore.open(folder / "small"), out=folder / "small-report")
    store = AttentionStore.open(folder / "store")
    meter = Meter(heads * tokens * tokens)
    with meter.stage("organise"):
        measured = analyzer.measure(store)
    with meter.stage("report"):
        report = analyzer.report(store, measured)
    with meter.stage("save"):
        report.save(folder / "report")
    with meter.stage("page"):
        report.write_page(folder / "report.html")
    sizes = {
        "report": sum(file.stat().st_size for file in (folder / "report").iterdir()),
        "page": (folder / "report.html").stat().st_size,
    }
    return {"seconds": meter.seconds, "bytes": meter.bytes, "size": sizes}


def long_run(size: str, batches: int, folder: Path) -> None:
    """Every batch in a process of its own, then the report on all of them; what is finished is not done again."""
    for stage in (*map(str, range(batches)), "report"):
        if not (folder / f"{stage}.json").exists():
            command = [sys.executable, __file__, "--stage", size, stage, str(batches), str(folder)]
            subprocess.run(command, check=True)
        record = json.loads((folder / f"{stage}.json").read_text())
        print(f"{stage}: {record['seconds']:.0f} s, peak {record['peak'] / 2**30:.2f} GiB", flush=True)
    records = [json.loads((folder / f"{stage}.json").read_text()) for stage in (*map(str, range(batches)), "report")]
    total, peak = sum(record["seconds"] for record in records), max(record["peak"] for record in records)
    print(f"{size}, {batches} batches: {total / 60:.1f} minutes, peak {peak / 2**30:.2f} GiB")


def stage_of_long_run(size: str, stage: str, batches: int, folder: Path) -> None:
    """In this process: one batch of a long run measured, or the report on all."""
    from oattn_hub import Analyzer
    from oattn_hub.analysis.measure import BatchMeasurement, check_finite, measure_batch
    from oattn_hub.analysis.samples import room
    from oattn_hub.attention.store import AttentionStore

    analyzer = Analyzer(progress=lambda *_: None)
    if stage != "report":
        drawn_in_another_process(size, int(stage), folder)
    store = AttentionStore.open(folder / "store")
    (group,) = store.groups
    began, cpu = time.perf_counter(), time.process_time()
    if stage == "report":
        measured = [BatchMeasurement.load(folder / f"{number}.safetensors") for number in range(batches)]
        report = analyzer.report(store, {group: measured})
        report.save(folder / "report")
        report.write_page(folder / "report.html")
    else:
        check_finite(store, int(stage), analyzer.kind, group)
        X = store.tensor(int(stage), analyzer.kind, group)
        measure_batch(X, analyzer.settings(batches, 0)).save(folder / f"{stage}.safetensors")
    record = {
        "seconds": time.perf_counter() - began,
        "cpu": time.process_time() - cpu,
        "peak": _memory("VmHWM"),
        "load": os.getloadavg(),
    }
    (folder / f"{stage}.json").write_text(json.dumps(record))
    if stage != "report" and int(stage) >= room(store, batches)[0]:
        store.give_back(int(stage))  # the report shows the first ones


def drawn_in_another_process(size: str, batch: int, folder: Path) -> None:
    """Put a batch into the store, unless it is there: its drawing counts for nothing."""
    from oattn_hub.attention.store import AttentionStore

    heads, tokens = map(int, size.split("x"))
    place = folder / "store"
    if not AttentionStore.is_store(place) or AttentionStore.open(place).n_batches <= batch:
        draw = f"import pathlib, scale; scale.write_batch(pathlib.Path({str(place)!r}), {heads}, {tokens}, {batch})"
        subprocess.run([sys.executable, "-c", draw], check=True, cwd=Path(__file__).parent)


def in_fresh_process(size: str) -> dict[str, Any]:
    """The record of one size, such as ``1024x128``."""
    heads, tokens = map(int, size.split("x"))
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    # without the threshold glibc moves freed arrays of up to 32 MB into a heap that it keeps, and that is counted too
    environment = {**os.environ, **dict.fromkeys(names, "1"), "MALLOC_MMAP_THRESHOLD_": "262144"}
    with tempfile.TemporaryDirectory() as folder:
        write_batch(Path(folder) / "store", heads, tokens)
        command = [sys.executable, __file__, "--measure", size, folder]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    record: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return record


def row(size: str, record: dict[str, Any]) -> str:
    """One line of the table; bytes above the goal in bold."""
    heads, tokens = size.split("x")
    seconds = [f"{record['seconds'][stage]:.1f}" for stage in STAGES]
    worst = [record["bytes"][stage] for stage in STAGES]
    found = [f"**{value:.1f}**" if value > GOAL_BYTES else f"{value:.1f}" for value in worst]
    files = [f"{record['size'][name] / 1e6:.1f}" for name in ("report", "page")]
    return f"| {heads} | {tokens} | {' | '.join([*seconds, *found, *files])} |"


def exponent(sizes: list[str], records: dict[str, Any], place: int, stage: str) -> float:
    """The slope of log seconds against log heads (place 0) or log tokens (1)."""
    along = [float(size.split("x")[place]) for size in sizes]
    seconds = [max(records[size]["seconds"][stage], 1e-3) for size in sizes]
    return float(np.polyfit(np.log(along), np.log(seconds), 1)[0])


def growth(records: dict[str, Any]) -> list[str]:
    """Fitted exponents, over all sizes of a series and over its upper half."""
    lines = ["| what grows | from, to | organise | report |", "|---|---|---|---|"]
    for what, place, series in (("heads (128 tokens)", 0, HEADS), ("tokens (256 heads)", 1, TOKENS)):
        known = [size for size in series if size in records]
        for part in (known, known[len(known) // 2 - 1 :]):
            if len(part) > 1:
                found = [f"{exponent(part, records, place, stage):.2f}" for stage in ("organise", "report")]
                ends = ", ".join((part[0].split("x")[place], part[-1].split("x")[place]))
                lines.append(f"| {what} | {ends} | {' | '.join(found)} |")
    return lines


def grown(counts: tuple[int, ...] = GROWN, repeats: int = 5) -> list[str]:
    """CPU seconds of ``grow`` on points in clusters of 16, its eigenpairs known, and the fitted exponents."""
    from scipy.spatial.distance import pdist, squareform

    from oattn_hub.geometry.affinity import distance_affinity
    from oattn_hub.geometry.canonical import content_of_affinity
    from oattn_hub.geometry.growing import grow
    from oattn_hub.geometry.markov import components

    seconds = []
    for n in counts:
        rng = np.random.default_rng(0)
        points = np.repeat(2 * rng.standard_normal((n // 16, 8)), 16, axis=0) + 0.5 * rng.standard_normal((n, 8))
        affinity = distance_affinity(squareform(pdist(points, "cityblock")))
        parts, content = components(affinity), content_of_affinity(affinity)
        runs = []
        for _ in range(1 + repeats):  # the first one compiles
            began = time.process_time()
            grow(parts, content)
            runs.append(time.process_time() - began)
        seconds.append(min(runs[1:]))
    slopes = [np.polyfit(np.log(counts[first:]), np.log(seconds[first:]), 1)[0] for first in (0, -2)]
    cells = [*(f"{value:.4f}" for value in seconds), *(f"{slope:.2f}" for slope in slopes)]
    return [f"| {' | '.join([*map(str, counts), 'exponent', 'upper end'])} |", f"| {' | '.join(cells)} |"]


def main() -> None:
    """Measure every size and print or write the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--sizes", nargs="*", default=list(dict.fromkeys((*HEADS, *TOKENS))), help="heads x tokens")
    parser.add_argument("--stage", nargs=4, help=argparse.SUPPRESS)
    parser.add_argument("--long", metavar="SIZE", help="heads x tokens of one analysis of several batches")
    parser.add_argument("--grow", action="store_true", help="only how growing trees takes longer with the points")
    parser.add_argument("--batches", type=int, default=6, help="of the long run")
    parser.add_argument("--folder", type=Path, help="of the long run: what is finished is kept here")
    parser.add_argument("--out", type=Path, help="a Markdown page; what is written by hand at its end is kept")
    options = parser.parse_args()
    if options.measure:
        heads, tokens = map(int, options.measure[0].split("x"))
        print(json.dumps(measure(heads, tokens, Path(options.measure[1]))))
        return
    if options.stage:
        size, stage, batches, folder = options.stage
        stage_of_long_run(size, stage, int(batches), Path(folder))
        return
    if options.grow:
        print("\n".join(grown()))
        return
    if options.long:
        if options.folder is None:
            parser.error("The long run needs --folder, to keep what is finished.")
        options.folder.mkdir(parents=True, exist_ok=True)
        long_run(options.long, options.batches, options.folder)
        return
    lines = [
        "| heads | tokens | organise s | report s | save s | page s "
        "| organise B/entry | report | save | page | report MB | page MB |",
        f"|{'---|' * 12}",
    ]
    records = {}
    for size in options.sizes:
        records[size] = in_fresh_process(size)
        lines.append(row(size, records[size]))
        print(lines[-1], flush=True)
    page = "\n".join(["# Growth with heads and tokens", "", *lines, "", *growth(records), ""])
    print(page)
    if options.out:
        write_page(options.out, page, "scale.py")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
