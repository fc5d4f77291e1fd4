"""What a notebook gets: a report that shows itself, figures with tokens, coefficients with folders, bars."""

from __future__ import annotations

import sys
from dataclasses import replace
from types import ModuleType

import numpy as np
import pytest

from oattn_hub.errors import InvalidInput
from oattn_hub.geometry import PartitionTree, expansion
from oattn_hub.report import Report


def test_a_report_shows_its_answer_and_its_map(measured_report: Report) -> None:
    shown = measured_report._repr_html_()
    assert "2 of 24 heads can go at a cost of at most 0.012" in shown
    assert shown.count("data:image/png;base64,") == 1
    assert "<script" not in shown


def test_a_models_name_is_no_markup(measured_report: Report) -> None:
    evil = replace(measured_report, model=replace(measured_report.model, id="<img src=x onerror=alert(1)>"))
    assert "<img src=x" not in evil._repr_html_()


def test_the_evaluation_is_drawn_with_at_most_five_named_lines(measured_report: Report, report: Report) -> None:
    ax = measured_report.plot.evaluation()
    named = [text.get_text() for text in ax.texts]
    assert len(named) == 5
    assert {"random", "Haar entropy (the paper)", "single-head ablation"} <= set(named)
    heights = sorted(text.get_position()[1] for text in ax.texts)
    assert min(np.diff(heights)) > 0  # no name covers another
    assert len(measured_report.plot.evaluation(scores=["ablation"]).texts) == 1
    assert measured_report.plot.evaluation("loss").get_ylabel() == "loss per token (nats)"
    with pytest.raises(InvalidInput, match="this evaluation has divergence, loss"):
        measured_report.plot.evaluation("speed")
    with pytest.raises(InvalidInput, match="no evaluation"):
        report.plot.evaluation()


def test_a_head_is_drawn_with_its_tokens(measured_report: Report) -> None:
    ax = measured_report.plot.head(2, 4)
    assert [label.get_text() for label in ax.get_yticklabels()][:2] == ["word0", "word1"]
    assert measured_report.plot.head(2, 4, context=1).get_xticklabels()[0].get_text() == "other0"
    with pytest.raises(InvalidInput, match="keeps 2 contexts"):
        measured_report.plot.head(2, 4, context=7)


def test_coefficients_come_with_the_folders_they_belong_to(report: Report) -> None:
    found = report.coefficients(1, 2)
    group, sample = report.group(), report.group().samples[0]
    index = group.head_keys().index((1, 2))
    assert [entry.value for entry in found] == pytest.approx(group.haar.coefficients[index].tolist())
    constant = found[0]
    assert (constant.query.level, len(constant.query.positions), constant.support) == (-1, 20, 400)
    trees = {"query": PartitionTree(sample.query_labels), "key": PartitionTree(sample.key_labels)}
    X = np.random.default_rng(0).random((20, 20, 1))
    chosen = expansion(X, trees, ("query", "key"), len(found))
    assert [entry.support for entry in found] == chosen.supports.tolist()[: len(found)]
    for entry in found[1:]:
        assert len(entry.query.positions) * len(entry.key.positions) >= entry.support


def test_bars_only_in_a_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    from oattn_hub.progress import automatic

    shown: list[str] = []

    class Handle:
        def update(self, content: str) -> None:
            shown.append(content)

    display = ModuleType("IPython.display")
    display.HTML = str  # type: ignore[attr-defined]
    display.display = lambda content, display_id: shown.append(content) or Handle()  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)
    automatic("load", 0, 2)
    assert shown == []
    monkeypatch.setitem(sys.modules, "ipykernel", ModuleType("ipykernel"))
    for done in range(3):
        automatic("load", done, 2)
    assert len(shown) == 3
    assert 'value="1" max="2"' in shown[1]
    assert "left" in shown[1]
