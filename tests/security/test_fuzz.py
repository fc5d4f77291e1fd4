"""A small sample of ``benchmarks/fuzz.py``: damaged files are read right or refused, always."""

from __future__ import annotations

import sys
from collections import Counter
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest


@pytest.mark.parametrize("seed", [1, 2])
def test_damaged_files_are_read_right_or_refused(seed: int) -> None:
    place = Path(__file__).parents[2] / "benchmarks/fuzz.py"
    spec = spec_from_file_location("oattn_fuzz", place)
    assert spec is not None
    assert spec.loader is not None
    fuzz = sys.modules[spec.name] = module_from_spec(spec)  # dataclasses look their module up
    spec.loader.exec_module(fuzz)
    counts = sum(fuzz.fuzz(800, seed).values(), Counter())
    assert counts["right"] + counts["refused"] == 800, counts
    assert counts["right"] > 0
    assert counts["refused"] > 0
