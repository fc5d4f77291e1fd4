"""``oattn heads RUN``: the table of heads, for people or as CSV."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from oattn_hub.cli import checks
from oattn_hub.cli.terminal import add_json_flag, console, print_json, printable
from oattn_hub.errors import InvalidInput

if TYPE_CHECKING:
    from oattn_hub.report import Report

HELP = "print a report's table of heads: verdict, measured cost, entropy, rank, folder"
_SHOWN = ("verdict", "ablation", "gradient", "entropy", "rank", "folder")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which report, and how."""
    parser.add_argument("report", type=checks.path, help="folder of a report (oattn analyze writes one)")
    parser.add_argument(
        "--csv", nargs="?", const="-", metavar="FILE", help="all columns as CSV, to FILE or else to stdout"
    )
    add_json_flag(parser)


def check(args: argparse.Namespace) -> None:
    """Refuse what cannot work."""
    checks.report(args.report)
    if args.csv is not None and args.json:
        raise InvalidInput("--csv and --json are two forms of one table; ask for one of them.")
    if args.csv is not None and not args.csv.strip():
        raise InvalidInput("--csv names no file. Name one, or leave the name out to print the table.")
    if args.csv not in (None, "-"):
        checks.output_file(Path(args.csv), "--csv")


def run(args: argparse.Namespace) -> int:
    """Print or write the table."""
    from oattn_hub.files import write_text
    from oattn_hub.report import Report
    from oattn_hub.report.head_table import head_csv

    report = Report.load(args.report)
    if args.json:
        columns, rows = report.table()
        print_json([dict(zip(columns, row, strict=True)) for row in rows])
    elif args.csv == "-":
        sys.stdout.write(printable(head_csv(report)))
    elif args.csv:
        write_text(Path(args.csv), head_csv(report))
        console().print(f"{len(report.heads)} heads in {args.csv}", markup=False, soft_wrap=True)
    else:
        _print(report)
    return 0


def _print(report: Report) -> None:
    from rich.table import Table

    columns, rows = report.table()
    records = [dict(zip(columns, row, strict=True)) for row in rows]
    shown = [name for name in _SHOWN if any(record[name] is not None for record in records)]
    shown += ["group"] if len(report.groups) > 1 else []
    table = Table("head", title=f"The {len(records)} heads of {report.model.id}", title_justify="left")
    for name in shown:
        table.add_column(name, justify="left" if name in ("verdict", "group") else "right")
    for record in records:
        cells = [_cell(record[name]) for name in shown]
        table.add_row(f"{record['layer']}.{record['head']}", *cells)
    screen = console()
    screen.print(table)
    screen.print(_legend(report, shown), markup=False)


def _legend(report: Report, shown: list[str]) -> str:
    """What the columns are, for somebody who sees the table first."""
    sentences = ["rank 1 is the lowest entropy; heads of one folder attend alike."]
    if "ablation" in shown and report.evaluation is not None:
        sentences.insert(0, f"ablation: {report.evaluation.metrics[0].title} when the head is removed alone;")
    return " ".join(sentences)


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
