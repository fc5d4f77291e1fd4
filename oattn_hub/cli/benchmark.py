"""``oattn benchmark PRUNED --lm-eval TASKS``: base and pruned model under the tools that others judge models with."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from oattn_hub.cli import checks
from oattn_hub.cli.loading import add_permission_arguments, loading_options
from oattn_hub.cli.terminal import add_json_flag, console, next_commands, print_json
from oattn_hub.errors import InvalidInput, LoadError

if TYPE_CHECKING:
    from oattn_hub.trials import TrialScore

HELP = "try a pruned checkpoint and its base model in lm-eval, mteb or sentence-transformers; the card shows both"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which checkpoint, which tools, which tasks."""
    parser.add_argument("pruned", type=checks.path, help="folder of a pruned checkpoint (oattn prune writes one)")
    parser.add_argument("--lm-eval", metavar="TASKS", help="tasks of lm-eval, e.g. arc_easy,lambada_openai")
    parser.add_argument(
        "--include", type=checks.path, metavar="DIR", help="a folder with lm-eval task files of your own"
    )
    parser.add_argument("--limit", type=int, help="of lm-eval: examples per task (all)")
    parser.add_argument("--shots", type=int, help="of lm-eval: examples shown before each question (the task's own)")
    parser.add_argument("--mteb", metavar="TASKS", help="tasks of mteb, e.g. STSBenchmark,SciFact")
    parser.add_argument(
        "--pairs",
        type=checks.path,
        metavar="CSV",
        help="columns sentence1, sentence2, score, for sentence-transformers",
    )
    parser.add_argument("--model", help="the base model, if it is not where the checkpoint says")
    add_permission_arguments(parser)
    add_json_flag(parser)


def check(args: argparse.Namespace) -> None:
    """Refuse what cannot work."""
    checks.placement(args)
    if not (args.pruned / "oattn_pruned.json").is_file():
        raise LoadError(f"There is no pruned checkpoint at {args.pruned}. Name a folder that `oattn prune` wrote.")
    if not (args.lm_eval or args.mteb or args.pairs):
        raise InvalidInput("Nothing to try. Give --lm-eval TASKS, --mteb TASKS or --pairs FILE.csv.")
    for value, name, least in ((args.limit, "--limit", 1), (args.shots, "--shots", 0)):
        if value is not None:
            checks.count(value, name, least)
    if args.pairs:
        checks.input_file(args.pairs, "--pairs")


def run(args: argparse.Namespace) -> int:
    """Ask each tool, keep what it says beside the checkpoint, print it."""
    from oattn_hub.trials import keep_scores

    scores = _scores(args)
    keep_scores(args.pruned, scores)
    if args.json:
        from oattn_hub.codec import encode

        print_json([encode(score) for score in scores])
        return 0
    console().print(_table(scores))
    next_commands((f"oattn publish {args.pruned} OWNER/NAME", "the card shows these numbers"))
    return 0


def _scores(args: argparse.Namespace) -> list[TrialScore]:
    from oattn_hub.trials import lm_eval_scores, mteb_scores, open_pair, sentence_scores

    pair = open_pair(args.pruned, args.model, **loading_options(args))
    scores: list[TrialScore] = []
    if args.lm_eval:
        options = {"include": args.include, "limit": args.limit, "num_fewshot": args.shots}
        scores += lm_eval_scores(pair, args.lm_eval.split(","), **options)
    if args.mteb:
        scores += mteb_scores(pair, args.mteb.split(","))
    if args.pairs:
        scores += sentence_scores(pair, [args.pairs])
    return scores


def _table(scores: list[TrialScore]) -> Any:
    from rich.table import Table

    from oattn_hub.trials.words import score_cells

    table = Table("tool", "task", "metric", "base model", "pruned")
    for score in scores:
        table.add_row(*score_cells(score))
    return table
