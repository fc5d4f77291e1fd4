"""``oattn capture``: a model's attention, as tensors on disk."""

from __future__ import annotations

import argparse

from oattn_hub.cli import checks
from oattn_hub.cli.loading import add_loading_arguments, loading_options
from oattn_hub.cli.terminal import add_json_flag, console, print_json, progress_bar

HELP = "run a model and write its attention to a store"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Arguments of the verb."""
    parser.add_argument("model", help="Hub id, folder, or timm name")
    parser.add_argument("--out", type=checks.path, required=True, metavar="DIR", help="folder of the store")
    parser.add_argument(
        "--data", help="text file, ids (.npy), folder of images or WAV files, dataset:NAME; default: bundled"
    )
    parser.add_argument("--batches", type=int, default=6, help="contexts, one forward call each (6)")
    parser.add_argument("--tokens", type=int, default=128, help="tokens per text context (128)")
    kinds = "probs, scores (before the mask) or logits (after it); repeat for several (probs)"
    parser.add_argument("--kind", action="append", choices=("scores", "logits", "probs"), help=kinds)
    numbers = ("float32", "float16")
    parser.add_argument("--dtype", choices=numbers, default="float32", help="number format of the store (float32)")
    parser.add_argument("--pool", type=int, default=1, metavar="N", help="merge N consecutive tokens into one (1)")
    parser.add_argument("--adapter", help="name of an adapter (see oattn adapters); default: found from the model")
    parser.add_argument("--seed", type=int, default=0, help="chooses the contexts (0)")
    parser.add_argument("--resume", action="store_true", help="go on with a store that was cut short")
    add_loading_arguments(parser, dtype="--weights-dtype")
    add_json_flag(parser)


def check(args: argparse.Namespace) -> None:
    """Refuse what cannot work."""
    from oattn_hub.attention.store import INDEX_NAME, AttentionStore
    from oattn_hub.attention.writer import refuse_to_add

    checks.model(args.model, args.gguf_file, args.allow_pickle)
    checks.loading(args)
    checks.data(args.data)
    checks.count(args.batches, "--batches")
    checks.count(args.tokens, "--tokens", least=2)
    checks.count(args.pool, "--pool")
    checks.count(args.seed, "--seed", least=0)
    checks.output_folder(args.out, (INDEX_NAME,), "captured attention")
    if AttentionStore.is_store(args.out) and not args.resume:
        refuse_to_add(args.out)


def run(args: argparse.Namespace) -> int:
    """Load, capture, say what was written."""
    from oattn_hub.analysis.axes import keep_contexts
    from oattn_hub.attention import capture_inputs
    from oattn_hub.inputs import calibration_inputs
    from oattn_hub.models.load import load_model

    loaded = load_model(args.model, **loading_options(args))
    inputs = calibration_inputs(loaded, args.data, batches=args.batches, tokens=args.tokens, seed=args.seed)
    options = {"dtype": args.dtype, "pool": args.pool, "adapter": args.adapter, "resume": args.resume}
    with progress_bar() as progress:
        store = capture_inputs(loaded, inputs, args.out, args.kind or ("probs",), progress=progress, **options)
    keep_contexts(store.folder, loaded, inputs)  # so that a report made of the store is read in tokens and seconds
    groups = {group: store.shape(0, group) for group in store.groups}
    if args.json:
        print_json({"store": str(args.out), "batches": store.n_batches, "groups": groups, "info": store.info.to_json()})
        return 0
    out = console()
    out.print(f"{store.n_batches} batches of {loaded.model_id} (adapter {store.info.adapter}) in {args.out}")
    for group, (queries, keys, heads) in groups.items():
        out.print(f"  {group}: {queries} queries x {keys} keys x {heads} heads")
    for name, reason in store.info.skipped.items():
        out.print(f"  left out {name}: {reason}")
    return 0
