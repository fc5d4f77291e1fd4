"""The answer in words and numbers: from a plan, from an evaluation, and from neither."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import oattn_hub as oh
from oattn_hub.report import Report
from oattn_hub.report.answer import answer
from oattn_hub.report.evaluation import Curve


def _plan(heads: list[tuple[int, int]], **cost: object) -> SimpleNamespace:
    return SimpleNamespace(heads=heads, score="search", cost=cost or None)


def test_only_entropy(report: Report) -> None:
    found = answer(report)
    assert not found.measured
    assert found.verdicts == {}
    assert report.findings()[0].startswith("Only entropy was measured on these 24 heads")
    assert "oattn evaluate RUN" in report.findings()[0]


def test_an_evaluation_answers_with_a_set_that_was_measured(measured_report: Report) -> None:
    found = answer(measured_report)
    assert found.removal is not None
    assert found.removal.heads == ((0, 3), (1, 1))
    assert found.removal.bound == pytest.approx(0.012)
    assert found.stay == ((3, 5), (3, 4))
    assert found.verdicts[(2, 2)] == "not sure"
    assert [len(price.heads) for price in found.prices] == [2, 5, 7, 10, 12, 14]
    first = measured_report.findings()[0]
    assert first == (
        "2 of 24 heads can go at a cost of at most 0.012 (measured, 95 %; KL divergence from the unpruned model): "
        "0.3, 1.1."
    )


def test_where_nothing_is_cheap_the_answer_says_what_the_cheapest_costs(measured_report: Report) -> None:
    section = measured_report.evaluation
    assert section is not None
    dear = Curve(*((0.0, *[0.5] * 6),) * 3)
    scores = tuple(replace(score, curves={"divergence": dear}) for score in section.scores)
    report = measured_report.with_evaluation(replace(section, scores=scores))
    assert report.findings()[0].startswith(
        "No measured set of the 24 heads can go at a cost of at most 0.02: already the 2"
    )
    assert "cost up to 0.5" in report.findings()[0]


def test_a_plan_comes_first_and_stays_in_the_report(measured_report: Report, tmp_path: Path) -> None:
    cost = {"metric": "loss", "title": "loss per token (nats)", "increase": 0.008, "low": -0.001, "high": 0.0123}
    report = measured_report.with_plan(_plan([(2, 2), (0, 3), (1, 0)], **cost))
    assert report.findings()[0] == (
        "3 of 24 heads can go at a cost of at most 1.3 % (measured, 95 %; loss per token (nats)): 0.3, 1.0, 2.2."
    )
    report.save(tmp_path)
    again = oh.Report.load(tmp_path)
    assert again.findings() == report.findings()
    assert answer(again).verdicts[(1, 1)] == "not sure"  # cheap by the evaluation, but not in the plan


def test_a_plan_without_a_cost_says_so(report: Report) -> None:
    found = report.with_plan(_plan([(0, 0)])).findings()[0]
    assert found == "1 of 24 heads can go by a plan whose cost was not measured: 0.0."


def test_an_empty_plan_is_an_answer_too(measured_report: Report) -> None:
    cost = {"metric": "loss", "title": "loss", "increase": 0.0, "low": 0.0, "high": 0.0}
    assert measured_report.with_plan(_plan([], **cost)).findings()[0].startswith("None of the 24 heads can go")


def test_the_bound_is_that_of_the_costliest_length(measured_report: Report) -> None:
    common = {"metric": "loss", "title": "loss", "increase": 0.004, "low": 0.0}
    looks = [
        {**common, "tokens": 128, "high": 0.006, "upper": 0.005},
        {**common, "tokens": 512, "high": 0.011, "upper": 0.009},
    ]
    report = measured_report.with_plan(_plan([(0, 3)], **looks[0], lengths=looks))
    assert answer(report).removal.bound == 0.009
    assert "at a cost of at most 0.9 % (measured, 95 %; loss, at 128 and 512 tokens)" in report.findings()[0]


def test_more_can_go_names_larger_sets_only(measured_report: Report) -> None:
    """A plan of 6 heads at 0.01 stood above "more can go for a higher cost: 2 heads, 0.012"."""
    assert [len(price.heads) for price in answer(measured_report).further] == [5, 7, 10, 12, 14]
    cost = {"metric": "divergence", "title": "KL", "increase": 0.008, "low": 0.0, "high": 0.01}
    planned = measured_report.with_plan(_plan([(0, head) for head in range(6)], **cost))
    assert [len(price.heads) for price in answer(planned).further] == [7, 10, 12, 14]


# ---------------------------------------------------------------- how sure a cost alone is


def _with_intervals(report: Report, half_width: float) -> Report:
    section = report.evaluation
    assert section is not None
    scores = []
    for score in section.scores:
        low, high = (tuple(value + sign * half_width for value in score.values) for sign in (-1, 1))
        scores.append(replace(score, low=low, high=high) if score.name == "ablation" else score)
    return report.with_evaluation(replace(section, scores=tuple(scores)))


def test_a_head_must_stay_only_if_its_whole_interval_is_over_the_line(measured_report: Report, tmp_path: Path) -> None:
    report = _with_intervals(measured_report, 0.015)  # 3.4 costs 0.03, 3.5 costs 0.05
    found = answer(report)
    assert found.stay == ((3, 5),)
    assert found.verdicts[(3, 4)] == "not sure"
    assert (3, 4) in found.unclear
    assert (2, 2) not in found.unclear
    findings = report.findings()
    assert findings[1] == "1 head must stay, because it, removed alone, costs more than 0.02 (95 %): 3.5."
    assert findings[2] == (
        "Of the other 21 heads we are not sure: removed alone 20 of them cost little, but are together not measured "
        "to be cheap; 1 may cost less or more than 0.02, which is in its interval."
    )
    columns, rows = report.table()
    place = [columns.index(name) for name in ("ablation", "ablation_low", "ablation_high")]
    assert [rows[22][i] for i in place] == pytest.approx([0.03, 0.015, 0.045])
    report.save(tmp_path)
    assert answer(oh.Report.load(tmp_path)).stay == ((3, 5),)


def test_heads_of_wide_intervals_are_not_said_to_cost_little(measured_report: Report) -> None:
    """Of a ViT, 39 of 48 costs alone were unclear, one of them 0.27, and the page said that they cost little."""
    report = _with_intervals(measured_report, 0.9)
    found = answer(report)
    assert not found.stay
    rest = 24 - len(found.removal.heads if found.removal else ())
    words = report.findings()[1]
    assert words.startswith(f"Of the other {rest} heads we are not sure: removed alone each may cost less or more than")
    assert "little" not in words


def test_what_one_head_costs_alone_is_not_spoken_of_where_it_was_not_measured(measured_report: Report) -> None:
    section = measured_report.evaluation
    assert section is not None
    others = tuple(score for score in section.scores if score.name != "ablation")
    report = measured_report.with_evaluation(replace(section, scores=others))
    findings = " ".join(report.findings())
    assert "they cost little" not in findings
    assert "what one of them costs alone was not measured" in findings


def test_an_evaluation_says_that_it_also_chose_the_ranking(measured_report: Report) -> None:
    from oattn_hub.report.findings import cost_words

    removal = answer(measured_report).removal
    assert removal is not None
    words = " ".join(cost_words(removal))
    assert "did not choose the heads" not in words
    assert "the cheapest of 6 rankings on these inputs" in words


def test_heads_that_nothing_tells_apart_are_not_ranked_in_words(report: Report) -> None:
    group = report.group()
    alike = replace(group.haar, entropies=np.ones_like(group.haar.entropies))
    same = replace(group, haar=alike, n_queries=1, n_keys=1)
    findings = replace(report, groups={group.name: same}).findings()
    assert findings[1].startswith(
        "All 24 heads have the same entropy on contexts of 1 x 1 positions, so nothing ranks them"
    )
    assert not any("in the lowest 10 %" in sentence for sentence in findings)


def test_a_plan_for_another_model_is_refused(report: Report) -> None:
    with pytest.raises(oh.OattnError, match=r"head \(9, 9\), which this report does not know"):
        report.with_plan(_plan([(9, 9)]))


def test_the_table_has_a_row_a_head_and_empty_columns_before_an_evaluation(report: Report) -> None:
    columns, rows = report.table()
    assert columns[:6] == ["group", "layer", "head", "verdict", "ablation", "gradient"]
    assert len(rows) == 24
    assert all(row[3:6] == [None, None, None] for row in rows)


def test_a_name_that_looks_like_a_formula_is_no_formula(report: Report) -> None:
    from oattn_hub.report.head_table import head_csv

    group = replace(report.group(), layer_names=("=cmd()",) * 24)
    text = head_csv(replace(report, groups={group.name: group}))
    assert ",=cmd()" not in text
    assert "'=cmd()" in text


def test_no_entropy_is_said_to_be_perhaps_below_zero() -> None:
    """Student's t over two batches gave intervals such as -10.2 to 46.4, for what is a sum of sizes."""
    from oattn_hub.analysis.measure import _ranking

    settings = SimpleNamespace(fraction=0.5, seed=0)
    ranking = _ranking(np.array([[1.0, 9.0], [9.0, 1.5]]), settings)  # type: ignore[arg-type]
    assert ranking.entropy_low.tolist() == [0.0, 0.0]
    assert (ranking.entropy_high > 9).all()


