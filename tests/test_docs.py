"""The docs: their Python runs as printed, every page is in the menu, and the site builds without a warning."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
TUTORIALS = [page for page in PAGES if "```python" in page.read_text()]


@pytest.mark.slow
@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_the_python_of_a_page_runs_as_printed(page: Path, tmp_path: Path) -> None:
    blocks = re.findall(r"^```python\n(.*?)^```", page.read_text(), flags=re.M | re.S)
    (tmp_path / "page.py").write_text("\n".join(blocks))
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OATTN_HOME": str(tmp_path / "home"),
        "HF_HOME": str(tmp_path / "hf"),
    }
    done = subprocess.run(
        [sys.executable, "page.py"], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_every_page_is_in_the_menu() -> None:
    menu = (ROOT / "mkdocs.yml").read_text()
    assert [page.name for page in PAGES if page.relative_to(ROOT / "docs").as_posix() not in menu] == []


def test_every_object_of_the_reference_exists_and_is_described() -> None:
    for name in re.findall(r"^::: (\S+)$", (ROOT / "docs/reference.md").read_text(), flags=re.M):
        module, _, attribute = name.rpartition(".")
        found = importlib.import_module(name) if name == "oattn_hub.errors" else None
        found = found or getattr(importlib.import_module(module), attribute)
        assert found.__doc__, name


def test_every_test_that_a_page_names_exists() -> None:
    for page in PAGES:
        for name in re.findall(r"`(tests/[^`]*)`", page.read_text()):
            file, _, function = name.partition("::")
            assert (ROOT / file).exists(), f"{page.name} names {name}"
            assert f"def {function}" in ((ROOT / file).read_text() if function else "def "), f"{page.name} names {name}"


@pytest.mark.slow
def test_the_site_builds_strictly(tmp_path: Path) -> None:
    if find_spec("mkdocs") is None or find_spec("mkdocstrings") is None:
        pytest.skip("needs the docs extra; `make docs` installs it")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert (tmp_path / "reference/index.html").is_file()
