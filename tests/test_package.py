"""The package itself: what it exports, what importing it costs, what its wheel holds."""

from __future__ import annotations

import ast
import importlib.metadata
import os
import pkgutil
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import oattn_hub as oh

ROOT = Path(__file__).parents[1]
# A notebook has the first, type checkers the second; jinja2 and transformers cannot be without the others.
NEED_NOT_BE_DECLARED = {"IPython", "_typeshed", "markupsafe", "tokenizers"}
HEAVY = ("torch", "transformers", "timm", "numba", "matplotlib", "scipy")


def _modules_after(code: str) -> set[str]:
    """The modules loaded in a new process that runs ``code``."""
    script = f"{code}\nimport sys\nprint(*sorted(sys.modules), sep='\\n')"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split("\n"))


@pytest.mark.parametrize("code", ["import oattn_hub", "from oattn_hub.cli import build_parser; build_parser()"])
def test_starting_loads_no_heavy_library(code: str) -> None:
    assert not _modules_after(code) & set(HEAVY)


_BLOCKED = """
import sys
sys.modules.update(numba=None, matplotlib=None)
import torch, numpy as np
import oattn_hub as oh
from transformers import BertConfig, BertModel
from oattn_hub.cli import main
bert = BertModel(BertConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=32)).eval()
with oh.capture(bert, kinds=("probs",), store="store") as store:
    bert(torch.arange(100, 110)[None])
print(store.tensor(batch=0, kind="probs").shape)
plan = oh.PruningPlan.from_heads(bert, [(0, 1)])
pruned = plan.apply(bert, inputs=[{"input_ids": torch.arange(100, 110)[None]}], measure=False)
pruned.push_to_hub("me/small", verify=False, dry_run="dry")
print(type(oh.from_pretrained("dry")).__name__)
for refused in (lambda: oh.analyze(bert), lambda: oh.Analyzer().organise(np.random.rand(6, 6, 4))):
    try:
        refused()
    except oh.OattnError as error:
        print(isinstance(error, ImportError), error)
sys.exit(main(["analyze", "some/model"]))
"""


def test_capturing_needs_neither_numba_nor_matplotlib(tmp_path: Path) -> None:
    """As after `pip install --no-deps`, on a machine that has no use for them."""
    command = [sys.executable, "-c", _BLOCKED]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout.startswith("(10, 10, 4)\nBertModel\n"), done.stderr[-2000:]
    sentence = "Organising heads needs numba, not installed here: pip install numba."
    refused = done.stdout.splitlines()[2:]
    assert all(line.startswith(f"True {sentence}") for line in refused), refused
    assert len(refused) == 2
    assert done.returncode == 1
    assert "oattn: oattn analyze needs numba and matplotlib, not installed here" in done.stderr


def test_a_release_names_the_repository_that_builds_it(tmp_path: Path) -> None:
    """URLs in the metadata, and no relative image or link in the README that PyPI shows."""
    for name in ("pyproject.toml", "README.md"):
        (tmp_path / name).write_text((ROOT / name).read_text())
    environment = {**os.environ, "GITHUB_REPOSITORY": "Some-One/hf-oattn", "GITHUB_REF_NAME": "v1.2.3"}
    script = ROOT / ".github/name_repository.py"
    subprocess.run([sys.executable, script], cwd=tmp_path, env=environment, check=True)
    urls = tomllib.loads((tmp_path / "pyproject.toml").read_text())["project"]["urls"]
    assert {"Homepage", "Documentation", "Issues", "Changelog", "Security", "Paper"} == set(urls)
    assert urls["Issues"] == "https://github.com/Some-One/hf-oattn/issues"
    code_left_out = re.sub(r"^```.*?^```", "", (tmp_path / "README.md").read_text(), flags=re.M | re.S)
    targets = re.findall(r"\]\(([^)\s]+)\)", code_left_out)
    assert len(targets) > 10
    assert [target for target in targets if not target.startswith(("https://", "#"))] == []
    raw = "https://raw.githubusercontent.com/Some-One/hf-oattn/v1.2.3/docs/minilm-page.png"
    assert raw in targets


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
    without_code = {"oattn_hub.inputs.data", "oattn_hub.cards", "oattn_hub.report.web"}
    assert set(listed) == _packages_on_disk() | without_code


def _imported_packages() -> set[str]:
    """First names of everything that the package imports, in functions too."""
    names = set()
    for path in [
        *(ROOT / "oattn_hub").rglob("*.py"),
        *(ROOT / "adapters").glob("*.py"),
        *(ROOT / "cards").glob("*.py"),
    ]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                names |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                names.add((node.module or "").split(".")[0])
    return names - set(sys.stdlib_module_names) - {"oattn_hub"}


def test_every_package_that_is_imported_is_declared() -> None:
    """Rich 13 brings no markdown-it: what only comes along with something else may be missing one day."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [*project["dependencies"], *(line for extra in project["optional-dependencies"].values() for line in extra)]
    declared = {re.split(r"[\[<>=]", line)[0].strip().lower().replace("_", "-") for line in lines}
    owners = importlib.metadata.packages_distributions()
    imported = {
        name: {owner.lower().replace("_", "-") for owner in owners.get(name, [name])} for name in _imported_packages()
    }
    assert {name for name, owner in imported.items() if not owner & declared} <= NEED_NOT_BE_DECLARED


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
