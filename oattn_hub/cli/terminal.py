"""What every verb prints with: results on stdout, progress on stderr; with ``--json`` only JSON on stdout."""

from __future__ import annotations

import argparse
import codecs
import io
import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from shlex import quote
from typing import TYPE_CHECKING, Any

from oattn_hub.cli.typed import typed_name
from oattn_hub.letters import STEERING
from oattn_hub.progress import Progress
from oattn_hub.types import Json

# What is printed in the place of letters that a terminal of another encoding than UTF-8 may not have.
_PLAIN = {"•": "*", "–": "-", "…": "...", "×": "x", "≈": "about ", "·": ".", "ö": "oe", "│": "|", "─": "-"}

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table


def print_in_any_encoding() -> None:
    """Let nothing fail at its end because the terminal has no bullet: such letters become plain ones."""
    codecs.register_error("oattn-plain", _plain)
    if isinstance(sys.stdout, io.TextIOWrapper) and sys.stdout.errors == "strict":
        sys.stdout.reconfigure(errors="oattn-plain")


def _plain(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(_PLAIN.get(letter, "?") for letter in error.object[error.start : error.end]), error.end


def console(json: bool = False) -> Console:
    """Where results for people go: stdout, or stderr if stdout is for JSON.

    What is printed was often written by somebody else (names of models, groups, repos): it is shown letter by letter,
    and neither marks up the line nor steers the terminal.
    """
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class PlainConsole(Console):
        """A console on which only rich itself speaks to the terminal."""

        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                yield segment if segment.control else Segment(printable(segment.text), segment.style)

    return PlainConsole(stderr=json, highlight=False, markup=False, emoji=False)


def printable(text: str) -> str:
    r"""The text without letters that a terminal obeys instead of showing them.

    >>> printable("a\x1b[2Jb\n")
    'a[2Jb\n'
    """
    return STEERING.sub("", text)


def number_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table as narrow as its cells on one line allow: the names of its columns break."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(
        title=title, box=SIMPLE_HEAD, title_justify="left", padding=(0, 1, 0, 0), show_edge=False, pad_edge=False
    )
    for number, name in enumerate(columns):
        width = max(map(len, [*(row[number] for row in rows), *name.split()]), default=1)
        table.add_column(name, justify="right" if number else "left", width=width, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def print_json(value: Json) -> None:
    """Print one JSON document to stdout."""
    escaped = (sys.stdout.encoding or "utf-8").lower().replace("-", "") != "utf8"  # no letter may turn into another
    print(printable(json.dumps(value, indent=1, ensure_ascii=escaped, allow_nan=False)))


def add_json_flag(parser: argparse.ArgumentParser) -> None:
    """``--json``: the result on stdout for scripts."""
    parser.add_argument("--json", action="store_true", help="print the result as JSON on stdout")


_SCREEN = 80  # columns of a terminal nobody has made wider


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """On stderr: bars with stage names and time left when a person watches, else one line a stage."""
    if not sys.stderr.isatty():
        yield _StageLines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Bars(*columns, console=Console(stderr=True)) as bars:
        tasks: dict[str, Any] = {}

        def show(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done, total=total)

        yield show


class _StageLines:
    """For logs: a line when a stage begins and one when it ends; of long ones also how far they are, now and then."""

    every = 30.0

    def __init__(self) -> None:
        self.started: dict[str, float] = {}
        self.last_said = 0.0

    def __call__(self, stage: str, done: int, total: int) -> None:
        now = time.monotonic()
        if stage not in self.started:
            self.started[stage] = now
            self._say(f"{stage}: {total} steps" if total > 1 else stage, now)
        elif done == total and self.started[stage] >= 0:
            self._say(f"{stage}: done in {now - self.started[stage]:.0f} s", now)
            self.started[stage] = -1.0
        elif done and now - self.last_said > self.every and self.started[stage] >= 0:
            left = (now - self.started[stage]) / done * (total - done)
            self._say(f"{stage}: {done} of {total} steps, about {_time_words(left)} left", now)

    def _say(self, words: str, now: float) -> None:
        print(words, file=sys.stderr, flush=True)
        self.last_said = now


def _time_words(seconds: float) -> str:
    """A time as one says it.

    >>> _time_words(50), _time_words(200)
    ('50 s', '3 min')
    """
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"


def data_option(data: str | None) -> str:
    """The user's own data in the next command: a model without a tokenizer can be measured on nothing else.

    >>> data_option("my texts.txt"), data_option(None)
    (" --data 'my texts.txt'", '')
    """
    return f" --data {quote(data)}" if data is not None else ""


def next_commands(*commands: tuple[str, str]) -> None:
    """The last lines of a finished verb: what one would run now, and what for; aligned where that fits a screen."""
    typed = [(f"{typed_name()}{command.removeprefix('oattn')}", why) for command, why in commands]
    width = max(len(command) for command, _ in typed)
    longest = max(len(why) for _, why in typed)
    aligned = width + longest + 7 <= _SCREEN
    lines = (f"{command:<{width}}   # {why}" if aligned else f"{command}   # {why}" for command, why in typed)
    console().print("next:", *lines, sep="\n  ", markup=False, soft_wrap=True)
