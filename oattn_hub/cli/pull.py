"""``oattn pull``: a published report or checkpoint comes to this machine, checked."""

from __future__ import annotations

import argparse

from oattn_hub.cli import checks
from oattn_hub.cli.terminal import add_json_flag, console, print_json

HELP = "download a report or a pruned checkpoint, checking every file"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to download and where to."""
    parser.add_argument("repo_id", help="e.g. me/bert-base-uncased-heads")
    parser.add_argument("--to", type=checks.path, metavar="DIR", help="copy the files to this new or empty folder")
    parser.add_argument("--revision", help="a branch, tag or commit (main)")
    parser.add_argument("--token", help="a Hub token, if not the one you are logged in with")
    parser.add_argument("--offline", action="store_true", help="use only what was downloaded before")
    parser.add_argument("--with-code", action="store_true", help="also fetch .py files other than modeling_pruned.py")
    add_json_flag(parser)


def check(args: argparse.Namespace) -> None:
    """Refuse what cannot work."""
    checks.repo_id(args.repo_id)
    checks.new_folder(args.to, "--to")


def run(args: argparse.Namespace) -> int:
    """Download, and say where it is."""
    from oattn_hub.hub import copy_to, pull

    folder = pull(
        args.repo_id,
        revision=args.revision,
        token=args.token,
        local_files_only=args.offline,
        trust_remote_code=args.with_code,
    )
    if args.to:
        folder = copy_to(folder, args.to)
    if args.json:
        print_json({"repo_id": args.repo_id, "folder": str(folder)})
    console(args.json).print(f"{args.repo_id} is in {folder}; every file is as the Hub names it.", soft_wrap=True)
    return 0
