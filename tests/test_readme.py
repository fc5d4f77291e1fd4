"""What the README says works: its code and commands run unchanged, its table and links are true."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from oattn_hub.cli import build_parser

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
_NOT_OURS = ("runs", "node_modules", "site-packages")
PAGES = sorted(path for path in ROOT.glob("**/*.md") if not set(_NOT_OURS) & set(path.parts))


def blocks(language: str) -> list[str]:
    """The README's code blocks of one language, in order."""
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.M | re.S)


def commands() -> list[list[str]]:
    """The README's command lines, without their comments."""
    lines = [line for block in blocks("bash") for line in block.splitlines()]
    return [words for line in lines if (words := shlex.split(line, comments=True))]


def slug(heading: str) -> str:
    """The anchor GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory, minilm_folder: Path) -> Iterator[tuple[dict[str, str], Path]]:
    """A local Hub with MiniLM under its real name, and an empty folder to work in."""
    from oattn_hub.demo import hub_with_minilm

    folder = tmp_path_factory.mktemp("readme")
    with hub_with_minilm(folder / "hub") as environment:
        work = folder / "work"
        work.mkdir()
        yield {**environment, "OATTN_HOME": str(folder / "home")}, work


@pytest.mark.slow
@pytest.mark.xdist_group("readme")
def test_the_python_code_runs_as_printed(hub: tuple[dict[str, str], Path]) -> None:
    environment, work = hub
    script = work / "readme.py"
    script.write_text("\n".join(blocks("python")))
    done = subprocess.run(
        [sys.executable, script], cwd=work, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert (work / "report.html").stat().st_size > 100_000
    assert "(32, 32, 24)" in done.stdout


@pytest.mark.slow
@pytest.mark.xdist_group("readme")
def test_the_commands_run_as_printed(hub: tuple[dict[str, str], Path]) -> None:
    environment, work = hub
    for words in commands():
        if words[0] != "oattn" or "mine.txt" in words:  # a text of the reader's own
            continue
        if "other-run" in words:  # the README compares with a second run, which a reader would have
            _oattn(
                ["analyze", "sentence-transformers/all-MiniLM-L6-v2", "--batches", "2", "--out", "other-run"],
                environment,
                work,
            )
        _oattn(words[1:], environment, work)
    assert (work / "run/report.html").exists()
    assert (work / "downloaded/model.safetensors").exists()


def _oattn(arguments: list[str], environment: dict[str, str], work: Path) -> None:
    command = [sys.executable, "-m", "oattn_hub.cli", *arguments]
    done = subprocess.run(command, cwd=work, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"oattn {shlex.join(arguments)}\n{done.stderr[-3000:]}"


def test_every_command_is_one_that_exists() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), flags=re.M))
    for words in commands():
        if words[0] == "make":
            assert words[1] in targets
        else:
            assert words[0] == "oattn"
            build_parser().parse_args(words[1:])


def test_the_table_is_that_of_the_registry() -> None:
    # in a new process: other tests register adapters of their own
    command = [sys.executable, "-m", "oattn_hub.cli", "adapters", "--markdown"]
    table = subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    written = re.search(r"<!-- adapters: .*? -->\n(.*?)<!-- /adapters -->", README, flags=re.S)
    assert written is not None
    assert written[1].strip() == table, "put the output of `oattn adapters --markdown` between the README's markers"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.M | re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        linked = page.parent / name if name else page
        assert linked.exists(), f"{page.name} links to {target}"
        if anchor and linked.suffix == ".md":
            headings = re.findall(r"^#+ (.*)$", linked.read_text(), flags=re.M)
            assert anchor in {slug(heading) for heading in headings}, f"{page.name} links to {target}"


@pytest.mark.slow
@pytest.mark.xdist_group("readme")
def test_the_notebook_runs(hub: tuple[dict[str, str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    import nbformat
    from nbclient import NotebookClient

    environment, work = hub
    for name, value in environment.items():
        if os.environ.get(name) != value:
            monkeypatch.setenv(name, value)
    notebook = nbformat.read(ROOT / "examples/quickstart.ipynb", as_version=4)
    NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(work)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    figures = sum("report.plot." in cell.source for cell in notebook.cells if cell.cell_type == "code")
    assert sum("image/png" in output.get("data", {}) for output in outputs) == figures > 1
