"""Time and memory of the geometry against a plain numpy/scipy transcription (``geometry_plain.py``).

    python benchmarks/geometry.py --out benchmarks/results/geometry.md  # every size, both programs: 15 to 20 minutes
    python benchmarks/geometry.py --sizes vit transformer --no-growth   # some of them, on the screen

Every measurement runs in a fresh process with the same number of threads (``OMP_NUM_THREADS``, default: all cores),
after a warm-up on a small tensor. Both programs must build the same trees.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pages import write_page

SIZES = {
    "ViT-B/16, 128 tokens": (128, 128, 144),
    "ViT-B/16, 197 tokens": (197, 197, 144),
    "Transformer-XL": (256, 256, 128),
    "512 tokens, 384 heads": (512, 512, 384),
}
GOAL_SIZE = "Transformer-XL"
STAGES = ("questionnaire", "emd", "entropies", "network")
HEADS = (36, 72, 144, 288)
TOKENS = (64, 96, 128, 192, 256)

HEADING = """# Geometry: time and memory against a plain transcription

The questionnaire, the entropies of all heads (m = 400) and the network entropy (m = 100) by `oattn_hub.geometry` and by
`benchmarks/geometry_plain.py`, which is the formulas in numpy and scipy. Float64 input, synthetic attention (softmax of
clustered tokens, 12 kinds of heads). This page is written by:
"""


# with one thread CPU seconds, which other programs disturb least; with several only the wall clock counts
clock = time.process_time if os.environ.get("OMP_NUM_THREADS") == "1" else time.perf_counter


def attention(shape: tuple[int, int, int], seed: int = 0) -> NDArray[np.float64]:
    """Softmax attention of tokens in 8 clusters by heads of 12 kinds."""
    X = np.empty(shape)
    for head, matrix in enumerate(attention_heads(shape, seed)):
        X[:, :, head] = matrix
    return X


def attention_heads(shape: tuple[int, int, int], seed: int = 0) -> Iterator[NDArray[np.float64]]:
    """The (query, key) matrix of one head after the other."""
    n_queries, n_keys, n_heads = shape
    rng = np.random.default_rng(seed)
    width = 16
    tokens = rng.standard_normal((max(n_queries, n_keys), width))
    tokens[:, :4] += 2 * np.resize(
        np.repeat(rng.standard_normal((8, 4)), -(-len(tokens) // 8), axis=0), (len(tokens), 4)
    )
    kinds = rng.standard_normal((12, width, width)) / width
    for head in range(n_heads):
        form = kinds[head % 12] + 0.3 * rng.standard_normal((width, width)) / width
        scores = tokens[:n_queries] @ form @ tokens[:n_keys].T
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        yield weights / weights.sum(axis=1, keepdims=True)


def run_ours(X: NDArray[np.float64], n_iters: int) -> dict[str, Any]:
    from oattn_hub.geometry import Questionnaire, head_entropies, network_entropy, questionnaire

    seconds = [0.0]
    real = questionnaire.emd_of_checked

    def timed(*args: Any, **options: Any) -> Any:
        began = clock()
        result = real(*args, **options)
        seconds[0] += clock() - began
        return result

    questionnaire.emd_of_checked = timed
    began = clock()
    q = Questionnaire(n_iters).fit(X)
    organised = clock()
    entropies = head_entropies(X, q.trees_)
    measured = clock()
    network = network_entropy(X, q.trees_)
    ended = clock()
    questionnaire.emd_of_checked = real
    folders = {
        axis: _folders(q.trees_[axis].folders(level) for level in range(q.trees_[axis].n_levels)) for axis in q.trees_
    }
    return _record(began, organised, measured, ended, seconds[0], entropies, network, folders)


def run_plain(X: NDArray[np.float64], n_iters: int) -> dict[str, Any]:
    import geometry_plain as plain

    began = clock()
    result = plain.questionnaire(X, n_iters, clock)
    organised = clock()
    query, key, head = (plain.haar(result.trees[axis], X.shape[axis]) for axis in range(3))
    entropies = plain.head_entropies(X, query, key)
    measured = clock()
    network = plain.network_entropy(X, query, key, head)
    ended = clock()
    folders = {name: _folders(result.trees[axis]) for axis, name in enumerate(("query", "key", "head"))}
    return _record(began, organised, measured, ended, result.emd_seconds, entropies, network, folders)


def _folders(levels: Any) -> list[list[list[int]]]:
    return [sorted(sorted(folder.tolist()) for folder in level) for level in levels]


def _record(
    began: float,
    organised: float,
    measured: float,
    ended: float,
    emd: float,
    entropies: Any,
    network: float,
    folders: Any,
) -> dict[str, Any]:
    return {
        "questionnaire": organised - began,
        "emd": emd,
        "entropies": measured - organised,
        "network": ended - measured,
        "mean_entropy": float(np.mean(entropies)),
        "network_entropy": network,
        "folders": folders,
    }


def measure(program: str, shape: tuple[int, int, int], n_iters: int) -> dict[str, Any]:
    """In this process: warm up, make the tensor, run; with CPU seconds and peak memory as a multiple of the tensor."""
    run = run_ours if program == "ours" else run_plain
    if program == "ours":
        from oattn_hub.geometry import Questionnaire

        for precision in ("float32", "float64"):  # compiled, or read from numba's cache
            Questionnaire(1, precision=precision).fit(attention((12, 12, 12)))
    run(attention((12, 12, 12)), 1)
    X = attention(shape)
    before = resource.getrusage(resource.RUSAGE_SELF)
    record = run(X, n_iters)
    after = resource.getrusage(resource.RUSAGE_SELF)
    record["cpu"] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    # ru_maxrss before the run is the tensor and the libraries: only what goes beyond is the program's
    record["memory"] = 1 + (after.ru_maxrss - before.ru_maxrss) * 1024 / X.nbytes
    return record


def in_fresh_process(program: str, shape: tuple[int, int, int], n_iters: int, threads: int) -> dict[str, Any]:
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    environment = {**os.environ, **dict.fromkeys(names, str(threads))}
    command = [sys.executable, __file__, "--measure", program, json.dumps(shape), str(n_iters)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    record: dict[str, Any] = json.loads(done.stdout)
    return record


def best(program: str, shape: tuple[int, int, int], n_iters: int, threads: int, repeats: int) -> dict[str, Any]:
    """The fastest of several runs: the others were disturbed."""
    runs = [in_fresh_process(program, shape, n_iters, threads) for _ in range(repeats)]
    return min(runs, key=lambda record: record["questionnaire"])


def both(name: str, threads: int, repeats: int, largest_passes: int) -> tuple[int, dict[str, Any], dict[str, Any]]:
    """How many passes were made, and the records of both programs."""
    largest = SIZES[name][0] > 300
    n_iters = largest_passes if largest else 3
    ours, plain = (
        best(program, SIZES[name], n_iters, threads, 1 if largest else repeats) for program in ("ours", "plain")
    )
    return n_iters, ours, plain


def rows(name: str, n_iters: int, ours: dict[str, Any], plain: dict[str, Any]) -> Iterator[str]:
    tensor = f"{name}: {' x '.join(map(str, SIZES[name]))}"
    for label, record in (("oattn_hub", ours), ("plain", plain)):
        cells = [f"{record[key]:.2f}" for key in (*STAGES, "cpu", "memory")]
        yield f"| {tensor} | {label} | {n_iters} | {' | '.join(cells)} |"
    same = [axis for axis in ours["folders"] if ours["folders"][axis] == plain["folders"][axis]]
    apart = max(abs(ours[key] / plain[key] - 1) for key in ("mean_entropy", "network_entropy"))
    checks = f"same trees: {', '.join(same) or 'none'}; entropies apart by {apart:.0e}"
    factors = [f"{plain[key] / ours[key]:.1f}x" for key in (*STAGES, "cpu")]
    yield f"| {checks} | **factor** | | {' | '.join(factors)} | |"


def table(threads: int, names: list[str], repeats: int, largest_passes: int) -> tuple[list[str], dict[str, Any]]:
    """The lines of the table, and (ours, plain) by name of the size."""
    lines = [
        f"## {'1 thread, CPU seconds' if threads == 1 else f'{threads} threads, seconds on the clock'}",
        "",
        "| tensor | by | passes | questionnaire | of which EMD | entropies | network entropy | CPU s | peak / input |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    records = {}
    for name in names:
        n_iters, *records[name] = both(name, threads, repeats, largest_passes)
        lines += rows(name, n_iters, *records[name])
        print("\n".join(lines[-3:]), flush=True)
    return [*lines, ""], records


def exponents(threads: int, repeats: int) -> list[str]:
    """Fit seconds = c * size^exponent for growing heads and growing tokens."""
    lines = [
        f"## Growth (oattn_hub, 3 passes, {threads} thread{'s' * (threads > 1)}; goal: exponents of at most 2)",
        "",
        "| what grows | sizes | questionnaire s | exponent | entropies s | exponent |",
        "|---|---|---|---|---|---|",
    ]
    series = {
        "heads (128 tokens)": {heads: (128, 128, heads) for heads in HEADS},
        "tokens (72 heads)": {tokens: (tokens, tokens, 72) for tokens in TOKENS},
    }
    for what, shapes in series.items():
        runs = [best("ours", shape, 3, threads, repeats) for shape in shapes.values()]
        cells = [what, ", ".join(map(str, shapes))]
        for seconds in ([r["questionnaire"] for r in runs], [r["entropies"] + r["network"] for r in runs]):
            slope = np.polyfit(np.log(list(shapes)), np.log(seconds), 1)[0]
            cells += [", ".join(f"{s:.3f}" for s in seconds), f"{slope:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    return [*lines, ""]


def goals(threads: int, records: dict[str, Any]) -> list[str]:
    """What was wanted and what was found with this number of threads, sizes in the order of the tables."""
    lines = [f"| goal, {threads} thread{'s' * (threads > 1)} | found, by size |", "|---|---|"]
    if GOAL_SIZE in records:
        ours, plain = records[GOAL_SIZE]
        for stage, goal in (("emd", 15), ("questionnaire", 10)):
            lines.append(f"| {stage} {goal}x at {GOAL_SIZE} size | {plain[stage] / ours[stage]:.1f}x |")
    slowest = min(plain[stage] / ours[stage] for ours, plain in records.values() for stage in STAGES)
    shares = [(ours["entropies"] + ours["network"]) / ours["questionnaire"] for ours, _ in records.values()]
    memory = [ours["memory"] for ours, _ in records.values()]
    return [
        *lines,
        f"| no stage slower at any size | smallest factor {slowest:.1f}x |",
        f"| entropies and network entropy under 5 % of the questionnaire | {', '.join(f'{x:.1%}' for x in shares)} |",
        f"| peak memory at most 3x the input | {', '.join(f'{x:.2f}x' for x in memory)} |",
        "",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--sizes", nargs="*", default=[], help="parts of the names of the sizes to run")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, os.cpu_count() or 1])
    parser.add_argument("--repeats", type=int, default=2, help="runs of each, the fastest counts (largest size: one)")
    parser.add_argument("--no-growth", action="store_true", help="leave the fitted exponents out")
    parser.add_argument("--largest-passes", type=int, default=1, help="passes at the largest size, for both programs")
    parser.add_argument("--out", type=Path, help="a Markdown page; what is written by hand at its end is kept")
    options = parser.parse_args()
    if options.measure:
        program, shape, n_iters = options.measure
        print(json.dumps(measure(program, tuple(json.loads(shape)), int(n_iters))))
        return
    names = [name for name in SIZES if not options.sizes or any(part.lower() in name.lower() for part in options.sizes)]
    if not names:
        parser.error(f"No size has {' or '.join(options.sizes)} in its name. Valid names are {', '.join(SIZES)}.")
    tables, found = [], []
    for threads in dict.fromkeys(options.threads):
        lines, records = table(threads, names, options.repeats, options.largest_passes)
        tables += lines
        found += goals(threads, records)
    if not options.no_growth:
        tables += exponents(options.threads[0], options.repeats)
    command = " ".join(["python", "benchmarks/geometry.py", *sys.argv[1:]])
    load = f"load of the machine at the end: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    page = "\n".join([HEADING, f"`{command}`; {load}.", "", "## Against the goals", "", *found, *tables])
    print(f"\n{page}")
    if options.out:
        write_page(options.out, page, "geometry.py")


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
