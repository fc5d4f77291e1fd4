"""``oattn validate REPORT``: are its low heads regular, stable and cheap to lose? Joins the report."""

from __future__ import annotations

import argparse
import re
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from oattn_hub.cli import checks
from oattn_hub.cli.loading import add_permission_arguments, loading_options
from oattn_hub.cli.terminal import add_json_flag, console, next_commands, number_table, print_json, progress_bar
from oattn_hub.errors import InvalidInput

if TYPE_CHECKING:
    from oattn_hub.report.validation import ValidationSection

HELP = "check a report's low heads: regularity, stability over domains, removal against random draws"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which report, on what data, how many heads and draws."""
    parser.add_argument("report", type=checks.path, help="folder of a report (oattn analyze writes one)")
    parser.add_argument("--domains", help="data of different kinds, separated by commas: a.txt,b.txt (bundled data)")
    parser.add_argument("--batches", type=int, default=20, help="inputs of each domain that rank the heads (20)")
    parser.add_argument("--remove", default="1-5", help="how many of the lowest heads to remove: 1-5, or 1,3,5 (1-5)")
    parser.add_argument("--draws", type=int, default=20, help="random sets of heads to compare with (20)")
    parser.add_argument("--inputs", type=int, default=16, help="inputs that costs are measured on, in all (16)")
    parser.add_argument("--model", help="the model, if it is not where the report says")
    parser.add_argument("--seed", type=int, default=0, help="of inputs, draws and bootstrap (0)")
    add_permission_arguments(parser)
    add_json_flag(parser)


def check(args: argparse.Namespace) -> None:
    """Refuse what cannot work."""
    checks.placement(args)
    checks.report(args.report)
    checks.count(args.batches, "--batches", least=4)
    checks.count(args.draws, "--draws", least=5, most=checks.MOST_DRAWS)
    checks.count(args.inputs, "--inputs", least=2)
    checks.count(args.seed, "--seed", least=0)
    removed = counts(args.remove)
    for data in split_domains(args.domains) or ():
        checks.data(data)
    if args.model is not None:
        checks.model(args.model, allow_pickle=args.allow_pickle)
    _check_removable(args.report, removed)


def _check_removable(folder: Path, removed: list[int]) -> None:
    from oattn_hub.report import Report
    from oattn_hub.report.validation import removable_counts

    removable_counts(removed, Report.load(folder))


def split_domains(text: str | None) -> list[str] | None:
    """The domains one by one; None if none were named."""
    if text is None:
        return None
    names = [part.strip() for part in text.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise InvalidInput(f"--domains is {text!r}; name different files, separated by commas: a.txt,b.txt.")
    return names


def counts(text: str) -> list[int]:
    """Numbers of heads from how people write them.

    >>> counts("1-3"), counts("1,4"), counts("2")
    ([1, 2, 3], [1, 4], [2])
    """
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d{1,4})(?:\s*-\s*(\d{1,4}))?\s*", part, re.ASCII)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
        if not 1 <= first <= last:
            raise InvalidInput(f"--remove is {text!r}; write how many heads, such as 1-5 or 1,3,5.")
        found |= set(range(first, last + 1))
    return sorted(found)


def run(args: argparse.Namespace) -> int:
    """Validate, save the report with the result, print the sentences and the table."""
    from oattn_hub.report import Report

    report = Report.load(args.report)
    with progress_bar() as progress:
        joined = report.validate(
            args.model,
            split_domains(args.domains),
            batches=args.batches,
            remove=counts(args.remove),
            draws=args.draws,
            inputs=args.inputs,
            seed=args.seed,
            progress=progress,
            **loading_options(args),
        )
    joined.save(args.report)
    page = args.report / "report.html"
    if page.exists():
        joined.write_page(page)
    section = joined.validation
    assert section is not None
    if args.json:
        print_json({"validation": section.to_json(), "findings": section.findings})
        return 0
    _print(section)
    if page.exists():
        console().print(f"page {page}", soft_wrap=True, markup=False)
    folder = quote(str(args.report))
    if joined.evaluation is None:
        next_commands((f"oattn evaluate {folder}", "what removing heads costs, by scores other than entropy"))
    else:
        next_commands((f"oattn prune {folder} --budget 1% --out pruned", "the smaller model"))
    return 0


def _print(section: ValidationSection) -> None:
    out = console()
    for finding in section.findings:
        out.print(f"• {finding}", markup=False)
    columns, rows = section.table()
    named = columns.index("metric")
    shown = [*columns[:named], *columns[named + 1 :]]
    for metric, own in groupby(rows, key=itemgetter(named)):  # by its title, so that a row has room for its numbers
        title = f"Lowest heads against heads drawn at random: {metric}"
        out.print("", number_table(title, shown, [[*row[:named], *row[named + 1 :]] for row in own]), sep="\n")
