"""How fast the paraproduct of all heads is, against a plain transcription of eq. 11-12.

    python benchmarks/paraproduct.py [--size 256] [--heads 128] [--plain-heads 2] [--out FILE]

Three ways to the same numbers (checked): block by block as the formula is printed, in Python loops; scale by scale with
numpy, every term at full size; and ``oattn_hub.geometry.paraproduct``, all heads in one call. The first two are timed
on a few heads and multiplied, because all of them would take a quarter of an hour or more; the table says so.
"""

from __future__ import annotations

import argparse
import platform
import resource
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from oattn_hub.geometry import paraproduct

Float = NDArray[np.float64]


def block_by_block(f: Float) -> Float:
    """Eq. 12 for A = exp on one head of 2^N x 2^N points, every block in its own turn."""
    n = len(f)
    scales = n.bit_length() - 1
    total = np.zeros_like(f)
    for j in range(scales):
        for k in range(scales):
            rows, columns = n >> j, n >> k
            for top in range(0, n, rows // 2):
                for left in range(0, n, columns // 2):
                    outer_top, outer_left = top - top % rows, left - left % columns
                    coarse = f[outer_top : outer_top + rows, outer_left : outer_left + columns].mean()
                    finer_query = f[top : top + rows // 2, outer_left : outer_left + columns].mean()
                    finer_key = f[outer_top : outer_top + rows, left : left + columns // 2].mean()
                    fine = f[top : top + rows // 2, left : left + columns // 2].mean()
                    slope = np.exp(coarse)
                    total[top : top + rows // 2, left : left + columns // 2] += slope * (
                        fine - finer_key - finer_query + coarse
                    ) + slope * (finer_query - coarse) * (finer_key - coarse)
    return total


def scale_by_scale(f: Float) -> Float:
    """Eq. 12 for A = exp on one head: the means of a scale at once, every term at full size."""
    n = len(f)

    def means(j: int, k: int) -> Float:
        rows, columns = n >> j, n >> k
        blocks = f.reshape(1 << j, rows, 1 << k, columns).mean(axis=(1, 3))
        return np.repeat(np.repeat(blocks, rows, axis=0), columns, axis=1)

    scales = n.bit_length() - 1
    total = np.zeros_like(f)
    for j in range(scales):
        for k in range(scales):
            coarse, finer_query, finer_key, fine = means(j, k), means(j + 1, k), means(j, k + 1), means(j + 1, k + 1)
            slope = np.exp(coarse)
            total += slope * (fine - finer_key - finer_query + coarse)
            total += slope * (finer_query - coarse) * (finer_key - coarse)
    return total


def timed(work: Callable[[], Float]) -> tuple[float, Float]:
    start = time.process_time()  # CPU seconds: other work on the machine does not count
    result = work()
    return time.process_time() - start, result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=256, help="queries and keys, a power of 2")
    parser.add_argument("--heads", type=int, default=128)
    parser.add_argument("--plain-heads", type=int, default=2, help="heads the two transcriptions are timed on")
    parser.add_argument("--out", type=Path, help="write the table here as well")
    options = parser.parse_args()

    tensor = np.random.default_rng(0).standard_normal((options.size, options.size, options.heads))
    paraproduct(tensor[:, :, :1])  # the first call pays for imports
    ours, found = min(
        (timed(lambda: paraproduct(tensor, boundary=False).total) for _ in range(3)), key=lambda run: run[0]
    )
    rows = [("oattn_hub, all heads in one call", f"{ours:.2f} s", "1")]
    for name, transcription in (("scale by scale, numpy", scale_by_scale), ("block by block, plain", block_by_block)):
        seconds = 0.0
        for head in range(options.plain_heads):
            spent, total = timed(lambda head=head, work=transcription: work(np.ascontiguousarray(tensor[:, :, head])))  # type: ignore[misc]
            np.testing.assert_allclose(found[:, :, head], total, atol=1e-10)
            seconds += spent * options.heads / options.plain_heads
        measured = f"{seconds:.0f} s ({options.plain_heads} heads timed, x {options.heads / options.plain_heads:g})"
        rows.append((name, measured, f"{seconds / ours:.0f}"))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    lines = [
        f"# Paraproduct of a {options.size} x {options.size} x {options.heads} tensor",
        "",
        "| way | CPU time | times ours |",
        "|---|---|---|",
        *(f"| {name} | {seconds} | {factor} |" for name, seconds, factor in rows),
        "",
        f"A = exp, no boundary terms, float64, best of 3; results equal to 1e-10. Peak memory {peak:.1f} GiB. "
        f"Python {platform.python_version()}, numpy {np.__version__}, {platform.machine()}, one thread.",
        "",
        "Again: `python benchmarks/paraproduct.py --out benchmarks/results/paraproduct.md`",
    ]
    print("\n".join(lines))
    if options.out:
        options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
