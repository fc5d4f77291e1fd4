"""Stability over batches, against counting by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import spearmanr

from oattn_hub.errors import InvalidInput
from oattn_hub.geometry import stability


def test_counts_of_bottom_and_top() -> None:
    scores = np.array([[1.0, 2.0, 3.0, 4.0, 5.0], [2.0, 1.0, 3.0, 5.0, 4.0], [1.0, 2.0, 3.0, 4.0, 5.0]])
    result = stability(scores, fraction=0.4)
    assert result.set_size == 2
    assert result.bottom_counts.tolist() == [3, 3, 0, 0, 0]
    assert result.top_counts.tolist() == [0, 0, 0, 3, 3]
    assert result.jaccard == result.top_jaccard == 1.0
    one = stability(scores, fraction=0.2)
    assert one.bottom_counts.tolist() == [2, 1, 0, 0, 0]
    assert one.jaccard == pytest.approx(1 / 3)  # only the first and the third batch agree
    assert result.rank.tolist() == [0, 1, 2, 3, 4]


def test_spearman_is_the_mean_over_pairs_of_batches() -> None:
    scores = np.random.default_rng(0).random((4, 9))
    pairs = [spearmanr(scores[i], scores[j]).statistic for i in range(4) for j in range(i)]
    assert stability(scores).spearman == pytest.approx(np.mean(pairs))


def test_intervals_hold_the_mean_and_are_repeatable() -> None:
    scores = np.random.default_rng(1).random((6, 20)) + np.arange(20) * 0.05
    result, again = stability(scores, seed=3), stability(scores, seed=3)
    assert (result.mean_low <= result.mean).all()
    assert (result.mean <= result.mean_high).all()
    assert (result.rank_low <= result.rank_high).all()
    assert np.array_equal(result.mean_low, again.mean_low)
    assert not np.array_equal(result.mean_low, stability(scores, seed=4).mean_low)
    np.testing.assert_allclose(result.mean, scores.mean(axis=0))


def test_bootstrap_interval_covers_the_truth() -> None:
    """95 % intervals of a mean over 30 batches: about 95 % of 400 heads are covered."""
    scores = np.random.default_rng(2).normal(size=(30, 400))
    result = stability(scores)
    covered = np.mean((result.mean_low <= 0) & (result.mean_high >= 0))
    assert 0.9 <= covered <= 0.98


def test_one_batch_has_no_agreement_to_measure() -> None:
    result = stability([[3.0, 1.0, 2.0]])
    assert np.isnan(result.jaccard)
    assert np.isnan(result.spearman)
    assert result.mean_low.tolist() == result.mean_high.tolist() == [3.0, 1.0, 2.0]
    assert result.bottom_counts.tolist() == [0, 1, 0]


def test_constant_scores_have_no_rank_correlation() -> None:
    assert np.isnan(stability(np.ones((3, 4))).spearman)


@pytest.mark.parametrize("scores", [[1.0, 2.0], np.empty((0, 3)), [[np.nan, 1.0]]])
def test_wrong_scores(scores: object) -> None:
    with pytest.raises(InvalidInput, match="batches, heads"):
        stability(scores)  # type: ignore[arg-type]


def test_wrong_fraction() -> None:
    with pytest.raises(InvalidInput, match="fraction=0"):
        stability([[1.0, 2.0]], fraction=0)
