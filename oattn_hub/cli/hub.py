"""``oattn hub``: a local Hub, and what the Hub has for a model."""

from __future__ import annotations

import argparse
from pathlib import Path

from oattn_hub.cli import checks
from oattn_hub.cli.terminal import add_json_flag, console, print_json
from oattn_hub.errors import InvalidInput

HELP = "serve a Hub on this machine, or list published reports and pruned variants of a model"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """``oattn hub serve`` and ``oattn hub variants``."""
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    serve = actions.add_parser("serve", help="run a local Hub on 127.0.0.1 that the real client talks to")
    serve.add_argument(
        "--dir", type=checks.path, default=Path("local-hub"), help="where it keeps everything (%(default)s)"
    )
    serve.add_argument("--port", type=int, default=8642, help="0 takes any free port (%(default)s)")
    serve.add_argument("--user", default="me", help="the user the printed token is for (%(default)s)")
    serve.add_argument("--org", action="append", default=[], help="an organisation of that user; may be repeated")
    serve.add_argument(
        "--large-files",
        choices=("regular", "lfs"),
        default="regular",
        help="regular suits every client; lfs needs HF_HUB_DISABLE_XET=1 at the client (%(default)s)",
    )
    serve.add_argument("--verbose", action="store_true", help="print every request")
    variants = actions.add_parser("variants", help="published reports and pruned checkpoints of a base model")
    variants.add_argument("base_model", help="e.g. google-bert/bert-base-uncased")
    variants.add_argument("--token", help="a Hub token, if not the one you are logged in with")
    add_json_flag(variants)


def check(args: argparse.Namespace) -> None:
    """Refuse what cannot work."""
    if args.action == "variants":
        checks.repo_id(args.base_model)
    elif not 0 <= args.port < 65536:
        raise InvalidInput(f"--port is {args.port}; give a number from 0 to 65535.")
    elif args.dir.exists() and not args.dir.is_dir():
        raise InvalidInput(f"--dir is {args.dir}, which is a file; name a folder.")
    else:
        for option, names in (("--user", [args.user]), ("--org", args.org)):
            for name in names:
                checks.repo_owner(name, option)


def run(args: argparse.Namespace) -> int:
    """Serve until interrupted, or list."""
    return _serve(args) if args.action == "serve" else _variants(args)


def _serve(args: argparse.Namespace) -> int:
    from oattn_hub.errors import HubUnavailable, OattnError
    from oattn_hub.local_hub import LocalHub

    try:
        hub = LocalHub(args.dir, args.port, large_files=args.large_files, verbose=args.verbose)
    except OattnError:
        raise
    except (OSError, OverflowError) as error:
        raise HubUnavailable(f"Cannot serve on 127.0.0.1:{args.port}: {error}. Choose another --port.") from error
    account = hub.store.accounts.ensure(args.user, tuple(args.org))
    print(
        f"# Local Hub on this machine, in {args.dir}. Nothing goes to huggingface.co. Stop it with Ctrl-C.\n"
        "# In another shell, so that clients talk to it and your real token stays where it is:\n"
        f"export HF_ENDPOINT={hub.url} HF_TOKEN={account.token} HF_HOME={(args.dir / 'client-home').resolve()}",
        flush=True,
    )
    try:
        hub.serve_forever()
    except KeyboardInterrupt:
        console().print("Stopped. Everything that was committed is kept.")
    return 0


def _variants(args: argparse.Namespace) -> int:
    from oattn_hub.hub import list_variants

    found = list_variants(args.base_model, token=args.token)
    if args.json:
        print_json([variant.to_json() for variant in found])
        return 0
    for variant in found:
        console().print(f"{variant.repo_id}  {variant.kind}  {variant.summary}")
    if not found:
        console().print(f"Nobody published a report or a pruned variant of {args.base_model} yet.")
    return 0
