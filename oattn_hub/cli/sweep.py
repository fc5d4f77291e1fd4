"""``oattn sweep models.txt --out DIR``: many models, on an engine that exists; start it again to go on."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from oattn_hub.cli import checks
from oattn_hub.cli.terminal import add_json_flag, console, print_json, printable, progress_bar
from oattn_hub.errors import InvalidInput

if TYPE_CHECKING:
    from rich.console import Console

    from oattn_hub.sweep import Status, SweepResult
    from oattn_hub.sweep.jobs import HfJobs
    from oattn_hub.sweep.state import Options

HELP = "analyse every model of a list, on this machine, on Ray or as Hugging Face jobs, and make a leaderboard"
_SHOWN = 20  # models in the printed table
_ON_THE_PAGE = ("parameters", "layers")  # so that the printed one has room for the models' names


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which models, on what, where."""
    parser.add_argument(
        "models", type=checks.path, help="a text file: one Hub id or folder a line, then option=value; # comments"
    )
    parser.add_argument(
        "--out", type=checks.path, required=True, help="the sweep's folder; start again with it to go on"
    )
    engines = ("local", "ray", "hf-jobs")
    parser.add_argument("--engine", choices=engines, default="local", help="where the models run (local)")
    parser.add_argument("--workers", type=int, help="how many models at once (half the cores; ray: all it has)")
    parser.add_argument("--retries", type=int, default=2, help="more tries for what may be a passing failure (2)")
    parser.add_argument("--data", help="text file, ids (.npy), folder of images or sounds, dataset:owner/name?split=…")
    parser.add_argument("--batches", type=int, default=6, help="how many contexts (6)")
    parser.add_argument("--tokens", type=int, default=128, help="tokens per context (128)")
    parser.add_argument("--kind", default="probs", help="probs, scores or logits (probs)")
    parser.add_argument("--seed", type=int, default=0, help="chooses the contexts and drives the bootstrap (0)")
    parser.add_argument("--evaluate", action="store_true", help="also measure what removing heads costs (slower)")
    parser.add_argument("--trust-remote-code", action="store_true", help="run code that comes with the models")
    jobs = parser.add_argument_group("hf-jobs")
    jobs.add_argument("--namespace", help="who pays for the jobs and gets the reports; required")
    jobs.add_argument("--package", default="oattn_hub", help="what the jobs install (%(default)s)")
    jobs.add_argument("--flavor", default="cpu-upgrade", help="their hardware (%(default)s)")
    jobs.add_argument("--timeout", default="2h", help="the longest a job may take (%(default)s)")
    jobs.add_argument("--private", action="store_true", help="make the repos of the reports private")
    jobs.add_argument("--dry-run", action="store_true", help="print the jobs and submit nothing")
    add_json_flag(parser)


def check(args: argparse.Namespace) -> None:
    """Refuse what cannot work."""
    from oattn_hub.sweep import read_models
    from oattn_hub.sweep.state import SETTINGS_FILE

    read_models(args.models)
    checks.data(args.data)
    checks.count(args.batches, "--batches")
    checks.count(args.tokens, "--tokens", least=2)
    checks.count(args.seed, "--seed", least=0)
    checks.count(args.retries, "--retries", least=0)
    checks.choice(args.kind, "--kind", ("probs", "scores", "logits"))
    checks.output_folder(args.out, (SETTINGS_FILE,), "a sweep")
    if args.workers is not None:
        checks.count(args.workers, "--workers")
    if args.engine == "hf-jobs":
        _jobs(args)
    elif args.dry_run:
        raise InvalidInput(f"--dry-run prints the jobs of hf-jobs; the engine is {args.engine}.")


def run(args: argparse.Namespace) -> int:
    """Sweep; exit code 1 if a model failed for good."""
    from oattn_hub.sweep import run_sweep
    from oattn_hub.sweep.state import Options

    options = Options(args.data, args.batches, args.tokens, args.kind, args.seed, args.evaluate, args.trust_remote_code)
    engine = _jobs(args) if args.engine == "hf-jobs" else args.engine
    if args.dry_run:
        return _dry_run(args, options)
    retries = 0 if args.engine == "hf-jobs" else args.retries
    with progress_bar() as progress:
        result = run_sweep(
            args.models,
            args.out,
            engine,
            options,
            workers=args.workers,
            retries=retries,
            progress=progress,
            report=_tell,
        )
    if args.json:
        print_json({"folder": str(result.folder), "models": [status.to_json() for status in result.statuses]})
    _print(result, console(args.json))
    return 1 if result.count("failed") else 0


def _jobs(args: argparse.Namespace) -> HfJobs:
    from oattn_hub.sweep.jobs import HfJobs

    if not args.namespace:
        raise InvalidInput("The engine hf-jobs needs --namespace: the user or organisation that pays for the jobs.")
    return HfJobs(args.namespace, args.package, args.flavor, args.timeout, args.private)


def _dry_run(args: argparse.Namespace, options: Options) -> int:
    from oattn_hub.sweep import read_models

    jobs = _jobs(args)
    for job in read_models(args.models):
        print(jobs.shown(job, options))
    return 0


def _tell(status: Status) -> None:
    details = {"done": f"{status.seconds:.1f} s", "failed": status.error, "running": f"job {status.remote_job}"}
    again = " (will be tried again)" if status.again else ""
    line = f"{status.state:8} {status.model}  {details.get(status.state, '')}{again}"
    print(printable(line), file=sys.stderr, flush=True)


def _print(result: SweepResult, screen: Console) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    columns, rows = result.leaderboard.table()
    shown = [place for place, column in enumerate(columns) if column not in _ON_THE_PAGE]
    table = Table(box=SIMPLE_HEAD)
    for place in shown:
        table.add_column(columns[place], overflow="fold")
    for row in rows[:_SHOWN]:
        table.add_row(*(row[place] for place in shown))
    if rows:
        screen.print(table)
    states = ("done", "failed", "running", "busy", "waiting")
    counts = ", ".join(f"{result.count(state)} {state}" for state in states if result.count(state))
    screen.print(f"{len(result.statuses)} models: {counts}\npage {result.folder / 'leaderboard.html'}", soft_wrap=True)
