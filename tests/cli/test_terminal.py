"""What the command line prints while it works, and at its end."""

from __future__ import annotations

import io
import json
import re
import shlex
import sys
from pathlib import Path

import pytest

from oattn_hub.cli import main, terminal


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


@pytest.mark.parametrize("encoding", ["ascii", "latin-1"])
def test_a_terminal_without_our_letters_is_printed_to(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`analyze` and `compare` ended in a traceback at their first bullet."""
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding=encoding))
    terminal.print_in_any_encoding()
    terminal.console().print("• 4.1 – 5.2 … 日")
    terminal.print_json({"name": "日"})
    sys.stdout.flush()
    first, *rest = written.getvalue().decode(encoding).splitlines()
    assert first == "* 4.1 - 5.2 ... ?"
    assert json.loads("".join(rest)) == {"name": "日"}


def test_next_commands_are_aligned_where_they_fit(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.next_commands(("oattn heads run", "the table"), ("oattn prune run --budget 1%", "the smaller model"))
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == "next:"
    assert len({line.index("#") for line in lines}) == 1
    assert all(len(line) <= 80 for line in lines)


def test_the_next_commands_run_as_they_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A model without a tokenizer was analysed on its user's ids; `oattn evaluate RUN` then asked for them again."""
    import numpy as np
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
    BertModel(BertConfig(vocab_size=60, max_position_embeddings=64, **sizes)).save_pretrained(tmp_path / "model")
    np.save(tmp_path / "my ids.npy", np.random.default_rng(0).integers(3, 60, (48, 64)))
    run, ids = tmp_path / "run", tmp_path / "my ids.npy"
    analyze = ["analyze", str(tmp_path / "model"), "--data", str(ids), "--batches", "2", "--tokens", "64"]
    assert main([*analyze, "--out", str(run)]) == 0
    printed = capsys.readouterr().out
    evaluate, prune, _ = (shlex.split(line, comments=True) for line in printed.split("next:")[1].strip().splitlines())
    assert evaluate == ["oattn", "evaluate", str(run), "--data", str(ids)]
    assert prune[-4:] == ["--data", str(ids), "--out", "pruned"]
    assert main([*evaluate[1:], "--scores", "haar", "--inputs", "4"]) == 0
    table = capsys.readouterr().out.splitlines()
    random = next(line.split() for line in table if re.match(r" *random +\d", line))
    assert all(float(cost) > 0 for cost in random[2:]), table  # they were printed as 0.000
    on_page = (run / "report.html").read_text()
    assert f"oattn prune run --budget 1% --data &#39;{ids}&#39; --out pruned" in on_page
    assert main(["heads", str(run)]) == 0
    assert "rank 1 is the lowest entropy" in capsys.readouterr().out


def test_the_table_of_heads_names_folder_0(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch

    import oattn_hub as oh

    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(16, nhead=4, batch_first=True).eval()
    oh.analyze(layer, data=[{"src": torch.randn(1, 8, 16)} for _ in range(2)], batches=2, out=tmp_path / "run")
    monkeypatch.setenv("COLUMNS", "80")
    capsys.readouterr()
    assert main(["heads", str(tmp_path / "run")]) == 0
    table = capsys.readouterr().out
    assert all(len(line) <= 80 for line in table.splitlines())
    rows = [line for line in table.splitlines() if re.match(r"│ *0\.\d", line)]
    assert len(rows) == 4
    assert all(re.search(r"│ +\d+ │$", row) for row in rows), table  # every head has its folder, also number 0


def test_numbers_of_a_table_stay_on_one_line_of_80_columns(capsys: pytest.CaptureFixture[str]) -> None:
    """Intervals stood on three lines, and the names of their columns on one."""
    from oattn_hub.cli.terminal import console, number_table

    columns = ["heads", "cost of the lowest [95 %]", "random, mean", "difference [95 %]", "random draws that cost less"]
    row = ["1", "0.00835 [0.0071, 0.0096]", "0.0104", "-0.00204 [-0.0094, +0.0033]", "6 of 10"]
    console().print(number_table("1 - cosine", columns, [row, row]))
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= 80
    assert [line.split() for line in lines[-2:]] == [" ".join(row).split()] * 2
