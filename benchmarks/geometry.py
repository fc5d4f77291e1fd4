"""Time and memory of the geometry against a plain numpy/scipy transcription (``geometry_plain.py``).

    python benchmarks/geometry.py                  # every size, both programs: minutes
    python benchmarks/geometry.py --sizes vit txl  # some of them

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
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SIZES = {
    "ViT-B/16, 128 tokens": (128, 128, 144),
    "ViT-B/16, 197 tokens": (197, 197, 144),
    "Transformer-XL": (256, 256, 128),
    "512 tokens, 384 heads": (512, 512, 384),
}
HEADS = (36, 72, 144, 288)
TOKENS = (64, 96, 128, 192, 256)


# with one thread CPU seconds, which other programs disturb least; with several only the wall clock counts
clock = time.process_time if os.environ.get("OMP_NUM_THREADS") == "1" else time.perf_counter


def attention(shape: tuple[int, int, int], seed: int = 0) -> NDArray[np.float64]:
    """Softmax attention of tokens in 8 clusters by heads of 12 kinds, made head by head to keep memory low."""
    n_queries, n_keys, n_heads = shape
    rng = np.random.default_rng(seed)
    width = 16
    tokens = rng.standard_normal((max(n_queries, n_keys), width))
    tokens[:, :4] += 2 * np.resize(
        np.repeat(rng.standard_normal((8, 4)), -(-len(tokens) // 8), axis=0), (len(tokens), 4)
    )
    kinds = rng.standard_normal((12, width, width)) / width
    X = np.empty(shape)
    for head in range(n_heads):
        form = kinds[head % 12] + 0.3 * rng.standard_normal((width, width)) / width
        scores = tokens[:n_queries] @ form @ tokens[:n_keys].T
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        X[:, :, head] = weights / weights.sum(axis=1, keepdims=True)
    return X


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


def table(threads: int, names: list[str], repeats: int, plain_iterations_of_largest: int) -> None:
    print(f"\n### {'1 thread, CPU seconds' if threads == 1 else f'{threads} threads, wall clock'}\n")
    print("| tensor | by | passes | questionnaire s | EMD s | entropies s | network s | CPU s | peak memory / input |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name in names:
        shape = SIZES[name]
        largest = shape[0] > 300
        n_iters = plain_iterations_of_largest if largest else 3
        ours = best("ours", shape, n_iters, threads, 1 if largest else repeats)
        plain = best("plain", shape, n_iters, threads, 1 if largest else repeats)
        for label, record in (("oattn_hub", ours), ("plain", plain)):
            cells = [f"{record[key]:.2f}" for key in ("questionnaire", "emd", "entropies", "network", "cpu", "memory")]
            print(f"| {name} {shape} | {label} | {n_iters} | {' | '.join(cells)} |")
        factors = [f"{plain[key] / ours[key]:.1f}x" for key in ("questionnaire", "emd", "entropies", "network", "cpu")]
        share = (ours["entropies"] + ours["network"]) / ours["questionnaire"]
        print(f"| | **factor** | | {' | '.join(factors)} | entropies: {share:.1%} of questionnaire |")
        same = [axis for axis in ours["folders"] if ours["folders"][axis] == plain["folders"][axis]]
        apart = max(abs(ours[key] / plain[key] - 1) for key in ("mean_entropy", "network_entropy"))
        print(
            f"| | same trees: {', '.join(same) or 'none'}; entropies apart by {apart:.1e} | | | | | | | |",
            flush=True,
        )


def exponents(threads: int, repeats: int) -> None:
    """Fit seconds = c * size^exponent for growing heads and growing tokens."""
    print(f"\n### Growth (oattn_hub, 3 passes, {threads} thread{'s' * (threads > 1)})\n")
    print("| what grows | sizes | questionnaire s | exponent | entropies s | exponent |")
    print("|---|---|---|---|---|---|")
    series = {"heads (128 tokens)": [(128, 128, h) for h in HEADS], "tokens (72 heads)": [(t, t, 72) for t in TOKENS]}
    for what, shapes in series.items():
        sizes = [max(shape, key=lambda n: len({s[shape.index(n)] for s in shapes})) for shape in shapes]
        runs = [best("ours", shape, 3, threads, repeats) for shape in shapes]
        cells = [what, ", ".join(map(str, sizes))]
        for seconds in ([r["questionnaire"] for r in runs], [r["entropies"] + r["network"] for r in runs]):
            slope = np.polyfit(np.log(sizes), np.log(seconds), 1)[0]
            cells += [", ".join(f"{s:.3f}" for s in seconds), f"{slope:.2f}"]
        print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--sizes", nargs="*", default=[], help="parts of the names of the sizes to run")
    parser.add_argument("--threads", type=int, nargs="*", default=[1, os.cpu_count() or 1])
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--no-growth", action="store_true", help="leave the fitted exponents out")
    parser.add_argument("--largest-passes", type=int, default=1, help="passes at the largest size, for both programs")
    options = parser.parse_args()
    if options.measure:
        program, shape, n_iters = options.measure
        print(json.dumps(measure(program, tuple(json.loads(shape)), int(n_iters))))
        return
    names = [name for name in SIZES if not options.sizes or any(part.lower() in name.lower() for part in options.sizes)]
    for threads in dict.fromkeys(options.threads):
        table(threads, names, options.repeats, options.largest_passes)
    if not options.no_growth:
        exponents(options.threads[0], options.repeats)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    main()
