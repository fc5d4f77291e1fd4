"""``oattn prune REPORT --fraction 0.2 | --budget 1% --out DIR``: a smaller checkpoint."""

from __future__ import annotations

import argparse
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from oattn_hub.cli import checks
from oattn_hub.cli.loading import add_permission_arguments, loading_options
from oattn_hub.cli.terminal import add_json_flag, console, next_commands, number_table, print_json, progress_bar
from oattn_hub.errors import InvalidInput
from oattn_hub.files import parse_size
from oattn_hub.progress import Progress

if TYPE_CHECKING:
    from oattn_hub.pruning import PruningPlan
    from oattn_hub.pruning.costs import PruningResult

HELP = "cut heads out of a report's model and save the smaller checkpoint"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which heads go, and where the checkpoint goes."""
    parser.add_argument("report", type=checks.path, help="folder of a report, or a plan (JSON)")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--fraction", type=checks.part, help="part of the heads to remove, e.g. 0.2 or 20%%")
    how.add_argument(
        "--budget",
        help="as many heads as this allows, with 95%% confidence: 1%% is 1%% more of a loss, and 0.01 of 1 - cosine "
        "or KL for a model without one",
    )
    how.add_argument("--heads", help="exactly these, as layer.head separated by commas: 0.1,0.5,3.2")
    parser.add_argument(
        "--metric",
        choices=("loss", "accuracy", "mrr", "divergence"),
        help="limit this by the budget, instead of the task's own metric",
    )
    parser.add_argument("--score", help="rank by this score, fisher or obs; default: what was measured to cost least")
    parser.add_argument(
        "--unit",
        choices=("heads", "groups", "layers"),
        default="heads",
        help="remove single heads, key/value groups or whole attention layers (heads)",
    )
    parser.add_argument(
        "--shape", choices=("free", "even", "uniform"), default="free", help="even groups, or all layers alike (free)"
    )
    parser.add_argument(
        "--compensate",
        choices=("refit", "bias", "scale", "none"),
        help="refit what stays; default: what was measured to help",
    )
    parser.add_argument("--min-heads-per-layer", type=int, default=0, help="leave so many in every layer (0)")
    parser.add_argument("--keep", help="heads not to remove, as layer.head separated by commas")
    parser.add_argument("--model", help="the model, if it is not where the report says")
    parser.add_argument("--data", help="data to measure the cost on; default: bundled data")
    parser.add_argument("--calibration", help="data to choose heads and refit by; default: another part of --data")
    parser.add_argument("--inputs", type=int, help="inputs to verify on (as many as there are, up to 64)")
    parser.add_argument("--tokens", type=int, help="your context length (128, or what the model takes)")
    parser.add_argument("--lengths", help="all lengths to verify at, e.g. 128,512 (--tokens, and four times as many)")
    parser.add_argument("--seed", type=int, default=0, help="of inputs, random signs and bootstrap (0)")
    parser.add_argument("--variant", choices=("cut", "masked"), default="cut", help="masked keeps the original shape")
    parser.add_argument("--out", type=checks.path, help="folder for the checkpoint; without it only the plan is made")
    parser.add_argument("--max-shard-size", help="the most that a file of weights holds, e.g. 1GB (5GB)")
    parser.add_argument("--no-verify", action="store_true", help="do not load the checkpoint again and compare")
    parser.add_argument("--plan", type=checks.path, help="also write the plan as JSON")
    add_permission_arguments(parser)
    add_json_flag(parser)


def check(args: argparse.Namespace) -> None:
    """Refuse what cannot work."""
    checks.placement(args)
    if args.report.is_file():
        _check_plan(args.report)
    else:
        checks.report(args.report, "report or plan")
        if args.fraction is None and args.budget is None and args.heads is None:
            raise InvalidInput("Say what to remove: --fraction 0.2, --budget 1% or --heads 0.1,0.5.")
    if args.fraction is not None:
        checks.share(args.fraction, "--fraction")
        if args.fraction == 0:
            raise InvalidInput("--fraction is 0, which removes no head; give a part above 0, such as 0.2.")
    if args.budget is not None:
        _check_budget(args.budget)
    for name in ("keep", "heads"):
        if (text := getattr(args, name)) is not None:
            _check_heads(args.report, parse_heads(text, f"--{name}"), whole=name == "heads" and args.out is not None)
    if args.heads is not None and args.keep is not None:
        _check_apart(args.heads, args.keep)
    checks.count(args.min_heads_per_layer, "--min-heads-per-layer", least=0)
    checks.data(args.data)
    checks.data(args.calibration, "--calibration")
    checks.count(args.seed, "--seed", least=0)
    if args.model is not None:
        checks.model(args.model, allow_pickle=args.allow_pickle)
    if args.score is not None:
        _check_score(args.score)
    if args.inputs is not None:
        checks.count(args.inputs, "--inputs")
    if args.tokens is not None:
        checks.count(args.tokens, "--tokens")
    checks.lengths(parse_lengths(args.lengths))
    if args.max_shard_size is not None:
        parse_size(args.max_shard_size, "--max-shard-size")
    checks.output_file(args.plan, "--plan")
    checks.output_folder(args.out, ("oattn_pruned.json",), "a pruned checkpoint")


def _check_score(name: str) -> None:
    from oattn_hub.pruning.scores import list_scores

    if name not in (known := ("fisher", "obs", *list_scores())):
        raise InvalidInput(f"There is no score {name!r}; choose from {', '.join(known)}.")


def _check_plan(path: Path) -> None:
    from oattn_hub.pruning import PruningPlan

    PruningPlan.load_file(path)


def _check_apart(heads: str, keep: str) -> None:
    from oattn_hub.pruning.heads import check_apart

    check_apart(parse_heads(heads, "--heads"), set(parse_heads(keep, "--keep")))


def _check_budget(text: str) -> None:
    if not 0 <= parse_budget(text) <= 1:
        raise InvalidInput(f"--budget is {text}; give a part between 0 and 100 %, such as 1%.")


def _check_heads(report: Path, heads: list[tuple[int, int]], whole: bool) -> None:
    from oattn_hub.pruning.heads import check_known, check_whole, passes_of_modules
    from oattn_hub.report import Report

    if report.is_file():
        return
    records = Report.load(report).heads
    check_known(heads, [(record.layer, record.head) for record in records])
    if whole:
        check_whole(heads, passes_of_modules((record.layer, record.layer_name) for record in records))


def run(args: argparse.Namespace) -> int:
    """Plan, cut, save, print what it saved."""
    from oattn_hub.pruning import PruningPlan
    from oattn_hub.report.findings import chooser, name_heads

    with progress_bar() as progress:
        plan = PruningPlan.load_file(args.report) if args.report.is_file() else _plan(args, progress)
    if args.plan:
        plan.save(args.plan)
    shown = _keep_in_report(args.report, plan)
    result = _cut(args, plan) if args.out and plan.heads else None
    if args.json:
        saved = result.to_json() if result else None
        print_json({"plan": plan.to_json(), "result": saved, "out": str(args.out) if args.out else None})
        return 0
    out = console()
    named = name_heads(plan.heads, most=40)
    out.print(f"{len(plan.heads)} of {plan.n_heads} heads, chosen by {chooser(plan.score)}: {named}", markup=False)
    print_cost(plan)
    for line in _effort(plan):
        out.print(f"• {line}", markup=False)
    if result:
        out.print(str(result), markup=False)
    if shown:
        out.print(f"{shown} shows this plan", markup=False, soft_wrap=True)
    if args.out and not plan.heads:
        out.print("No head can go under this plan, so nothing was saved: the model is the original.", markup=False)
    elif args.out:
        how = "not verified" if args.no_verify else "loaded again and compared"
        out.print(f"saved to {args.out}, {how}", markup=False, soft_wrap=True)
        next_commands(
            (f"oattn publish {quote(str(args.out))} OWNER/NAME", "to the Hub; --dry-run DIR sends nothing"),
        )
    return 0


def print_cost(plan: PruningPlan) -> None:
    """What a plan was measured to cost, as a table, and what was done to the weights."""
    from oattn_hub.pruning.words import cost_lines, cost_table, weights_words

    out = console()
    columns, rows = cost_table(plan)
    if rows:
        shown = [place for place, name in enumerate(columns) if name != "inputs"]  # the lines below say how many
        names = ["", *(columns[place] for place in shown[1:])]
        table = number_table(columns[0], names, [[row[place] for place in shown] for row in rows])
        out.print("", table, "", sep="\n")
    for line in (*cost_lines(plan), weights_words(plan)):
        out.print(f"• {line}", markup=False)


def _keep_in_report(folder: Path, plan: PruningPlan) -> Path | None:
    """A plan whose cost was verified is what its report answers with from now on; returns the page if there is one.

    A plan that was measured on the very inputs that chose its ranking does not take the place of one that was not, nor
    one that removes nothing that of one that removes something.
    """
    from oattn_hub.report import Report

    cost = plan.cost or {}
    if folder.is_file() or "high" not in cost:
        return None
    report = Report.load(folder)
    known = report.removal.cost if report.removal else {}
    if not plan.heads and report.removal is not None and report.removal.heads:
        return None
    if "compared" in cost and "high" in known and "compared" not in known:
        return None
    report = report.with_plan(plan)
    report.save(folder)
    page = folder / "report.html"
    return report.write_page(page) if page.exists() else None


def _plan(args: argparse.Namespace, progress: Progress) -> PruningPlan:
    from oattn_hub.report import Report

    report = Report.load(args.report)
    options = {
        "fraction": args.fraction,
        "max_loss_increase": None if args.budget is None else parse_budget(args.budget),
        "heads": None if args.heads is None else parse_heads(args.heads),
    }
    names = ("score", "min_heads_per_layer", "unit", "shape", "compensate", "model", "metric", "data")
    common = {name: getattr(args, name) for name in (*names, "calibration", "inputs", "tokens", "seed")}
    common |= loading_options(args)
    common["keep"] = [] if args.keep is None else parse_heads(args.keep)
    return report.plan(**options, **common, lengths=parse_lengths(args.lengths), progress=progress)


def _effort(plan: PruningPlan) -> list[str]:
    effort = plan.chosen_by.get("effort")
    if not effort:
        return []
    return [
        f"{effort['evaluations']} pruned models measured in {effort['seconds']:.0f} s: {effort['forwards']} inputs "
        f"forward, {effort['backwards']} backward"
    ]


def _cut(args: argparse.Namespace, plan: PruningPlan) -> PruningResult:
    from oattn_hub.report import Report

    evaluation = None if args.report.is_file() else Report.load(args.report).evaluation
    pruned = plan.apply(args.model, evaluation=evaluation, **loading_options(args))
    pruned.save_pretrained(
        args.out, variant=args.variant, verify=not args.no_verify, max_shard_size=args.max_shard_size
    )
    return pruned.result


def parse_budget(text: str) -> float:
    """A share, as a number or in per cent.

    >>> parse_budget("1%"), parse_budget("0.02")
    (0.01, 0.02)
    """
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise InvalidInput(f"--budget is {text!r}; give a share such as 1% or 0.01.") from None


def parse_lengths(text: str | None) -> list[int] | None:
    """Context lengths, separated by commas.

    >>> parse_lengths("128,512"), parse_lengths(None)
    ([128, 512], None)
    """
    try:
        return None if text is None else [int(length) for length in text.split(",")]
    except ValueError:
        raise InvalidInput(f"--lengths is {text!r}; give numbers of tokens, e.g. 128,512.") from None


def parse_heads(text: str, option: str = "--heads") -> list[tuple[int, int]]:
    """Heads as layer.head.

    >>> parse_heads("0.1,3.12")
    [(0, 1), (3, 12)]
    """
    try:
        pairs = [entry.strip().split(".") for entry in text.split(",")]
        return [(int(layer), int(head)) for layer, head in pairs]
    except ValueError:
        raise InvalidInput(f"{option} is {text!r}; give heads as layer.head, e.g. 0.1,0.5,3.2.") from None
