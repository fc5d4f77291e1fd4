"""``oattn adapters``: the model families that are known."""

from __future__ import annotations

import argparse

from oattn_hub.cli.terminal import add_json_flag, print_json

HELP = "list the model families that are known"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    parser.add_argument("pattern", nargs="?", default="*", help="glob, such as '*vit*'")
    parser.add_argument("--markdown", action="store_true", help="print the table of the README")
    add_json_flag(parser)


def run(args: argparse.Namespace) -> int:
    """Print name and description of every adapter that matches."""
    from oattn_hub.adapters import get_adapter, list_adapters

    found = {name: get_adapter(name) for name in list_adapters(args.pattern)}
    if args.json:
        print_json(
            {
                name: {"description": adapter.description, "prunable": adapter.layout is not None}
                for name, adapter in found.items()
            }
        )
        return 0
    if args.markdown:
        print("| adapter | models | heads can be |\n|---|---|---|")
        for name, adapter in found.items():
            print(f"| `{name}` | {adapter.description} | {'captured, cut' if adapter.layout else 'captured'} |")
        return 0
    width = max((len(name) for name in found), default=0)
    for name, adapter in found.items():
        print(f"{name:<{width}}  {adapter.description}")
    return 0
