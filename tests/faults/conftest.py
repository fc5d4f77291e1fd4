"""A cache of runs of the test's own."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The cache of runs."""
    monkeypatch.setenv("OATTN_HOME", str(tmp_path / "home"))
    return tmp_path / "home"
