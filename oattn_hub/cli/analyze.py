"""``oattn analyze MODEL``: which heads matter, how sure are we, what does the network look like."""

from __future__ import annotations

import argparse
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Any

from oattn_hub.cli import checks
from oattn_hub.cli.loading import add_loading_arguments, loading_options
from oattn_hub.cli.terminal import add_json_flag, console, data_option, next_commands, print_json, progress_bar
from oattn_hub.lazy import ANALYSIS, require
from oattn_hub.types import JsonObject

if TYPE_CHECKING:
    from oattn_hub.report import Report

HELP = "measure a model's attention heads and write a report with a page"
_SHOWN = 5  # heads in the printed table, from each end


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to measure, on what, and where to write."""
    parser.add_argument("model", help="a Hub id, a local folder, a timm name, or the folder of captured attention")
    parser.add_argument("--data", help="text file, ids (.npy), folder of images or sounds, dataset:owner/name?split=…")
    parser.add_argument("--batches", type=int, default=6, help="how many contexts (6)")
    parser.add_argument("--tokens", type=int, default=128, help="tokens per context (128)")
    parser.add_argument("--kind", default="probs", help="probs, scores (before the mask) or logits (after it) (probs)")
    parser.add_argument("--seed", type=int, default=0, help="chooses the contexts and drives the bootstrap (0)")
    parser.add_argument("--adapter", help="name of an adapter; default: found from the model")
    parser.add_argument("--theory", action="store_true", help="also check the paper's theory on this model")
    parser.add_argument("--out", type=checks.path, help="folder for the report (runs/NAME)")
    parser.add_argument("--figures", action="store_true", help="also draw every figure as PNG into OUT/figures")
    add_json_flag(parser)
    add_loading_arguments(parser)


def check(args: argparse.Namespace) -> None:
    """Refuse what cannot work."""
    require(*ANALYSIS, what="oattn analyze")
    if not _is_store(args.model):
        checks.model(args.model, args.gguf_file, args.allow_pickle)
    checks.loading(args)
    checks.data(args.data)
    checks.count(args.batches, "--batches")
    checks.count(args.tokens, "--tokens", least=2)
    checks.count(args.seed, "--seed", least=0)
    checks.choice(args.kind, "--kind", ("probs", "scores", "logits"))
    checks.output_folder(_out(args), ("report.json",), "a report")


def _is_store(model: str) -> bool:
    from oattn_hub.attention.store import AttentionStore

    return AttentionStore.is_store(model)


def _out(args: argparse.Namespace) -> Path:
    # resolved, so that `.` has a name
    out: Path = args.out or Path("runs") / Path(args.model).resolve().name
    return out


def run(args: argparse.Namespace) -> int:
    """Analyse, write the report, and print its shortest form."""
    from oattn_hub.analyzer import analyze

    out = _out(args)
    with progress_bar() as progress:
        report = analyze(
            args.model,
            data=args.data,
            batches=args.batches,
            tokens=args.tokens,
            kind=args.kind,
            seed=args.seed,
            out=out,
            theory=args.theory,
            adapter=args.adapter,
            progress=progress,
            **loading_options(args),
        )
    if args.figures:
        report.save_figures(out / "figures")
    if args.json:
        print_json(summary(report, out))
    else:
        _print(report, out, args.data)
    return 0


def summary(report: Report, out: Path) -> JsonObject:
    """What scripts need: the findings, the agreement, every head's numbers, and where the files are."""
    from dataclasses import asdict

    return {
        "model": report.model.to_json(),
        "settings": report.settings.to_json(),
        "findings": report.findings(),
        "theory": report.theory.findings if report.theory else [],
        "network": [asdict(record) for record in report.network],
        "stability": [asdict(record) for record in report.stability],
        "heads": [asdict(record) for record in report.heads],
        "fingerprint": report.fingerprint,
        "folder": str(out),
        "page": str(out / "report.html"),
    }


def _print(report: Report, out: Path, data: str | None) -> None:
    from rich.table import Table

    from oattn_hub.report.findings import agreement_sentences, answer_sentences

    screen = console()
    for finding in [*answer_sentences(report), *agreement_sentences(report)]:
        screen.print(f"• {finding}", markup=False)
    for name in report.groups:
        heads = sorted((head for head in report.heads if head.group == name), key=lambda head: head.rank)
        table = Table(title=f"{name}: lowest and highest entropy of {len(heads)} heads", title_justify="left")
        for column in ("rank", "layer.head", "entropy", "95 % interval", "lowest 10 %", "highest 10 %"):
            table.add_column(column, justify="right")
        ends = heads if len(heads) <= 2 * _SHOWN else [*heads[:_SHOWN], None, *heads[-_SHOWN:]]
        for head in ends:
            table.add_row(*(["…"] * 6 if head is None else _cells(head, report.groups[name].n_batches)))
        screen.print(table)
    for finding in report.theory.findings if report.theory else []:
        screen.print(f"• {finding}", markup=False)
    screen.print(f"report {out}", f"page   {out / 'report.html'}", sep="\n", soft_wrap=True, markup=False)
    screen.print("The page also says what the ranking owes to the method's own choices.", markup=False)
    folder, on = quote(str(out)), data_option(data)
    next_commands(
        (f"oattn evaluate {folder}{on}", "what removing heads costs"),
        (f"oattn prune {folder} --budget 1%{on} --out pruned", "the smaller model"),
        (f"oattn heads {folder} --csv", "the table of heads"),
    )


def _cells(head: Any, n_batches: int) -> list[str]:
    return [
        f"{head.rank:.0f}",
        f"{head.layer}.{head.head}",
        f"{head.entropy:.4g}",
        f"{head.entropy_low:.4g} – {head.entropy_high:.4g}",
        f"{head.bottom_count}/{n_batches}",
        f"{head.top_count}/{n_batches}",
    ]
