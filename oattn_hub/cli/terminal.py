"""What every verb prints with: words and bars on stderr, JSON on stdout."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from oattn_hub.progress import Progress, silent

if TYPE_CHECKING:
    from rich.console import Console


def console() -> Console:
    """A rich console on stderr, so that stdout stays clean for ``--json``."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def print_json(value: Any) -> None:
    """Print one JSON document to stdout."""
    print(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False))


def add_json_flag(parser: argparse.ArgumentParser) -> None:
    """``--json``: the result on stdout for scripts."""
    parser.add_argument("--json", action="store_true", help="print the result as JSON on stdout")


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """Bars with stage names and time left when a person watches; silence otherwise."""
    if not sys.stderr.isatty():
        yield silent
        return
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bars(*columns, console=console()) as bars:
        tasks: dict[str, Any] = {}

        def show(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done, total=total)

        yield show
