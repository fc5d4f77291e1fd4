"""SECURITY.md is true as far as a test can tell: every test that it names is there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_every_test_that_the_page_names_is_there() -> None:
    page = (ROOT / "SECURITY.md").read_text()
    places = set(re.findall(r"`(?:…/|tests/security/)(test_\w+\.py)", page))
    assert len(places) >= 5
    assert [name for name in places if not (ROOT / "tests/security" / name).is_file()] == []
    assert [path for path in re.findall(r"`(tests/[\w/]+(?:\.py)?)", page) if not (ROOT / path).exists()] == []
    known = " ".join(
        name for path in (ROOT / "tests").rglob("test_*.py") for name in re.findall(r"def (\w+)", path.read_text())
    )
    named = re.findall(r"::(test_\w+)", page) + re.findall(r"`…([a-z]\w+)…?`", page)
    assert len(named) >= 8
    assert [name for name in named if name not in known] == []
