"""Rows of results/house.md: how large functions and files are, and how often ``Any`` stands in for a type."""

from __future__ import annotations

import ast
import statistics
from dataclasses import fields
from pathlib import Path

from oattn_hub.report.group import GroupResult

ROOT = Path(__file__).parents[1]


def sources() -> list[Path]:
    """Every file of the package; oattn_hub/adapters and oattn_hub/cards are links."""
    folders = (ROOT / "oattn_hub", ROOT / "adapters", ROOT / "cards")
    return sorted({path.resolve() for folder in folders for path in folder.rglob("*.py")})


def main() -> None:
    """Print the table's rows."""
    lengths, functions, anys = [], [], 0
    for path in sources():
        text = path.read_text(encoding="utf-8")
        lengths.append(len(text.splitlines()))
        nodes = list(ast.walk(ast.parse(text)))
        anys += sum(isinstance(node, ast.Name) and node.id == "Any" for node in nodes)
        functions += [node for node in nodes if isinstance(node, ast.FunctionDef)]
    sizes = sorted((node.end_lineno or 0) - node.lineno + 1 for node in functions)
    public = [node for node in functions if not node.name.startswith("_")]
    documented = sum(ast.get_docstring(node) is not None for node in public)
    print(f"files: {len(lengths)}, median {statistics.median(lengths):g} lines, longest {max(lengths)}")
    print(
        f"functions: median {statistics.median(sizes):g}, p90 {sizes[int(0.9 * len(sizes))]}, longest {sizes[-1]} lines"
    )
    print(f"returns annotated: {sum(node.returns is not None for node in functions) / len(functions):.1%}")
    print(f"docstrings of public functions: {documented / len(public):.0%}")
    print(f"Any: {100 * anys / sum(lengths):.2f} per 100 lines")
    print(f"fields of GroupResult: {len(fields(GroupResult))}")


if __name__ == "__main__":
    main()
