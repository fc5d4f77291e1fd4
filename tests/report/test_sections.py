"""Theory and evaluation travel with the report: stored, loaded, drawn and shown on the page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from oattn_hub.analysis.theory import build_theory_section
from oattn_hub.attention.store import HeadRecord
from oattn_hub.report import Report
from oattn_hub.report.evaluation import Curve, EvaluationSection, MetricInfo, ScoreResult
from oattn_hub.report.theory import TheorySection


@pytest.fixture(scope="module")
def theory() -> TheorySection:
    scores = np.random.default_rng(0).normal(size=(16, 16, 3))
    probs = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    return build_theory_section(scores, probs, [HeadRecord(0, "layer.0", head) for head in range(3)], group="encoder")


@pytest.fixture(scope="module")
def evaluation() -> EvaluationSection:
    curve = Curve((0.0, 0.02, 0.1), (0.0, 0.01, 0.08), (0.0, 0.03, 0.12))
    scores = tuple(
        ScoreResult(name, name.capitalize(), "", "free", 1.0, (0.1, 0.2), {"divergence": curve}, 0.04, 0.03, 0.05)
        for name in ("haar", "random")
    )
    metric = MetricInfo("divergence", "divergence from the whole model", False, False, 0.0)
    heads, fractions = ((0, 0), (0, 1)), (0.0, 0.25, 0.5)
    return EvaluationSection((metric,), fractions, heads, scores, 5, 20, "w", "text A", "text B", "a" * 64, "b" * 64)


@pytest.fixture(scope="module")
def full_report(report: Report, theory: TheorySection, evaluation: EvaluationSection) -> Report:
    return report.with_theory(theory).with_evaluation(evaluation)


def test_sections_come_back(full_report: Report, report: Report, tmp_path: Path) -> None:
    assert report.theory is None
    assert full_report.fingerprint != report.fingerprint
    loaded = Report.load(full_report.save(tmp_path))
    assert loaded.evaluation == full_report.evaluation
    assert loaded.theory is not None
    assert loaded.theory.to_json() == full_report.theory.to_json()
    assert loaded.fingerprint == full_report.fingerprint


def test_sections_are_on_the_page(full_report: Report, report: Report, tmp_path: Path) -> None:
    from html import escape

    page = full_report.write_page(tmp_path / "page.html").read_text()
    for title, section in (("theory", full_report.theory), ("evaluation", full_report.evaluation)):
        assert f'id="{title}"' in page
        for finding in section.findings:
            assert escape(finding).replace("&#x27;", "&#39;").replace("&quot;", "&#34;") in page
    assert "<td>Haar</td>" in page
    assert "<h2>Theory</h2>" not in report.write_page(tmp_path / "plain.html").read_text()


def test_section_figures_are_saved(full_report: Report, tmp_path: Path) -> None:
    names = {path.stem for path in full_report.save_figures(tmp_path)}
    assert {"theory-errors", "theory-organisation", "evaluation-cost_of_removal"} <= names


def test_no_score_costs_least_where_chance_costs_less(evaluation: EvaluationSection) -> None:
    """ "the paper's rule costs least: 1.2e-05, against 8.6e-06 for random removal" was said, and "costs 0, above 0"."""
    assert "costs least: mean" in evaluation.findings[0]
    lucky = tuple(replace(score, auc=0.0) if score.name == "random" else score for score in evaluation.scores)
    assert "costs least of the scores, but no less than chance: mean" in replace(evaluation, scores=lucky).findings[0]
    assert not any(finding.startswith("At ") for finding in evaluation.findings)  # the two are equal here


def test_small_costs_are_not_printed_as_zeros(evaluation: EvaluationSection) -> None:
    def smaller(score: ScoreResult) -> ScoreResult:
        curve = score.curves["divergence"]
        means = tuple(value / 1e4 for value in curve.mean)
        return replace(score, curves={**score.curves, "divergence": replace(curve, mean=means)})

    small = replace(evaluation, scores=tuple(smaller(score) for score in evaluation.scores))
    cells = [cell for row in small.table()[1] for cell in row[2 : len(small.fractions)]]
    assert cells
    assert not any(cell in ("0.0000", "0.000") for cell in cells)
