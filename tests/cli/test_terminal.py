"""What a log is told about long work."""

from __future__ import annotations

import pytest

from oattn_hub.cli import terminal


def test_a_log_is_told_how_long_it_will_take(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = iter([0.0, 10.0, 40.0, 50.0, 80.0])
    monkeypatch.setattr(terminal.time, "monotonic", lambda: next(clock))
    lines = terminal._StageLines()
    lines("search", 0, 4)
    lines("search", 1, 4)  # 10 s after the last line: nothing
    lines("search", 2, 4)
    lines("search", 3, 4)
    lines("search", 4, 4)
    assert capsys.readouterr().err.splitlines() == [
        "search: 4 steps",
        "search: 2 of 4 steps, about 40 s left",
        "search: done in 80 s",
    ]
