"""How long-running work reports where it is.

The library calls ``progress(stage, done, total)``; what is shown, if anything, is the caller's business. The command
line shows a bar when a person watches (see ``oattn_hub.cli.terminal``); a notebook gets bars by default.
"""

from __future__ import annotations

import sys
import time
from html import escape
from typing import Any, Protocol


class Progress(Protocol):
    """Called with the stage's name and how many of its steps are done."""

    def __call__(self, stage: str, done: int, total: int) -> None: ...


def silent(stage: str, done: int, total: int) -> None:
    """Show nothing."""


class _NotebookBars:
    """One bar a stage under the cell that runs; nothing outside a notebook."""

    def __init__(self) -> None:
        self._bars: dict[str, tuple[Any, float]] = {}

    def __call__(self, stage: str, done: int, total: int) -> None:
        if "ipykernel" not in sys.modules:
            return
        from IPython.display import HTML, display

        if stage not in self._bars:
            self._bars[stage] = (display(HTML(_bar(stage, done, total, 0.0)), display_id=True), time.monotonic())
            return
        shown, started = self._bars[stage]
        if shown is not None:
            shown.update(HTML(_bar(stage, done, total, time.monotonic() - started)))
        if done >= total:
            del self._bars[stage]  # the next run of this stage gets a bar of its own


def _bar(stage: str, done: int, total: int, seconds: float) -> str:
    left = f", about {seconds / done * (total - done):.0f} s left" if 0 < done < total else ""
    return f'{escape(stage)} <progress value="{done}" max="{max(total, 1)}"></progress> {done} of {total}{left}'


automatic: Progress = _NotebookBars()
"""Bars in a notebook, silence elsewhere: the default of what users call."""
