"""How long-running work tells where it is.

The library calls ``progress(stage, done, total)``; what is shown, if anything, is the caller's business. The command
line shows a bar when a person watches (see ``oattn_hub.cli.terminal``).
"""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Told the stage's name and how many of its steps are done."""

    def __call__(self, stage: str, done: int, total: int) -> None: ...


def silent(stage: str, done: int, total: int) -> None:
    """Show nothing: the default everywhere in the library."""