def test_trees_that_noise_hardly_moves_are_not_told_in_zeros() -> None:
    """ "by 0.3 % (median head; the most 0 %)" was said of Whisper, and "by 0.0 % (median head; the most 0 %)"."""
    from oattn_hub.report.control_words import _chance

    def said(*spread: float) -> str:
        controls = SimpleNamespace(perturbation=1e-3, perturbed=0.999)
        haar = SimpleNamespace(controls=controls, tree_spread=np.array(spread), entropies=np.ones((2, len(spread))))
        return _chance(SimpleNamespace(haar=haar))[0]  # type: ignore[arg-type]

    assert "that alone moves no head's entropy by 0.1 % and leaves" in said(0.0001, 0.0)
    assert "a head's entropy by 0.3 % (median head; the most 0.4 %) and leaves" in said(0.003, 0.003, 0.004)


def test_a_plan_that_removes_nothing_does_not_take_the_place_of_one_that_removes(
    measured_report: Report, tmp_path: Path
) -> None:
    """`--min-heads-per-layer 13` of 12 heads removed nothing, and the verified plan of ten heads left the page."""
    from oattn_hub.cli.prune import _keep_in_report
    from oattn_hub.pruning import PruningPlan

    look = {"metric": "divergence", "title": "KL", "before": 0.0, "after": 0.009, "increase": 0.009, "low": 0.008,
            "high": 0.01, "inputs": "f" * 64, "n_inputs": 9, "verified_on": "text"}  # fmt: skip
    measured_report.save(tmp_path / "run")
    for heads in ([(0, 3), (1, 1)], []):
        _keep_in_report(tmp_path / "run", PruningPlan(heads, 24, "search", cost=look))
    kept = Report.load(tmp_path / "run").removal
    assert kept is not None
    assert kept.heads == ((0, 3), (1, 1))
