"""The report's theory section: plain records that survive JSON, sentences, figures."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pytest
from matplotlib.figure import Figure
from numpy.typing import NDArray

from oattn_hub.analysis.theory import build_theory_section
from oattn_hub.errors import FormatError, InvalidInput
from oattn_hub.report.theory import TheorySection

Float = NDArray[np.float64]


@dataclass(frozen=True)
class Place:
    layer: int
    head: int


PLACES = [Place(layer, head) for layer in range(2) for head in range(2)]


def _attention(shape: tuple[int, int, int], causal: bool = False) -> tuple[Float, Float]:
    scores = 2 * np.random.default_rng(0).standard_normal(shape)
    weights = np.exp(scores)
    if causal:
        weights[np.triu_indices(shape[0], k=1)] = 0
    return scores, weights / weights.sum(axis=1, keepdims=True)


@pytest.fixture(scope="module")
def section() -> TheorySection:
    return build_theory_section(*_attention((20, 17, 4)), PLACES, group="encoder")


def test_every_head_has_its_record_and_place(section: TheorySection) -> None:
    assert [(head.layer, head.head) for head in section.heads] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert (section.groups[0].n_queries, section.groups[0].n_keys, section.groups[0].masked) == (20, 17, 0.0)


def test_json_gives_the_same_section_back(section: TheorySection) -> None:
    text = json.dumps(section.to_json(), allow_nan=False)
    assert TheorySection.from_json(json.loads(text)) == section


def test_numbers_that_are_not_finite_survive_json() -> None:
    flat = build_theory_section(np.zeros((6, 6, 4)), np.full((6, 6, 4), 1 / 6), PLACES)
    back = TheorySection.from_json(json.loads(json.dumps(flat.to_json(), allow_nan=False)))
    assert all(np.isnan(head.holder) for head in back.heads)
    assert back.findings == flat.findings


def test_findings_say_where_the_theory_fails(section: TheorySection) -> None:
    text = "\n".join(section.findings)
    assert "holds for 0 of 4 heads" in text  # noise is not Hölder
    assert "Corollary 1 (A' = A'' = 1) does not hold for 4 of 4 heads" in text
    assert "matrices of 20 x 17 from one batch" in text
    assert "encoder:" not in text


def test_findings_follow_the_numbers() -> None:
    rows, columns = np.meshgrid(np.linspace(0, 1, 32), np.linspace(0, 1, 32), indexing="ij")
    smooth = np.stack([0.1 * np.sin(k + rows * columns) for k in range(4)], axis=2)
    section = build_theory_section(smooth, np.full(smooth.shape, 1 / 32), PLACES)
    assert "at most 0.1 on 4 of 4 heads" in "\n".join(section.findings)


def test_a_mask_is_said(section: TheorySection) -> None:
    causal = build_theory_section(*_attention((16, 16, 4), causal=True), PLACES, group="decoder")
    assert causal.groups[0].masked == pytest.approx(120 / 256)
    assert "masks 47 % of the pairs" in causal.findings[-1]
    joined = TheorySection.join([section, causal])
    assert len(joined.heads) == 8
    assert joined.findings[0].startswith("encoder: ")
    assert joined.findings[-1].startswith("decoder: ")


@pytest.mark.parametrize("name", ["draw_organisation", "draw_expansion", "draw_exponents", "draw_errors"])
def test_figures_draw_on_the_given_axes(section: TheorySection, name: str) -> None:
    ax = Figure().add_subplot()
    assert getattr(section, name)(ax) is ax
    assert ax.has_data()
    assert ax.get_title(loc="center") or ax.get_title(loc="left")


def test_pictures_show_the_head_before_and_after() -> None:
    scores, probs = _attention((300, 200, 4))
    scores = scores[:40, :30].copy()
    section = build_theory_section(scores, probs[:40, :30], PLACES)
    example = section.groups[0].example
    index = PLACES.index(Place(example.layer, example.head))
    spread = np.ptp(scores[:, :, index])
    np.testing.assert_allclose(example.original.values(), scores[:, :, index], atol=spread / 250)
    np.testing.assert_allclose(
        np.sort(example.organised.values().ravel()), np.sort(scores[:, :, index].ravel()), atol=spread / 250
    )


def test_large_pictures_are_pooled() -> None:
    section = build_theory_section(*_attention((150, 140, 1)), PLACES[:1])
    assert section.groups[0].example.softmax.values().shape == (128, 128)


def test_parts_of_different_stores_are_refused() -> None:
    scores, probs = _attention((8, 8, 4))
    with pytest.raises(InvalidInput, match=r"scores have shape \(8, 8, 4\), probs \(8, 8, 4\), 3 heads are named"):
        build_theory_section(scores, probs, PLACES[:3])


def test_a_foreign_section_is_refused() -> None:
    with pytest.raises(FormatError, match="not a theory section"):
        TheorySection.from_json({"groups": [{"name": "x"}]})
