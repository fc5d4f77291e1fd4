"""The comparison sees what differs, and only that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

import oattn_hub as oh
from oattn_hub.analysis.measure import _distance_quantiles
from oattn_hub.errors import InvalidInput
from oattn_hub.report import GroupResult, Report
from oattn_hub.report.comparison import geometry_distance

MakeGroup = Callable[..., GroupResult]
MakeReport = Callable[..., Report]


def _distances(points: np.ndarray) -> np.ndarray:
    return np.linalg.norm(points[:, None] - points[None], axis=-1)


def test_geometry_distance_does_not_depend_on_head_order_or_scale() -> None:
    random = np.random.default_rng(0)
    points = random.normal(size=(40, 3))
    quantiles = _distance_quantiles(_distances(points))
    shuffled = _distance_quantiles(_distances(points[random.permutation(40)] * 7.0))
    assert geometry_distance(quantiles, shuffled) == pytest.approx(0, abs=1e-12)


def test_geometry_distance_tells_clusters_from_a_cloud() -> None:
    random = np.random.default_rng(1)
    cloud = [_distance_quantiles(_distances(random.normal(size=(60, 3)))) for _ in range(2)]
    clusters = random.normal(size=(80, 3)) * 0.05 + np.repeat(np.eye(4)[:, :3] * 3, 20, axis=0)
    apart = geometry_distance(cloud[0], _distance_quantiles(_distances(clusters)))
    assert apart > 5 * geometry_distance(cloud[0], cloud[1])


def test_a_report_beside_itself(report: Report) -> None:
    comparison = oh.compare(report, report)
    group = comparison.groups[0]
    assert group.spearman == pytest.approx(1)
    assert all(head.entropy_a == head.entropy_b and head.rank_a == head.rank_b for head in group.matched)
    assert group.depth_a == group.depth_b
    assert (group.matched[3].rank_a, len(group.matched)) == (0.0, 24)


def test_depth_is_the_mean_of_each_quarter(report: Report) -> None:
    group = report.group()
    means = [float(group.haar.entropies[:, group.layers == layer].mean()) for layer in range(4)]
    assert oh.compare(report, report).groups[0].depth_a == pytest.approx(means)


def test_different_shapes_are_not_matched(
    report: Report, make_group: MakeGroup, make_report: MakeReport, tmp_path: Path
) -> None:
    other = make_report(make_group("decoder", n_layers=2, n_heads=8))
    comparison = oh.compare(report, other)
    assert [(group.group_a, group.group_b) for group in comparison.groups] == [("encoder", "decoder")]
    assert comparison.groups[0].matched == ()
    assert comparison.groups[0].spearman is None
    assert "–" in comparison.table()[1][0]
    assert len(comparison.save(tmp_path, report, other)) == 4


def test_a_changed_head_is_named(report: Report, make_report: MakeReport) -> None:
    group = report.group()
    entropies = group.haar.entropies.copy()
    entropies[:, 3] = 50.0
    order = 1.0 + np.argsort(np.argsort(entropies.mean(axis=0), kind="stable"), kind="stable")
    haar, ranking = replace(group.haar, entropies=entropies), replace(group.ranking, ranks=order)
    comparison = oh.compare(report, make_report(replace(group, haar=haar, ranking=ranking)))
    assert any("head 0.3 moved most" in finding for finding in comparison.findings)
    assert 0 < comparison.groups[0].spearman < 1


def test_kinds_and_lengths_that_do_not_compare_are_said_first(report: Report) -> None:
    scores = replace(report, settings=replace(report.settings, kind="scores", tokens=256))
    findings = oh.compare(report, scores).findings
    assert findings[0].startswith("A and B are one model, tiny-model; both read ")
    assert "do not compare: A is about probs, B about scores" in findings[1]
    assert "A has 20 positions per batch, B 256;" in findings[2]


def test_two_reports_of_one_model_say_what_else_tells_them_apart(report: Report) -> None:
    """Both were called by the model's name, six times on a page, and nowhere stood what they had read."""
    other = replace(report, provenance=replace(report.provenance, data="other.txt, seed 1"))
    compared = oh.compare(report, other)
    assert (compared.name_a, compared.name_b) == ("A", "B")
    assert compared.findings[0].endswith("; A read " + report.provenance.data + "; B read other.txt, seed 1.")
    retrained = replace(other, model=replace(other.model, revision="another"))
    assert "different weights" in oh.compare(report, retrained).findings[0]


def test_a_difference_of_means_is_not_told_without_its_batches(report: Report) -> None:
    assert "single batches have" in oh.compare(report, report).findings[1]
    assert "which overlap" in oh.compare(report, report).findings[1]


def test_where_no_head_is_matched_no_empty_chart_is_drawn(
    report: Report, make_group: MakeGroup, make_report: MakeReport
) -> None:
    other = make_report(make_group("decoder", n_layers=2, n_heads=8))
    ax = oh.compare(report, other).draw_heads(Figure().add_subplot())
    assert not ax.axison
    assert [text.get_text() for text in ax.texts] == ["The two have different heads, so none can be matched."]
    assert not ax.lines


def test_groups_of_other_names_and_sizes_are_named_both_and_their_entropies_not_compared(
    report: Report, make_group: MakeGroup, make_report: MakeReport, tmp_path: Path
) -> None:
    """A decoder was called encoder, and an entropy of 96 positions was 150 % more than one of 128."""
    other = make_report(make_group("decoder", n_layers=2, n_heads=8))
    other = replace(other, settings=replace(other.settings, tokens=96))
    compared = oh.compare(report, other)
    assert not [finding for finding in compared.findings if "network entropy" in finding]
    assert any(finding.startswith("encoder / decoder: the head geometries") for finding in compared.findings)
    legend = compared.draw_depth(Figure().add_subplot()).get_legend()
    assert legend is not None
    assert [text.get_text().split("(")[1] for text in legend.get_texts()] == ["encoder)", "decoder)"]
    page = compared.save(tmp_path, report, other)[-1].read_text()
    assert page.count("none of them can be matched") == 1
    assert page.count('<img class="dark"') == 3  # two maps and the curves, no empty chart


def test_folders_can_be_compared_and_the_page_is_about_both(
    report: Report, measured_report: Report, tmp_path: Path
) -> None:
    report.save(tmp_path / "a")
    measured_report.save(tmp_path / "b")
    comparison = oh.compare(tmp_path / "a", tmp_path / "b")
    written = comparison.save(tmp_path / "out", tmp_path / "a", tmp_path / "b")
    assert {path.name for path in written} == {
        "comparison.json", "comparison-depth.png", "comparison-heads.png", "comparison.html",
    }  # fmt: skip
    page = (tmp_path / "out/comparison.html").read_text()
    assert "Only entropy was measured on these 24 heads" in page  # A's answer
    assert "2 of 24 heads can go at a cost of at most 0.012" in page  # B's answer
    assert page.count('<img class="dark"') == 4
    assert any("none of them moved" in finding for finding in comparison.findings)


def test_a_model_from_a_folder_keeps_the_name_that_tells_it_apart(report: Report) -> None:
    """It was called just "model", which is what the folder inside a wheel is called."""
    local = replace(report, model=replace(report.model, id="some_wheel/model", source="/somewhere/some_wheel/model"))
    compared = oh.compare(report, local)
    assert (compared.name_a, compared.name_b) == ("tiny-model", "some_wheel/model")


def test_quantiles_of_different_number_are_refused() -> None:
    with pytest.raises(InvalidInput, match="5 and 6 quantiles"):
        geometry_distance(np.zeros(5), np.zeros(6))
