"""200 types of transformers models, tiny: captured without a trace, equal to the model's own weights, cut as masked.

``benchmarks/model_coverage.py`` does the same for all types and for timm, and loads again what it cut; its table is
docs/coverage.md. These types were drawn at random from those that it found to be served, and from those that were
mended, so that none is lost again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

# older releases lack some of the types and cannot build others from a small config
OLDER = Version(version("transformers")) < Version("5.23")
TYPES = Path(__file__).parents[1].joinpath("data", "coverage_types.txt").read_text().split()


@pytest.fixture(scope="module")
def coverage() -> Iterator[Any]:
    """The benchmark, whose folder is no package."""
    folder = str(Path(__file__).parents[2] / "benchmarks")
    sys.path.insert(0, folder)
    try:
        import model_coverage
        import tiny_models  # noqa: F401 - the benchmark imports it when it is needed

        yield model_coverage
    finally:
        sys.path.remove(folder)


@pytest.mark.filterwarnings("ignore")  # tiny configs are unusual, and transformers says so
@pytest.mark.parametrize("name", TYPES)
def test_a_type_is_captured_verified_and_cut(coverage: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coverage, "reloaded_and_compared", lambda *_: "not tried")  # as long as all the rest
    result = coverage.measure("transformers", name)
    if result["built"] != "yes" and OLDER:
        pytest.skip(f"this transformers has no {name}, or builds no tiny one: {result['built']}")
    assert result["built"] == result["captured"] == "yes"
    assert result["bit_identical"]
    assert result["verified"].startswith(("equal", "no truth (returns no weights)"))
    assert result["cut"] == "equal"
    assert result["left_as_it_was"]
