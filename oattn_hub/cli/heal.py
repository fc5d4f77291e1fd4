"""``oattn heal PRUNED --out DIR``: minutes of training after a cut, to get the unpruned model's outputs back."""

from __future__ import annotations

import argparse
from shlex import quote

from oattn_hub.cli import checks
from oattn_hub.cli.loading import add_permission_arguments, loading_options
from oattn_hub.cli.prune import parse_lengths, print_cost
from oattn_hub.cli.terminal import add_json_flag, console, next_commands, print_json

HELP = "train a pruned checkpoint's output projections for a few minutes to give the unpruned model's outputs again"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which checkpoint, on what, how long."""
    parser.add_argument("pruned", type=checks.path, help="folder of a pruned checkpoint (oattn prune writes one)")
    parser.add_argument("--out", type=checks.path, required=True, help="folder for the healed checkpoint")
    parser.add_argument("--minutes", type=float, default=5.0, help="how long at most (5)")
    parser.add_argument("--model", help="the unpruned model, if it is not where the checkpoint says")
    parser.add_argument("--data", help="what to measure the cost on; default: bundled data")
    parser.add_argument("--calibration", help="what to train on; default: another part of the data")
    parser.add_argument("--inputs", type=int, help="inputs to verify on (as many as there are, up to 64)")
    parser.add_argument("--tokens", type=int, help="your context length (128, or what the model takes)")
    parser.add_argument("--lengths", help="all lengths to train and verify at, e.g. 128,512")
    parser.add_argument("--rate", type=float, default=3e-4, help="learning rate (0.0003)")
    parser.add_argument("--lora", type=int, help="train additions of this rank to all linear layers instead (PEFT)")
    parser.add_argument("--seed", type=int, default=0, help="of inputs and their order (0)")
    add_permission_arguments(parser)
    add_json_flag(parser)


def check(args: argparse.Namespace) -> None:
    """Refuse what cannot work."""
    checks.placement(args)
    checks.checkpoint(args.pruned)
    checks.output_folder(args.out, ("oattn_pruned.json",), "a pruned checkpoint")
    checks.positive(args.minutes, "--minutes")
    checks.positive(args.rate, "--rate")
    if args.inputs is not None:
        checks.count(args.inputs, "--inputs")
    if args.lora is not None:
        checks.count(args.lora, "--lora")
    checks.count(args.seed, "--seed", least=0)
    if args.tokens is not None:
        checks.count(args.tokens, "--tokens", least=2)
    checks.lengths(parse_lengths(args.lengths))
    checks.data(args.data)
    checks.data(args.calibration, "--calibration")
    if args.model is not None:
        checks.model(args.model, allow_pickle=args.allow_pickle)


def run(args: argparse.Namespace) -> int:
    """Open, heal, save, print what it costs now."""
    from oattn_hub.pruning.heal import Look, heal, open_pruned

    out, progress = console(), console(json=True)  # on stderr

    def report(look: Look) -> None:
        progress.print(f"step {look.step}, {look.seconds:.0f} s: loss {look.loss:.5f}", markup=False)

    names = ("data", "calibration", "minutes", "inputs", "tokens", "rate", "lora", "seed")
    options = {name: getattr(args, name) for name in names}
    pruned = open_pruned(args.pruned)
    lengths = parse_lengths(args.lengths)
    healed = heal(pruned, args.model, **options, lengths=lengths, report=report, **loading_options(args))
    healed.save_pretrained(args.out)
    plan = healed.plan
    if args.json:
        print_json({"plan": plan.to_json(), "out": str(args.out)})
        return 0
    print_cost(plan)
    out.print(f"saved to {args.out}", markup=False, soft_wrap=True)
    next_commands(
        (f"oattn publish {quote(str(args.out))} OWNER/NAME", "to the Hub; --dry-run DIR sends nothing"),
    )
    return 0
