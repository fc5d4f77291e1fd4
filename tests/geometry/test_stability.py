"""Stability over batches, against counting by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr, t

from oattn_hub.errors import InvalidInput
from oattn_hub.geometry import stability

DATA = Path(__file__).parents[1] / "data/geometry"


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
    assert np.array_equal(result.rank_low, again.rank_low)
    assert not np.array_equal(result.rank_low, stability(scores, seed=4).rank_low)
    np.testing.assert_allclose(result.mean, scores.mean(axis=0))


def test_the_interval_of_a_mean_is_students_t() -> None:
    scores = np.random.default_rng(2).random((5, 40)) + 1.0
    result = stability(scores)
    relative = scores.std(axis=0, ddof=1) / scores.mean(axis=0)
    usual = relative > np.quantile(relative, 0.25)
    low, high = t.interval(0.95, 4, scores.mean(axis=0), scores.std(axis=0, ddof=1) / np.sqrt(5))
    np.testing.assert_allclose(result.mean_low[usual], low[usual])
    np.testing.assert_allclose(result.mean_high[usual], high[usual])
    assert (result.mean_high - result.mean_low >= high - low - 1e-12).all()  # heads that happened to agree are no surer


@pytest.mark.parametrize("batches", [4, 6, 10])
def test_intervals_cover_what_they_say_on_real_batches(batches: int) -> None:
    """Entropies of 22 real inputs stand for all inputs: 95 % intervals from a few of them cover their mean."""
    every = np.load(DATA / "minilm_entropies_22x72.npz")["entropies"]
    truth, place = every.mean(axis=0), np.argsort(np.argsort(every.mean(axis=0)))
    rng = np.random.default_rng(batches)
    means, ranks = [], []
    for _ in range(60):
        result = stability(every[rng.integers(len(every), size=batches)], n_draws=300)
        means.append((result.mean_low <= truth) & (truth <= result.mean_high))
        ranks.append((result.rank_low <= place) & (place <= result.rank_high))
    assert 0.93 <= np.mean(means) <= 0.97
    assert np.mean(ranks) >= 0.93
    assert not result.too_few


def test_few_batches_are_called_too_few() -> None:
    scores = np.random.default_rng(3).random((4, 5))
    assert [stability(scores[:count]).too_few for count in (1, 2, 3, 4)] == [True, True, True, False]


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
