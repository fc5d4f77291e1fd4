"""``oattn publish``: a report or a pruned checkpoint goes to the Hub in one commit."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from oattn_hub.cli import checks
from oattn_hub.cli.terminal import add_json_flag, console, print_json
from oattn_hub.errors import LoadError

if TYPE_CHECKING:
    from oattn_hub.hub import Publication

HELP = "publish a report or a pruned checkpoint to the Hub, in one commit"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to publish, where, and how."""
    parser.add_argument(
        "folder", type=checks.path, help="a folder written by `oattn analyze`, `oattn prune` or `oattn sweep`"
    )
    parser.add_argument("repo_id", help="e.g. me/bert-base-uncased-heads, or an organisation's name before the slash")
    parser.add_argument(
        "--report", type=checks.path, metavar="DIR", help="the report whose evaluation a checkpoint's card shows"
    )
    parser.add_argument(
        "--include", action="append", default=[], metavar="FILE", help="a further file of the folder; may be repeated"
    )
    parser.add_argument(
        "--base-model", metavar="ID", help="what the model is called on the Hub, if it was loaded from a folder"
    )
    parser.add_argument("--space", action="store_true", help="publish the page, or a sweep's leaderboard, as a Space")
    parser.add_argument(
        "--collection", metavar="TITLE", help="of a sweep: publish every report too, and collect them under this title"
    )
    parser.add_argument("--private", action="store_true", help="if the repo is new, make it private")
    parser.add_argument("--revision", help="the branch to publish to; made if it is not there (main)")
    parser.add_argument("--create-pr", action="store_true", help="open a pull request instead of writing to the branch")
    parser.add_argument("--message", help="the title of the commit")
    parser.add_argument("--parent-commit", help="publish only if this is still the head")
    parser.add_argument("--token", help="a Hub token, if not the one you are logged in with")
    parser.add_argument(
        "--dry-run", type=checks.path, metavar="DIR", help="write the exact folder to DIR and send nothing"
    )
    add_json_flag(parser)


def check(args: argparse.Namespace) -> None:
    """Refuse what cannot work."""
    if not args.folder.is_dir():
        raise LoadError(
            f"There is no folder {args.folder}. Name one that `oattn analyze`, `oattn prune` or `oattn sweep` wrote."
        )
    checks.repo_id(args.repo_id)
    checks.new_folder(args.dry_run, "--dry-run")
    if args.base_model is not None:
        checks.repo_id(args.base_model)
    if args.report is not None:
        checks.report(args.report)


def run(args: argparse.Namespace) -> int:
    """Publish, and say what was done."""
    done = _publish_space(args) if args.space else _publish_repo(args)
    if args.json:
        print_json(done.to_json())
    for line in done.lines():
        console(args.json).print(line, soft_wrap=True, markup=False)
    if args.collection:
        _publish_collection(args)
    return 0


def _publish_repo(args: argparse.Namespace) -> Publication:
    from oattn_hub.errors import InvalidInput
    from oattn_hub.hub import push_folder
    from oattn_hub.sweep.publishing import is_sweep

    if is_sweep(args.folder):
        raise InvalidInput(f"{args.folder} is a sweep: publish its leaderboard with --space.")
    if args.collection:
        raise InvalidInput(f"--collection is for a sweep, and {args.folder} is none. Leave it out.")
    return push_folder(
        args.folder,
        args.repo_id,
        report=args.report,
        include=args.include,
        base_model=args.base_model,
        private=args.private or None,
        revision=args.revision,
        create_pr=args.create_pr,
        commit_message=args.message,
        parent_commit=args.parent_commit,
        token=args.token,
        dry_run=args.dry_run,
    )


def _publish_space(args: argparse.Namespace) -> Publication:
    from oattn_hub.hub.space import push_report_space
    from oattn_hub.report import Report
    from oattn_hub.sweep.publishing import is_sweep, publish_leaderboard

    options = {"commit_message": args.message, "dry_run": args.dry_run, **_access(args)}
    if is_sweep(args.folder):
        return publish_leaderboard(args.folder, args.repo_id, **options)
    return push_report_space(Report.load(args.folder), args.repo_id, **options)


def _publish_collection(args: argparse.Namespace) -> None:
    from oattn_hub.sweep.publishing import publish_collection

    namespace = args.repo_id.split("/")[0]
    if args.dry_run:
        words = f"The reports and the collection {args.collection!r} of {namespace} were not published."
        console(args.json).print(words, soft_wrap=True, markup=False)
        return
    address = publish_collection(args.folder, namespace, args.collection, args.repo_id, **_access(args))
    console(args.json).print(f"Collected the reports and the Space in {address}", soft_wrap=True, markup=False)


def _access(args: argparse.Namespace) -> dict[str, Any]:
    return {"private": args.private or None, "token": args.token}
