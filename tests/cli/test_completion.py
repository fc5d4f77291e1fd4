"""The scripts of ``oattn completion``, asked in the shells themselves."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from oattn_hub.cli import build_parser, main
from oattn_hub.cli.completion import words_by_verb

ASKED = {
    ("pr",): {"prune"},
    ("hub", ""): {"serve", "variants"},
    ("analyze", "--bat"): {"--batches"},
    ("prune", "run", "--unit", ""): {"groups", "heads", "layers"},
}


@pytest.fixture
def script(request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Path:
    """The script for one shell, which must be on this machine."""
    if shutil.which(request.param) is None:
        pytest.skip(f"{request.param} is not installed")
    assert main(["completion", request.param]) == 0
    path = tmp_path / "script"
    path.write_text(capsys.readouterr().out)
    return path


def asked(command: list[str], script: Path) -> str:
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(script.parent), "ZDOTDIR": str(script.parent)}
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, cwd=script.parent, env=environment, timeout=60
    )
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_verb_option_and_value_is_in_the_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    known = words_by_verb(build_parser())
    assert {"analyze", "heads", "prune", "hub"} <= set(known)
    assert "--batches" in known["analyze"].options
    assert known["hub"].actions == ["serve", "variants"]
    for verb, words in known.items():
        values = [value for found in words.options.values() for value in found]
        for word in (verb, *words.options, *words.actions, *values):
            assert word.removeprefix("--") in text


@pytest.mark.parametrize("script", ["bash"], indirect=True)
def test_bash_completes(script: Path) -> None:
    for typed, expected in ASKED.items():
        words = " ".join(f"'{word}'" for word in ("oattn", *typed))
        ask = f"source ./script; COMP_WORDS=({words}); COMP_CWORD={len(typed)}; _oattn; echo ${{COMPREPLY[*]}}"
        assert set(asked(["bash", "-c", ask], script).split()) == expected


@pytest.mark.parametrize("script", ["bash"], indirect=True)
def test_a_place_for_a_folder_is_left_to_file_names(script: Path) -> None:
    """Options came up where a report was to be named: two dashes were typed for the user."""
    ask = "source ./script; COMP_WORDS=(oattn prune ''); COMP_CWORD=2; _oattn; echo ${#COMPREPLY[@]}; complete -p oattn"
    count, rule = asked(["bash", "-c", ask], script).splitlines()
    assert count == "0"
    assert "-o default" in rule


@pytest.mark.parametrize("script", ["fish"], indirect=True)
def test_fish_completes(script: Path) -> None:
    for typed, expected in ASKED.items():
        ask = f"source ./script; complete -C 'oattn {' '.join(typed)}'"
        lines = asked(["fish", "--no-config", "-c", ask], script).splitlines()
        assert {line.split("\t")[0] for line in lines} == expected


@pytest.mark.parametrize("script", ["zsh"], indirect=True)
def test_zsh_takes_the_script_before_its_completion_is_on(script: Path) -> None:
    """It stopped with "command not found: compdef" where ~/.zshrc had not called compinit."""
    registered = asked(["zsh", "-f", "-c", "source ./script; print -r -- $_comps[oattn]"], script)
    assert "_oattn" in registered
