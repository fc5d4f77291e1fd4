"""``oattn card``: the model card of a report or a checkpoint, without a network."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from oattn_hub.cli import checks
from oattn_hub.cli.terminal import console, printable
from oattn_hub.errors import LoadError

HELP = "write the model card of a report or a pruned checkpoint"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Of what, for which repo, and where to."""
    parser.add_argument("folder", type=checks.path, help="a folder written by `oattn analyze` or `oattn prune`")
    parser.add_argument("--repo", metavar="REPO_ID", help="where it will be published, for the snippet in the card")
    parser.add_argument(
        "--base-model", metavar="ID", help="what the model is called on the Hub, if it was loaded from a folder"
    )
    parser.add_argument(
        "--out", type=checks.path, metavar="DIR", help="write README.md and its figures here (else to stdout)"
    )


def check(args: argparse.Namespace) -> None:
    """Refuse what cannot work."""
    if not args.folder.is_dir():
        raise LoadError(f"There is no folder {args.folder}. Name one that `oattn analyze` or `oattn prune` wrote.")
    _check_kind(args.folder)
    checks.new_folder(args.out, "--out")
    for name in (args.repo, args.base_model):
        if name is not None:
            checks.repo_id(name)


def _check_kind(folder: Path) -> None:
    from oattn_hub.hub.push import kind_of

    kind_of(folder)


def run(args: argparse.Namespace) -> int:
    """Write the card, or print it."""
    from oattn_hub.hub import card_of, write_card

    if args.out is None:
        sys.stdout.write(printable(card_of(args.folder, args.repo, args.base_model)))
        return 0
    path = write_card(args.folder, args.out, args.repo, args.base_model)
    console().print(f"The card is {path}.", soft_wrap=True)
    return 0
