"""``oattn migrate OLD --out DIR``: a transformers-4 checkpoint with ``pruned_heads`` becomes one that loads."""

from __future__ import annotations

import argparse

from oattn_hub.cli import checks
from oattn_hub.cli.terminal import add_json_flag, console, print_json
from oattn_hub.errors import LoadError
from oattn_hub.models.folders import check_model_folder

HELP = "turn an old checkpoint with pruned_heads, which transformers 5 cannot load, into one that loads"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """From where to where."""
    parser.add_argument(
        "folder", type=checks.path, help="folder with config.json (pruned_heads) and safetensors weights"
    )
    parser.add_argument("--out", type=checks.path, required=True, help="folder for the new checkpoint")
    parser.add_argument("--allow-pickle", action="store_true", help="also read pytorch_model.bin (weights only)")
    add_json_flag(parser)


def check(args: argparse.Namespace) -> None:
    """Refuse what cannot work."""
    if not args.folder.exists():
        raise LoadError(f"There is no folder {args.folder}. Name one with config.json and weights.")
    check_model_folder(args.folder)
    checks.output_folder(args.out, ("oattn_pruned.json",), "a pruned checkpoint")


def run(args: argparse.Namespace) -> int:
    """Migrate and say what was found."""
    from oattn_hub.pruning import migrate

    pruned = migrate(args.folder, args.out, allow_pickle=args.allow_pickle)
    if args.json:
        print_json({"out": str(args.out), "plan": pruned.plan.to_json(), "result": pruned.result.to_json()})
    else:
        removed = len(pruned.plan.heads)
        console().print(f"{removed} heads were pruned; the checkpoint in {args.out} loads again.", markup=False)
    return 0
