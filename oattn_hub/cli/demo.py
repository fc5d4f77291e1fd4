"""``oattn demo``: the whole way on a real model, with a Hub of this machine."""

from __future__ import annotations

import argparse
from pathlib import Path

from oattn_hub.cli import checks

HELP = "analyse, prune, publish and download a real model, on this machine alone"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Where the demo keeps its files."""
    parser.add_argument(
        "--out", type=checks.path, default=Path("runs/demo"), help="folder for everything it makes (%(default)s)"
    )
    parser.add_argument("--where", action="store_true", help="only print the folder of the demo's model")


def check(args: argparse.Namespace) -> None:
    """Refuse what cannot work."""
    checks.output_folder(args.out, ("hub", "report"), "an earlier demo")


def run(args: argparse.Namespace) -> int:
    """Run the demo and say what to open."""
    from oattn_hub.demo import minilm_folder, run_demo

    if args.where:
        print(minilm_folder())
        return 0
    print("A real model, a Hub on 127.0.0.1, nothing leaves this machine.", flush=True)
    made = run_demo(args.out)
    print("\nOpen these:", *(f"  {path}" for path in made), sep="\n")
    return 0
