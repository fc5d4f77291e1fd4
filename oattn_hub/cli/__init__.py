"""``oattn``: arguments in, library calls, printed words out. No logic lives here.

A verb is a module with ``HELP``, ``add_arguments(parser)`` and ``run(args) -> int``. Verb modules import what they
need inside ``run``, so that ``oattn --help`` stays instant; ``check(args)``, where there is one, refuses bad arguments
before anything slow starts. Results go to stdout, progress and errors to stderr.
"""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

from oattn_hub import __version__
from oattn_hub.cli.terminal import print_in_any_encoding, printable
from oattn_hub.cli.typed import as_typed, typed_name
from oattn_hub.errors import OattnError

# verb -> module; one line per verb, in the order of the help page
_VERBS: dict[str, str] = {
    "analyze": "oattn_hub.cli.analyze",
    "heads": "oattn_hub.cli.heads",
    "compare": "oattn_hub.cli.compare",
    "evaluate": "oattn_hub.cli.evaluate",
    "validate": "oattn_hub.cli.validate",
    "prune": "oattn_hub.cli.prune",
    "heal": "oattn_hub.cli.heal",
    "benchmark": "oattn_hub.cli.benchmark",
    "export": "oattn_hub.cli.export",
    "migrate": "oattn_hub.cli.migrate",
    "sweep": "oattn_hub.cli.sweep",
    "capture": "oattn_hub.cli.capture",
    "adapters": "oattn_hub.cli.adapters",
    "publish": "oattn_hub.cli.publish",
    "pull": "oattn_hub.cli.pull",
    "card": "oattn_hub.cli.card",
    "hub": "oattn_hub.cli.hub",
    "demo": "oattn_hub.cli.demo",
    "completion": "oattn_hub.cli.completion",
}
_SHOWN_OF_A_NAME = 40  # letters of a name that is too long to be one


class _Parser(argparse.ArgumentParser):
    """Help in the words the user typed."""

    def format_help(self) -> str:
        return as_typed(super().format_help(), _VERBS)

    def error(self, message: str) -> NoReturn:
        """One line, and where to read on; the usage of a verb fills a screen, and hides what is wrong below it."""
        self.exit(2, f"{self.prog}: {message}. See `{self.prog} --help`.\n")


def build_parser() -> argparse.ArgumentParser:
    """The whole command line, built without importing torch."""
    parser = _Parser(prog=typed_name(), description="Which attention heads does this model need?")
    parser.add_argument("--version", action="version", version=f"oattn_hub {__version__}")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    for verb, module_name in _VERBS.items():
        module = import_module(module_name)
        subparser = verbs.add_parser(verb, help=module.HELP, description=module.HELP)
        module.add_arguments(subparser)
        subparser.set_defaults(run=module.run, check=getattr(module, "check", None))
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; a library error becomes one line on stderr and exit code 1."""
    print_in_any_encoding()
    args = build_parser().parse_args(argv)
    try:
        if args.check is not None:
            args.check(args)
        return int(args.run(args))
    except OattnError as error:
        print(f"{typed_name()}: {as_typed(printable(str(error)), _VERBS)}", file=sys.stderr)
        return 1
    except BrokenPipeError:  # the reader, `head` for one, has seen enough
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123 - so that the flush at exit says nothing either
        return 0
    except OSError as error:
        print(f"{typed_name()}: {printable(_refused_by_the_system(error))}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"{typed_name()}: interrupted; run the same command again to go on where it stopped.", file=sys.stderr)
        return 130


def _refused_by_the_system(error: OSError) -> str:
    """One sentence for what the system says of a disk: numba keeps what it compiled, matplotlib its fonts."""
    if error.errno == errno.ENAMETOOLONG:
        start = str(error.filename or "")[:_SHOWN_OF_A_NAME]
        return f"A name is too long for this machine: {start}… Give a shorter one."
    place = f" ({error.filename})" if error.filename else ""
    reason = error.strerror or error
    return f"The system refused: {reason}{place}. Free space or change the rights of the folder, then run again."
