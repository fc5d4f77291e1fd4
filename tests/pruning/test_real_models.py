"""Real weights: the command line on MiniLM from report to checkpoint, and a grouped-query decoder from GGUF."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import oattn_hub as oh
from oattn_hub.attention import load_model
from oattn_hub.cli import main
from oattn_hub.models.aligned import FEW_UNITS, units_apart
from oattn_hub.pruning import load_pruned

pytestmark = pytest.mark.slow


def test_from_report_to_checkpoint(minilm_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report, out = tmp_path / "report", tmp_path / "pruned"
    oh.analyze(minilm_folder, batches=2, tokens=32, out=report)
    command = ["evaluate", str(report), "--scores", "haar,output,displacement", "--inputs", "6", "--tokens", "32"]
    assert main([*command, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    scores = {score["name"]: score["auc"] for score in printed["evaluation"]["scores"]}
    # What a head writes says more than where it looks: on these weights by a wide margin.
    assert scores["displacement"] < scores["random"]
    assert scores["output"] < scores["random"]
    assert Path(printed["figure"]).is_file()
    assert oh.Report.load(report).evaluation is not None
    assert main(["prune", str(report), "--fraction", "0.2", "--out", str(out), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert len(printed["plan"]["heads"]) == 14
    assert printed["result"]["parameters_after"] < printed["result"]["parameters_before"]
    assert load_model(out).processor is not None


def test_grouped_queries_of_real_weights(smollm_folder: Path, tmp_path: Path, same_weights: Any) -> None:
    loaded = load_model(smollm_folder)
    heads = [(0, 0), (0, 1), (0, 2), (3, 4), (12, 8), *((20, head) for head in range(9))]
    plan = oh.PruningPlan.from_heads(loaded, heads)
    ids = torch.arange(100, 148)[None]
    with torch.no_grad(), plan.masked(loaded.model):
        expected = loaded.model(input_ids=ids).logits
    pruned = plan.apply(loaded, inplace=True)
    with torch.no_grad():
        assert (pruned.model(input_ids=ids).logits - expected).abs().max() <= 1e-3  # logits reach 30
        logits = pruned.model(input_ids=ids).logits
        pruned.save_pretrained(tmp_path)
        again = load_pruned(tmp_path)
        assert same_weights(again, pruned.model)
        assert units_apart(again(input_ids=ids).logits, logits) <= FEW_UNITS
