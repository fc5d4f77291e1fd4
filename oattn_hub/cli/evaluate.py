"""``oattn evaluate REPORT``: what removing heads costs, score by score; joins the report."""

from __future__ import annotations

import argparse
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from oattn_hub.cli import checks
from oattn_hub.cli.loading import add_permission_arguments, loading_options
from oattn_hub.cli.terminal import add_json_flag, console, data_option, next_commands, print_json, progress_bar
from oattn_hub.errors import InvalidInput
from oattn_hub.lazy import require

if TYPE_CHECKING:
    from oattn_hub.report import Report
    from oattn_hub.report.evaluation import EvaluationSection

HELP = "measure what removing heads costs by every score, and add it to a report"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which report, which scores, on what."""
    parser.add_argument("report", type=checks.path, help="folder of a report (oattn analyze writes one)")
    parser.add_argument("--scores", default="all", help="names separated by commas, or all (all)")
    parser.add_argument("--model", help="the model, if it is not where the report says")
    parser.add_argument("--data", help="what to evaluate on; default: the half of the bundled data kept for it")
    parser.add_argument("--inputs", type=int, default=16, help="evaluation inputs (16)")
    parser.add_argument("--tokens", type=int, default=64, help="tokens per input (64)")
    parser.add_argument("--seeds", type=int, default=5, help="random removals to compare with (5)")
    parser.add_argument("--seed", type=int, default=0, help="of inputs, random removals and bootstrap (0)")
    parser.add_argument("--figure", type=checks.path, help="where to draw the curves (REPORT/figures/evaluation-….png)")
    add_permission_arguments(parser)
    add_json_flag(parser)


def check(args: argparse.Namespace) -> None:
    """Refuse what cannot work."""
    checks.placement(args)
    checks.report(args.report)
    checks.count(args.inputs, "--inputs")
    checks.count(args.tokens, "--tokens", least=2)
    checks.count(args.seeds, "--seeds", least=5, most=checks.MOST_DRAWS)
    checks.count(args.seed, "--seed", least=0)
    checks.data(args.data)
    if args.model is not None:
        checks.model(args.model, allow_pickle=args.allow_pickle)
    checks.scores(args.scores.split(","))
    if args.scores == "random":
        raise InvalidInput("--scores is random, which only others are compared with; name another score too, or all.")
    checks.figure_file(args.figure, "--figure")


def run(args: argparse.Namespace) -> int:
    """Evaluate, save the report with the result, draw the curves, print the table."""
    from oattn_hub.report import Report

    report = Report.load(args.report)  # first, because a damaged one is known without torch
    from oattn_hub.pruning import evaluate

    with progress_bar() as progress:
        section = evaluate(
            report,
            args.model,
            args.scores.split(","),
            data=args.data,
            inputs=args.inputs,
            tokens=args.tokens,
            seeds=args.seeds,
            seed=args.seed,
            progress=progress,
            **loading_options(args),
        )
    joined = report.with_evaluation(section)
    joined.save(args.report)
    figure = _draw(section, args.figure or args.report / "figures" / "evaluation-cost_of_removal.png")
    present = args.report / "report.html"
    page = joined.write_page(present) if present.exists() else None
    if args.json:
        print_json({"evaluation": section.to_json(), "findings": section.findings, "figure": str(figure)})
        return 0
    _print(joined, section, figure, page)
    folder = quote(str(args.report))
    next_commands(
        (f"oattn prune {folder} --budget 1%{data_option(args.data)} --out pruned", "the smaller model"),
        (f"oattn heads {folder}", "every head's cost and verdict"),
    )
    return 0


def _draw(section: EvaluationSection, path: Path) -> Path:
    require("matplotlib", what="Drawing the curves")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 4), layout="constrained")
    section.draw_cost_of_removal(figure.add_subplot())
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path


def _print(report: Report, section: EvaluationSection, figure: Path, page: Path | None) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    from oattn_hub.report.evaluation_words import cost_form, percent

    out = console()
    for sentence in report.findings()[:3]:
        out.print(f"• {sentence}", markup=False)
    table = Table(title=f"{section.metrics[0].title}, after removing heads by …", box=SIMPLE_HEAD, title_justify="left")
    table.add_column("score")
    for fraction in section.fractions[1:]:
        table.add_column(percent(fraction), justify="right", no_wrap=True)
    form = cost_form(section, 3)
    for result in section.scores:
        table.add_row(result.title, *(format(value, form) for value in result.curves["divergence"].mean[1:]))
    out.print(table)
    for finding in section.findings:
        out.print(f"• {finding}", markup=False)
    out.print(f"{section.evaluations} evaluations in {section.seconds:.0f} s", markup=False)
    out.print(f"curves {figure}", soft_wrap=True, markup=False)
    if page is not None:
        out.print(f"page   {page}", soft_wrap=True, markup=False)
