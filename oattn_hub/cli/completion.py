"""``oattn completion SHELL``: a script that lets the shell complete verbs and options.

It is written from the parser itself, so it never knows less or more than ``oattn`` does, and runs no Python on a Tab.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping

HELP = "print a completion script for your shell"
_INSTALL = {
    "bash": 'eval "$(oattn completion bash)"            in ~/.bashrc',
    "zsh": 'eval "$(oattn completion zsh)"             in ~/.zshrc, after compinit',
    "fish": "oattn completion fish | source             in ~/.config/fish/config.fish",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which shell."""
    parser.add_argument("shell", choices=tuple(_INSTALL), help="; ".join(_INSTALL.values()))


def run(args: argparse.Namespace) -> int:
    """Print the script."""
    from oattn_hub.cli import build_parser

    words = words_by_verb(build_parser())
    print({"bash": _bash, "zsh": _zsh, "fish": _fish}[args.shell](words), end="")
    return 0


def words_by_verb(parser: argparse.ArgumentParser) -> dict[str, list[str]]:
    """What may follow each verb: its options and, where it has them, its actions."""
    return {verb: sorted(_words(sub)) for verb, sub in _subparsers(parser).items()}


def _words(parser: argparse.ArgumentParser) -> set[str]:
    options = {text for action in parser._actions for text in action.option_strings if text.startswith("--")}
    below = _subparsers(parser)
    fixed = {str(word) for action in parser._actions if not action.option_strings for word in action.choices or ()}
    return options | fixed | {word for sub in below.values() for word in _words(sub)}


def _subparsers(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _bash(words: Mapping[str, list[str]]) -> str:
    cases = "\n".join(f'    {verb}) words="{" ".join(found)}" ;;' for verb, found in words.items())
    return f"""_oattn() {{
  local words="{" ".join(words)} --help --version"
  [ "$COMP_CWORD" -gt 1 ] && case "${{COMP_WORDS[1]}}" in
{cases}
  esac
  COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _oattn oattn
"""


def _zsh(words: Mapping[str, list[str]]) -> str:
    return f"autoload -U +X bashcompinit && bashcompinit\n{_bash(words)}"


def _fish(words: Mapping[str, list[str]]) -> str:
    lines = [f"complete -c oattn -n __fish_use_subcommand -f -a '{' '.join(words)}'"]
    for verb, found in words.items():
        seen = f"__fish_seen_subcommand_from {verb}"
        for word in found:
            what = f"-l {word.removeprefix('--')}" if word.startswith("--") else f"-a {word}"
            lines.append(f"complete -c oattn -n '{seen}' {what}")
    return "\n".join(lines) + "\n"
