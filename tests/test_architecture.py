"""The law of the house: imports point one way, in circles never, and a module is not named like what it exports."""

from __future__ import annotations

import ast
import pkgutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import FunctionType

import networkx as nx
import pytest

import oattn_hub

ROOT = Path(oattn_hub.__file__).parent

# From the first to the last; a room may import from its own line and from those above it.
ROOMS = [
    {"errors", "types", "letters", "files", "codec", "records", "lazy", "progress", "tokens", "versions"},
    {"models"},
    {"inputs"},
    {"adapters", "attention"},
    {"geometry"},
    {"report"},
    {"analysis"},
    {"analyzer"},
    {"watch"},
    {"pruning"},
    {"trials", "exports"},
    {"cards", "hub"},
    {"sweep"},
    {"local_hub", "cli", "demo", "pytest_plugin"},
]
# Methods that users call on what they hold look down the house: report.plan(), plan.apply(), pruned.push_to_hub() …
# So does the one loader, for which a pruned checkpoint is a model like any other.
FACADES = {
    ("models.load", "pruning"),
    ("report.report", "pruning"),
    ("report.report", "hub"),
    ("report.report", "report"),
    ("pruning.plan", "pruning.pruned"),
    ("pruning.pruned", "pruning.checkpoint"),
    ("pruning.pruned", "pruning.heal"),
    ("pruning.pruned", "hub"),
}


def _modules() -> dict[str, Path]:
    """Dotted name below ``oattn_hub`` -> file, through the links to adapters/ and cards/ as well."""
    found = {}
    for path in ROOT.rglob("*.py"):
        found[".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")] = path
    for folder in ("adapters", "cards"):  # rglob does not follow links
        for path in (ROOT / folder).glob("*.py"):
            found[f"{folder}.{path.stem}".removesuffix(".__init__")] = path
    found.pop("__init__")  # the front door: names that are imported when they are used
    return found


def _imports(path: Path, when_run: bool) -> Iterator[str]:
    """What a module imports of ours, at the top, in a function and, unless ``when_run``, for type checkers."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    if when_run:
        tree.body = [
            node for node in tree.body if not (isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test))
        ]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "oattn_hub" and not node.level:
            below = (node.module or "").removeprefix("oattn_hub").lstrip(".")
            yield from (f"{below}.{alias.name}".lstrip(".") for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (a.name.removeprefix("oattn_hub.") for a in node.names if a.name.startswith("oattn_hub."))


def _edges(when_run: bool = False) -> Iterator[tuple[str, str]]:
    modules = _modules()
    for name, path in modules.items():
        for target in _imports(path, when_run):
            known = target if target in modules else target.rpartition(".")[0]
            if known in modules and known != name:
                yield name, known


def _is_facade(source: str, target: str) -> bool:
    return any(source == a and (target == b or target.startswith(f"{b}.")) for a, b in FACADES)


def _rank(module: str) -> int:
    room = module.split(".")[0]
    return next(rank for rank, rooms in enumerate(ROOMS) if room in rooms)


def test_every_module_has_a_room() -> None:
    known = set().union(*ROOMS)
    assert {name.split(".")[0] for name in _modules()} <= known


def test_imports_point_one_way() -> None:
    wrong = sorted({f"{a} -> {b}" for a, b in _edges() if _rank(b) > _rank(a) and not _is_facade(a, b)})
    assert wrong == []


def test_no_imports_run_in_circles() -> None:
    graph = nx.DiGraph((a, b) for a, b in _edges(when_run=True) if not _is_facade(a, b) and not a.startswith(f"{b}."))
    knots = [sorted(knot) for knot in nx.strongly_connected_components(graph) if len(knot) > 1]
    assert knots == []


@pytest.mark.parametrize("package", [m.name for m in pkgutil.iter_modules(oattn_hub.__path__) if m.ispkg])
def test_no_module_has_the_name_of_a_function_that_its_package_exports(package: str) -> None:
    exported = import_module(f"oattn_hub.{package}")
    names = {m.name for m in pkgutil.iter_modules(exported.__path__)}
    functions = [n for n in getattr(exported, "__all__", []) if isinstance(getattr(exported, n), FunctionType)]
    assert names.isdisjoint(functions)


def test_no_room_has_the_name_of_a_function_of_the_front_door() -> None:
    rooms = {m.name for m in pkgutil.iter_modules(oattn_hub.__path__)}
    functions = [n for n in oattn_hub.__all__ if isinstance(getattr(oattn_hub, n), FunctionType)]
    assert rooms.isdisjoint(functions)
