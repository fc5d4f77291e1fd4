"""Softmax against the theorem and the corollary, on heads whose answer is known."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

from oattn_hub.errors import InvalidInput
from oattn_hub.geometry import organise_head, paraproduct, softmax_invariance

Float = NDArray[np.float64]


@pytest.fixture(scope="module")
def clustered() -> Float:
    """(24, 20, 9) logits of size one with blocks of queries and keys, in three clusters of heads."""
    rng = np.random.default_rng(0)
    blocks = np.kron(rng.standard_normal((3, 4, 3)), np.ones((8, 5, 3)))
    return blocks + 0.05 * rng.standard_normal(blocks.shape)


def test_small_logits_are_expanded_exactly_and_stay_organised(clustered: Float) -> None:
    found = softmax_invariance(0.01 * clustered)
    assert all(head.expansion_holds for head in found.heads)
    assert min(head.explained for head in found.heads) > 0.99
    softmax = next(agreement for agreement in found.agreements if agreement.source == "softmax")
    assert softmax.head_affinity > 0.9
    assert softmax.head_tree > 0.9


def test_large_logits_are_where_the_theory_fails(clustered: Float) -> None:
    small, large = softmax_invariance(0.01 * clustered), softmax_invariance(8 * clustered)
    for before, after in zip(small.heads, large.heads, strict=True):
        assert after.error > before.error
        assert after.slope_high > 10 > 1.1 > before.slope_high
        assert not after.corollary_holds
        assert after.coefficient_size == pytest.approx(800 * before.coefficient_size)


def test_records_are_those_of_the_organised_head(clustered: Float) -> None:
    found = softmax_invariance(clustered)
    head = organise_head(clustered[:, :, 4])
    alone = paraproduct(head.matrix, "softmax")
    record = found.heads[4]
    assert record.error == pytest.approx(float(alone.relative_residual))
    assert record.error_as_printed == pytest.approx(
        float(paraproduct(head.matrix, "softmax", boundary=False).relative_residual)
    )
    assert record.explained == pytest.approx(1 - alone.residual.var() / alone.value.var(), abs=0.02)
    assert record.mean == pytest.approx(clustered[:, :, 4].mean())
    exact = np.exp(clustered) / np.exp(clustered).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(found.softmax, exact, atol=1e-14)
    np.testing.assert_allclose(found.expansion[head.query_order][:, head.key_order][:, :, 4], alone.total, atol=1e-14)


def test_the_corollary_is_scaled_as_well_as_can_be(clustered: Float) -> None:
    for head in softmax_invariance(clustered).heads:
        assert head.corollary_error_scaled <= min(head.corollary_error, 1 + 1e-12)


@pytest.mark.parametrize("alpha", [0.35, 0.45])
def test_a_shuffled_regular_head_is_found_regular_and_its_residual_twice_as_regular(
    alpha: float, random_mixed_holder: Callable[..., Float]
) -> None:
    mixed = random_mixed_holder(alpha, 6, seed=0)
    mixed = mixed - mixed.mean(axis=0) - mixed.mean(axis=1, keepdims=True)
    # a profile along both axes lets the questionnaire find the order in which the head is regular
    order = np.linspace(-4, 4, 64)
    f = mixed + np.add.outer(order, order)
    shuffle = np.random.default_rng(1).permutation(64)
    head = softmax_invariance(f[shuffle][:, shuffle]).heads[0]
    assert head.holder_before < -0.5
    assert head.holder == pytest.approx(alpha, abs=0.05)
    assert head.typical == pytest.approx(alpha, abs=0.05)
    assert head.assumption_holds
    assert 1.7 * alpha < head.residual_holder < 2.3 * alpha


def test_probs_are_compared_when_given(clustered: Float) -> None:
    exact = np.exp(clustered) / np.exp(clustered).sum(axis=1, keepdims=True)
    by_source = {agreement.source: agreement for agreement in softmax_invariance(clustered, exact).agreements}
    assert set(by_source) == {"softmax", "expansion", "corollary", "noise", "probs"}
    assert by_source["noise"].head_affinity > 0.99
    assert by_source["probs"].head_affinity == pytest.approx(by_source["softmax"].head_affinity, abs=1e-9)


def test_one_head_alone_has_no_organisation_among_heads() -> None:
    found = softmax_invariance(np.random.default_rng(0).standard_normal((12, 12)))
    assert len(found.heads) == 1
    assert found.agreements == ()


def test_progress_is_told() -> None:
    reported: list[tuple[str, int, int]] = []
    softmax_invariance(
        np.random.default_rng(0).standard_normal((8, 8, 3)), progress=lambda *step: reported.append(step)
    )
    assert {stage for stage, _, _ in reported} == {
        "theory: organising heads",
        "theory: exponents",
        "theory: organisation",
    }
    assert reported[-1][1:] == (5, 5)


def test_masked_logits_are_refused_with_the_way_out() -> None:
    logits = np.zeros((4, 4, 2))
    logits[0, 1:] = np.nan
    with pytest.raises(InvalidInput, match=r"missing entries.*kind='scores'"):
        softmax_invariance(logits)


def test_constant_heads_are_no_accident() -> None:
    found = softmax_invariance(np.zeros((6, 6, 3)))
    assert all(np.isnan(head.holder) and head.error == pytest.approx(0, abs=1e-12) for head in found.heads)
