"""Run the tests that compare bits, ranks or trees as CPUs with other instruction sets would: ``make test-cpus``.

torch, oneDNN, MKL, OpenBLAS and numba choose their kernels by the CPU, and sums come out in another order in each. All
of them can be told to use older instructions than the CPU has. Prints one line for each setting.

    python tests/cpus.py                             every setting: about an hour on two cores
    python tests/cpus.py --only SSE4 --only AVX2     settings whose name contains one of these
    python tests/cpus.py --list                      the names of the settings on this machine
    python tests/cpus.py -k golden                   other arguments go to pytest
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]

TESTS = (
    "tests/adapters/test_matrix.py",
    "tests/attention/test_masks.py",
    "tests/geometry",
    "tests/models",
    "tests/pruning/test_checkpoint.py",
    "tests/pruning/test_scores.py",
    "tests/pruning/test_search.py",
    "tests/pruning/test_surgery.py",
    "tests/pruning/test_zoo.py",
    "tests/report/test_comparison.py",
    "tests/report/test_samples.py",
    "tests/report/test_storage.py",
    "tests/test_contract.py",
    "tests/theory",
)

# name -> the flag that /proc/cpuinfo must show, and torch, oneDNN, MKL, OpenBLAS and numba told to use no more
INSTRUCTIONS = {
    "SSE4": ("sse4_2", "default", "SSE41", "SSE4_2", "Nehalem", "nehalem"),
    "AVX2": ("avx2", "avx2", "AVX2", "AVX2", "Haswell", "haswell"),
    "AVX-512": ("avx512f", "avx512", "AVX512_CORE", "AVX512", "SkylakeX", "skylake-avx512"),
}
VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "ONEDNN_MAX_CPU_ISA",
    "MKL_ENABLE_INSTRUCTIONS",
    "OPENBLAS_CORETYPE",
    "NUMBA_CPU_NAME",
)
THREADS = (1, 2)


def settings() -> dict[str, dict[str, str]]:
    """Name of a setting -> environment variables, for what this CPU can do; on other CPUs than x86 only the threads."""
    cpuinfo = Path("/proc/cpuinfo")
    flags = set(cpuinfo.read_text().split()) if cpuinfo.exists() else set()
    supported = {name: values for name, (flag, *values) in INSTRUCTIONS.items() if flag in flags}
    chosen = {"as it is": {}, **{name: dict(zip(VARIABLES, values, strict=True)) for name, values in supported.items()}}
    return {
        f"{name}, {threads} thread{'s' * (threads > 1)}": {**variables, **_threads(threads)}
        for name, variables in chosen.items()
        for threads in THREADS
    }


def _threads(count: int) -> dict[str, str]:
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMBA_NUM_THREADS")
    # a thread that waits sleeps: on a busy machine two threads that wait awake for each other take many times as long
    return {**dict.fromkeys(names, str(count)), "OMP_WAIT_POLICY": "PASSIVE", "TOKENIZERS_PARALLELISM": "false"}


def run(variables: dict[str, str], arguments: list[str]) -> tuple[dict[str, int], list[str], Counter[str]]:
    """How many tests passed, failed and were skipped in how many seconds, which ones failed, and why others were not
    run."""
    workers = str(max(THREADS) // int(variables["OMP_NUM_THREADS"]))
    with tempfile.TemporaryDirectory() as folder:
        results = Path(folder, "results.xml")
        command = [sys.executable, "-m", "pytest", "-q", "-n", workers, "--dist", "loadgroup"]
        command += ["-m", "not slow and not network", f"--junitxml={results}", *TESTS, *arguments]
        began = time.monotonic()
        done = subprocess.run(
            command, cwd=ROOT, env={**os.environ, **variables}, capture_output=True, text=True, check=False
        )
        if not results.exists():
            sys.exit(done.stdout + done.stderr)
        cases = list(ET.parse(results).iter("testcase"))
    failed = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = Counter(str(found.get("message")) for case in cases if (found := case.find("skipped")) is not None)
    counts = {"passed": len(cases) - len(failed) - skipped.total(), "failed": len(failed), "skipped": skipped.total()}
    names = [f"{case.get('classname')}::{case.get('name')}" for case in failed]
    return {**counts, "seconds": round(time.monotonic() - began)}, names, skipped


def main() -> int:
    """Print a Markdown table, the reasons of skipped tests, and the tests that failed; 1 if there are any."""
    parser = argparse.ArgumentParser(description="The tests that compare bits, ranks or trees, as other CPUs compute.")
    parser.add_argument("--only", action="append", metavar="TEXT", help="settings whose name contains it; repeatable")
    parser.add_argument("--list", action="store_true", help="name the settings of this machine and stop")
    given, arguments = parser.parse_known_args()
    chosen = {
        name: variables
        for name, variables in settings().items()
        if given.only is None or any(text in name for text in given.only)
    }
    if not chosen:
        parser.error(f"No setting contains {' or '.join(given.only)}. There are: {'; '.join(settings())}.")
    if given.list:
        print("\n".join(chosen))
        return 0
    print(f"| {'setting':<20} | passed | failed | skipped | seconds |\n|---|---|---|---|---|")
    wrong: dict[str, list[str]] = {}
    reasons: Counter[str] = Counter()
    for name, variables in chosen.items():
        counts, failed, skipped = run(variables, arguments)
        reasons |= skipped  # the most that any setting skipped
        print(f"| {name:<20} | {' | '.join(str(count) for count in counts.values())} |", flush=True)
        for test in failed:
            wrong.setdefault(test, []).append(name)
    for reason, count in reasons.most_common():
        print(f"SKIPPED {count}: {reason}")
    for test, names in wrong.items():
        print(f"FAILED {test} ({'; '.join(names)})")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
