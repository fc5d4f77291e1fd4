"""The package itself: what it exports, what importing it costs, what its wheel holds."""

from __future__ import annotations

import pkgutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import oattn_hub as oh

ROOT = Path(__file__).parents[1]
HEAVY = ("torch", "transformers", "timm", "numba", "matplotlib", "scipy")


def _modules_after(code: str) -> set[str]:
    """The modules loaded in a new process that runs ``code``."""
    script = f"{code}\nimport sys\nprint(*sorted(sys.modules), sep='\\n')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split("\n"))


@pytest.mark.parametrize("code", ["import oattn_hub", "from oattn_hub.cli import build_parser; build_parser()"])
def test_starting_loads_no_heavy_library(code: str) -> None:
    assert not _modules_after(code) & set(HEAVY)


def test_every_public_name_exists_and_is_listed() -> None:
    names = [name for name in oh.__all__ if name != "__version__"]
    assert names == sorted(names, key=str.lower) or names == sorted(names)
    for name in names:
        assert getattr(oh, name) is not None
        assert name in dir(oh)


def test_an_unknown_name_is_refused_with_the_known_ones() -> None:
    with pytest.raises(AttributeError, match=r"no attribute 'anlyze'.*analyze"):
        oh.anlyze  # noqa: B018


def _packages_on_disk() -> set[str]:
    return {module.name for module in pkgutil.walk_packages(oh.__path__, "oattn_hub.") if module.ispkg} | {"oattn_hub"}


def test_no_package_is_left_out_of_the_wheel() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    assert set(listed) == _packages_on_disk() | {"oattn_hub.inputs.data", "oattn_hub.cards"}


@pytest.mark.slow
def test_the_wheel_holds_every_file_and_no_top_level_adapters(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(tmp_path), str(ROOT)]
    subprocess.run(command, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    tracked = subprocess.run(
        ["git", "ls-files", "oattn_hub"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    in_checkout = {name for name in tracked.split() if name not in ("oattn_hub/adapters", "oattn_hub/cards")}
    for folder in ("adapters", "cards"):
        in_checkout |= {f"oattn_hub/{folder}/{path.name}" for path in (ROOT / folder).iterdir() if path.is_file()}
    assert in_checkout <= packed
    assert not [name for name in packed if name.startswith(("adapters/", "cards/"))]
