"""Every figure draws, on light and dark, for few and for a thousand heads, and shows what it says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from oattn_hub.errors import InvalidInput
from oattn_hub.geometry import PartitionTree
from oattn_hub.report import GroupResult, Report, figures
from oattn_hub.report.answer import answer
from oattn_hub.report.dendrogram import layout
from oattn_hub.report.plot import planned_figures, render
from oattn_hub.report.theme import figure_style

mpl.use("Agg")


def _ax(projection: str | None = None) -> mpl.axes.Axes:
    return Figure(layout="constrained").add_subplot(projection=projection)


FIGURES = ("heads", "batches", "diffusion", "diffusion-3d", "affinity", "tree", "haar-basis", "coefficients",
           "attention-lowest", "attention-highest", "network", "table")  # fmt: skip


def test_all_figures_become_files(report: Report, tmp_path: Path) -> None:
    paths = report.save_figures(tmp_path / "figures")
    assert tuple(path.stem for path in paths) == FIGURES
    for path in paths:
        with Image.open(path) as image:
            assert image.width > 600


def test_several_groups_are_told_apart_by_name(two_group_report: Report) -> None:
    names = [planned.name for planned in planned_figures(two_group_report)]
    assert names == [f"{name}-{group}" for group in ("encoder", "cross") for name in FIGURES]


def test_dark_figures_are_dark(report: Report) -> None:
    planned = next(figure for figure in planned_figures(report) if figure.name == "batches")
    pictures = [Image.open(BytesIO(render(planned, dark))) for dark in (False, True)]
    light, dark = (np.asarray(picture.convert("L")).mean() for picture in pictures)
    assert light > 200 > 60 > dark


def test_equal_figures_have_equal_bytes(report: Report) -> None:
    for planned in planned_figures(report)[:2]:
        assert render(planned) == render(planned)


def test_entropy_map_has_each_head_in_its_place(report: Report) -> None:
    ax = figures.draw_heads(_ax(), report.group())
    shown = np.asarray(ax.images[0].get_array())
    for record in report.heads:
        assert shown[record.layer, record.head] == pytest.approx(record.entropy)
    assert sorted(map(tuple, ax.lines[0].get_xydata().astype(int).tolist())) == [(1, 1), (3, 0)]  # (head, layer)


def test_the_words_over_the_map_are_not_cut_off(measured_report: Report) -> None:
    """'? alone perhaps over 0.02' ended in 'perha' on a card and on the page of a comparison."""
    section = measured_report.evaluation
    assert section is not None
    ablation = section.score("ablation")
    low, high = (tuple(value + sign * 0.015 for value in ablation.values) for sign in (-1, 1))
    scores = tuple(replace(s, low=low, high=high) if s is ablation else s for s in section.scores)
    report = measured_report.with_evaluation(replace(section, scores=scores))
    figure = Figure((5, 4), layout="constrained")
    with figure_style():
        ax = figures.draw_heads(figure.add_subplot(), report.group(), answer(report))
        figure.canvas.draw()
    assert "perhaps over 0.02" in ax.get_title(loc="left") + ax.get_title()
    for title in (ax.title, ax._left_title):
        box = title.get_window_extent()
        assert not title.get_text() or (box.x0 >= 0 and box.x1 <= figure.bbox.width)


def test_layers_with_fewer_heads_leave_gaps(make_group: Callable[..., GroupResult]) -> None:
    from dataclasses import replace

    group = make_group()
    odd = replace(group, layers=np.where(np.arange(24) < 20, group.layers, 4), heads=np.r_[group.heads[:20], 0:4])
    shown = np.ma.asarray(figures.draw_heads(_ax(), odd).images[0].get_array()).filled(np.nan)
    assert shown.shape == (5, 6)
    assert np.isnan(shown).sum() == 30 - 24


@pytest.mark.parametrize("projection", [None, "3d"])
@pytest.mark.parametrize("colour", ["layer", "entropy"])
def test_diffusion_map(report: Report, projection: str | None, colour: str) -> None:
    ax = figures.draw_diffusion(_ax(projection), report.group(), colour)
    values = np.asarray(ax.collections[0].get_array())
    expected = report.group().layers if colour == "layer" else report.group().haar.mean_entropies
    np.testing.assert_allclose(values, expected)


def test_affinity_is_in_tree_order(report: Report) -> None:
    group = report.group()
    shown = np.asarray(figures.draw_affinity(_ax(), group).images[0].get_array())
    order = group.geometry.tree.leaf_order
    np.testing.assert_array_equal(shown, group.geometry.affinity[order][:, order])


def test_a_thousand_heads_can_be_drawn(make_group: Callable[..., GroupResult]) -> None:
    group = make_group(n_layers=40, n_heads=25, tokens=8)
    ax = figures.draw_tree(_ax(), group)
    assert ax.get_xlabel() == "1000 heads in tree order"
    assert len(ax.get_xticks()) == 0
    figures.draw_heads(_ax(), group)


def test_table_one(report: Report) -> None:
    rows = figures.top_and_bottom(report.group(), rows=2)
    assert [(row[2], row[3]) for row in rows] == [("0.3", "5/5"), ("1.1", "5/5")]


def test_bad_choices_name_the_good_ones(report: Report) -> None:
    with pytest.raises(InvalidInput, match="layer, entropy"):
        figures.draw_diffusion(_ax(), report.group(), colour="rank")
    with pytest.raises(InvalidInput, match=r"No head 7 in layer 2.*\[0, 1, 2, 3\]"):
        figures.draw_coefficients(_ax(), report.group(), 2, 7)


def test_plot_draws_on_the_given_axes_or_a_new_figure(report: Report) -> None:
    import matplotlib.pyplot as plt

    ax = _ax()
    assert report.plot.heads(ax=ax) is ax
    drawn = [
        report.plot.heads(), report.plot.batches(), report.plot.diffusion(), report.plot.diffusion(three=True),
        report.plot.affinity(), report.plot.tree(), report.plot.haar_basis(), report.plot.network(),
        report.plot.table(), report.plot.coefficients(0, 3), report.plot.attention(0, 3),
    ]  # fmt: skip
    assert len({id(one.figure) for one in drawn}) == len(drawn)
    assert drawn[3].name == "3d"
    plt.close("all")


def test_dendrogram_of_a_known_tree() -> None:
    tree = PartitionTree([[0, 0, 0, 0], [0, 0, 0, 1], [0, 1, 1, 2], [0, 1, 2, 3]])
    drawn = layout(tree.labels, tree.leaf_order)
    # root, {0, 1, 2}, {1, 2} and four leaves; {3} is a leaf from the second level on
    assert len(drawn.x) == 7
    assert sorted(drawn.x[drawn.leaf]) == [0, 1, 2, 3]
    assert (drawn.y[drawn.leaf] == 0).all()
    assert drawn.y[0] == 1
    parents_of_3 = [drawn.leaf[3], drawn.parent[drawn.leaf[3]]]
    assert parents_of_3[1] == 0


@pytest.mark.parametrize("n", [1, 2, 7, 100])
def test_dendrogram_children_are_below_their_parents(n: int) -> None:
    tree = PartitionTree.dyadic(n)
    drawn = layout(tree.labels, tree.leaf_order)
    assert len(drawn.x) == 2 * n - 1
    child = np.arange(1, len(drawn.x))
    assert (drawn.y[child] < drawn.y[drawn.parent[child]]).all()
    assert drawn.segments().shape == (len(child), 3, 2)


def test_one_key_that_all_look_at_does_not_leave_the_rest_black(report: Report) -> None:
    """One entry of a half gave all others the darkest colour; the page had its own, lower end."""
    values = np.full((40, 40), 0.01)
    values[0, 0], values[20:, :] = 0.8, 0.02
    ax = _ax()
    figures._draw_matrix(ax, values, "probs", figures.LIGHT)
    (image,) = ax.images
    assert image.norm(np.sqrt(0.02)) == pytest.approx(1)
    assert image.colorbar is not None
    assert image.colorbar.extend == "max"
    values[:], values[:, 0] = 1e-6, 1.0  # all of it goes to one key: the others stay dark
    ax = _ax()
    figures._draw_matrix(ax, values, "probs", figures.LIGHT)
    assert ax.images[0].norm(np.sqrt(1e-6)) < 0.1
