"""``oattn compare A B``: two reports side by side."""

from __future__ import annotations

import argparse

from oattn_hub.cli import checks
from oattn_hub.cli.terminal import add_json_flag, console, print_json

HELP = "compare two reports: two models, two data sets, or before and after fine-tuning"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The two reports, and where to write."""
    parser.add_argument("a", type=checks.path, help="folder of a report written by `oattn analyze`")
    parser.add_argument("b", type=checks.path, help="folder of the other report")
    parser.add_argument("--out", type=checks.path, help="folder for comparison.json, comparison.html and the figures")
    add_json_flag(parser)


def check(args: argparse.Namespace) -> None:
    """Refuse what cannot work."""
    checks.report(args.a)
    checks.report(args.b)
    checks.output_folder(args.out, ("comparison.json",), "a comparison")


def run(args: argparse.Namespace) -> int:
    """Compare, and say what differs."""
    from rich.table import Table

    from oattn_hub.report import compare

    comparison = compare(args.a, args.b)
    written = comparison.save(args.out, args.a, args.b) if args.out else []
    if args.json:
        print_json(comparison.to_json())
        return 0
    screen = console()
    for finding in comparison.findings:
        screen.print(f"• {finding}", markup=False)
    columns, rows = comparison.table()
    table = Table()
    for column in columns:
        table.add_column(column, overflow="fold")  # two long names that differ at their ends are not cut
    for row in rows:
        table.add_row(*row)
    screen.print(table)
    for path in written:
        screen.print(str(path), soft_wrap=True)
    return 0
