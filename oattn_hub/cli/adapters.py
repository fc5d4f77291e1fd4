"""``oattn adapters``: the model families that are known."""

from __future__ import annotations

import argparse

from oattn_hub.cli import checks
from oattn_hub.cli.loading import add_loading_arguments, loading_options
from oattn_hub.cli.terminal import add_json_flag, print_json
from oattn_hub.codec import encode
from oattn_hub.errors import InvalidInput

HELP = "list the model families that are known"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    parser.add_argument("pattern", nargs="?", default="*", help="glob, such as '*vit*'")
    parser.add_argument("--explain", metavar="MODEL", help="show what is known of each attention layer of a model")
    parser.add_argument("--markdown", action="store_true", help="print the table of the README")
    add_loading_arguments(parser)
    add_json_flag(parser)


def check(args: argparse.Namespace) -> None:
    """Refuse what cannot work."""
    if args.explain is not None:
        checks.model(args.explain, args.gguf_file, args.allow_pickle)
    checks.loading(args)


def run(args: argparse.Namespace) -> int:
    """Print name and description of every adapter that matches."""
    from oattn_hub.adapters import get_adapter, list_adapters

    if args.explain:
        return _explain(args)
    found = {name: get_adapter(name) for name in list_adapters(args.pattern)}
    if not found:
        raise InvalidInput(f"No adapter is called {args.pattern!r}. Leave the name out to see all of them.")
    if args.json:
        print_json(
            {
                name: {"description": adapter.description, "described": adapter.layout is not None}
                for name, adapter in found.items()
            }
        )
        return 0
    if args.markdown:
        print("| adapter | models | heads can be |\n|---|---|---|")
        for name, adapter in found.items():
            print(
                f"| `{name}` | {adapter.description} | {'captured, cut' if adapter.layout else 'captured, most cut'} |"
            )
        return 0
    width = max((len(name) for name in found), default=0)
    for name, adapter in found.items():
        print(f"{name:<{width}}  {adapter.description}")
    return 0


def _explain(args: argparse.Namespace) -> int:
    """Run the model once, so that attention nobody described is seen, and print what is known of it."""
    import numpy as np

    from oattn_hub.adapters import adapt
    from oattn_hub.adapters.explain import explain
    from oattn_hub.attention import MemoryStore, capture_inputs
    from oattn_hub.inputs import calibration_inputs
    from oattn_hub.models.load import load_model

    loaded = load_model(args.explain, **loading_options(args))
    words = np.arange(16) if loaded.modality == "text" and loaded.processor is None else None  # any tokens will do
    capture_inputs(loaded, calibration_inputs(loaded, words, batches=1, tokens=16), MemoryStore())
    adapter = adapt(loaded.model)
    records = explain(adapter)
    if args.json:
        print_json({"adapter": adapter.name, "left_out": adapter.left_out, "layers": encode(records)})
        return 0
    print(f"adapter {adapter.name}, {len(records)} attention layers")
    for record in records:
        kv = "" if record["kv_heads"] == record["heads"] else f", {record['kv_heads']} key/value heads"
        print(f"{record['layer']:>4}  {record['name']} ({record['class']}), {record['found']}")
        print(f"      {record['heads']} heads{kv}; output {record['output']}; {record['projections']}")
        if record["refusal"]:
            print(f"      cannot be cut: {record['refusal']}")
    for name, reason in adapter.left_out.items():
        print(f"left out: {name}: {reason}")
    return 0
