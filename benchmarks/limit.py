"""The questionnaire against the time of its comparing loop alone, and everything against the published code.

    python benchmarks/limit.py                             # 128 x 128 x 72 and 256 x 256 x 128, 3 passes: 1 minute
    python benchmarks/limit.py 512x512x384 --passes 1

One thread, CPU seconds; the best of several runs, because the others were disturbed. The limit is the time that the
pairs of numbers of all earth mover's distances take in the comparing loop, once as it was measured within the
questionnaire and once at the speed that the loop has on a few slices in the cache. Trees of a cold cache are not made:
everything is compiled before.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from typing import Any

os.environ.update(dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1"))

import numpy as np
from geometry import attention

from oattn_hub.geometry import Questionnaire, head_entropies, kernels, network_entropy

# CPU seconds of the published code for everything, stored: of which 41 and 661 its network entropy
PUBLISHED = {(128, 128, 72): 45.1, (256, 256, 128): 687.0}


class ComparingLoop:
    """CPU seconds and pairs of numbers of the comparing loop, while it is in place of the kernels' own."""

    def __init__(self) -> None:
        self.seconds = self.pairs = 0.0
        self.dtype = ""
        self._compiled = kernels.compiled

    def __enter__(self) -> ComparingLoop:
        kernels.compiled = self._watched
        return self

    def __exit__(self, *_: object) -> None:
        kernels.compiled = self._compiled

    def _watched(self, function: Callable[..., Any]) -> Callable[..., Any]:
        kernel = self._compiled(function)
        return self._compare if function is kernels.add_overlaps else kernel

    def _compare(self, rows: Any, out: Any) -> None:
        began = time.process_time()
        self._compiled(kernels.add_overlaps)(rows, out)
        self.seconds += time.process_time() - began
        self.pairs += pairs_of(rows)
        self.dtype = str(rows.dtype)


def pairs_of(rows: Any) -> float:
    """Pairs of numbers that are compared, in blocks of four slices."""
    return len(rows) * (len(rows) + 4) / 2 * rows.shape[1]


def speed(dtype: str) -> float:
    """Pairs of numbers a CPU second, of 64 slices in the cache."""
    rows = np.random.default_rng(0).random((64, 512)).astype(dtype)
    out = np.zeros((64, 64))
    best = 0.0
    for _ in range(10):
        began = time.process_time()
        for _ in range(300):
            kernels.compiled(kernels.add_overlaps)(rows, out)
        best = max(best, 300 * pairs_of(rows) / (time.process_time() - began))
    return best


def measured(shape: tuple[int, int, int], passes: int, repeats: int) -> str:
    """One line of the table."""
    X = attention(shape)
    best, everything = (np.inf, np.inf, 0.0, ""), np.inf
    for _ in range(repeats):
        with ComparingLoop() as loop:
            began = time.process_time()
            q = Questionnaire(passes).fit(X)
            organised = time.process_time()
        head_entropies(X, q.trees_)
        network_entropy(X, q.trees_)
        everything = min(everything, time.process_time() - began)
        best = min(best, (organised - began, loop.seconds, loop.pairs, loop.dtype))
    seconds, comparing, pairs, dtype = best
    in_cache = pairs / speed(dtype)
    published = f"{PUBLISHED[shape] / everything:.0f}x" if shape in PUBLISHED and passes == 3 else ""
    return (
        f"| {' x '.join(map(str, shape))} | {passes} | {seconds:.3f} | {comparing:.3f} | {in_cache:.3f} | {dtype} "
        f"| {seconds / comparing:.2f} | {seconds / in_cache:.2f} | {everything:.3f} | {published} |"
    )


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sizes", nargs="*", default=["128x128x72", "256x256x128"], help="queries x keys x heads")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    small = attention((12, 12, 12))
    for precision in ("float32", "float64"):  # compiled, or read from numba's cache
        trees = Questionnaire(1, precision=precision).fit(small).trees_
    head_entropies(small, trees)
    print(
        "| tensor | passes | questionnaire s | comparing s | in the cache s | precision | all / comparing "
        f"| all / in the cache | everything s | published / everything |\n|{'---|' * 10}"
    )
    for size in options.sizes:
        queries, keys, heads = map(int, size.split("x"))
        print(measured((queries, keys, heads), options.passes, options.repeats), flush=True)
    print(f"\nload {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
