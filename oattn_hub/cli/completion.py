"""``oattn completion SHELL``: a script that lets the shell complete verbs and options.

It is written from the parser itself, so it never knows less or more than ``oattn`` does, and runs no Python on a Tab.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field

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

    verbs = words_by_verb(build_parser())
    print({"bash": _bash, "zsh": _zsh, "fish": _fish}[args.shell](verbs), end="")
    return 0


@dataclass
class Words:
    """What may follow a verb; where nothing of it fits, shells complete names of files."""

    options: dict[str, list[str]] = field(default_factory=dict)  # each with the values that it is one of, if any
    actions: list[str] = field(default_factory=list)


def words_by_verb(parser: argparse.ArgumentParser) -> dict[str, Words]:
    """The options and actions of every verb."""
    found = {}
    for verb, sub in _subparsers(parser).items():
        _collect(sub, words := Words())
        found[verb] = Words(dict(sorted(words.options.items())), sorted(words.actions))
    return found


def _collect(parser: argparse.ArgumentParser, words: Words) -> None:
    for action in parser._actions:
        values = [str(value) for value in action.choices or ()]
        for option in action.option_strings:
            if option.startswith("--"):
                words.options[option] = values
        if not action.option_strings:
            words.actions += values
    for sub in _subparsers(parser).values():
        _collect(sub, words)


def _subparsers(parser: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def _bash(verbs: Mapping[str, Words]) -> str:
    cases = [
        f'    "{verb} {option}") words="{" ".join(values)}" ;;'
        for verb, words in verbs.items()
        for option, values in words.options.items()
        if values
    ]
    for verb, words in verbs.items():
        cases.append(f'    "{verb} "*) words="{" ".join(words.actions)}"; options="{" ".join(words.options)}" ;;')
    return f"""_oattn() {{
  local typed="${{COMP_WORDS[COMP_CWORD]}}" words="{" ".join(verbs)}" options="--help --version"
  [ "$COMP_CWORD" -gt 1 ] && case "${{COMP_WORDS[1]}} ${{COMP_WORDS[COMP_CWORD-1]}}" in
{chr(10).join(cases)}
  esac
  [[ "$typed" == -* ]] && words="$options"
  COMPREPLY=($(compgen -W "$words" -- "$typed"))
}}
complete -o default -F _oattn oattn
"""


def _zsh(verbs: Mapping[str, Words]) -> str:
    """The same through zsh's own emulation of bash, which needs zsh's completion to be on."""
    loaded = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit; }"
    return f"{loaded}\nautoload -U +X bashcompinit && bashcompinit\n{_bash(verbs)}"


def _fish(verbs: Mapping[str, Words]) -> str:
    lines = [f"complete -c oattn -n __fish_use_subcommand -f -a '{' '.join(verbs)}'"]
    for verb, words in verbs.items():
        after = f"complete -c oattn -n '__fish_seen_subcommand_from {verb}'"
        for option, values in words.options.items():
            given = f" -x -a '{' '.join(values)}'" if values else ""
            lines.append(f"{after} -l {option.removeprefix('--')}{given}")
        if words.actions:
            lines.append(f"{after} -f -a '{' '.join(words.actions)}'")
    return "\n".join(lines) + "\n"
