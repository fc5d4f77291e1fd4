"""CPU time of `import oattn_hub` and `oattn --help` in a new process (goal: under 0.3 s each)."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys

GOAL_SECONDS = 0.3
RUNS = 9
COMMANDS = {
    "python -c pass": ["-c", "pass"],
    "import oattn_hub": ["-c", "import oattn_hub"],
    "oattn --help": ["-m", "oattn_hub.cli", "--help"],
}


def cpu_seconds(arguments: list[str]) -> float:
    """User and system time of one child process."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    print("| new process | CPU seconds (median of 9) | goal |\n|---|---|---|")
    for name, arguments in COMMANDS.items():
        print(f"| `{name}` | {statistics.median(cpu_seconds(arguments) for _ in range(RUNS)):.3f} | {GOAL_SECONDS} |")


if __name__ == "__main__":
    main()
