"""One-sided bounds keep their level, and so does the sequence of tests, counted on simulated costs."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from oattn_hub.pruning.bounds import fixed_sequence, upper_bound
from oattn_hub.pruning.tasks import ACCURACY, DIVERGENCE_COSINE, TOKEN_LOSS

RUNS = 200
# 5 % of the runs, and three standard deviations of that count
MOST = 0.05 * RUNS + 3 * np.sqrt(RUNS * 0.05 * 0.95)


def skewed(rng: np.random.Generator, mean: float, size: int) -> np.ndarray:
    """Costs as divergences are: never negative, a few inputs far above the others."""
    return mean * rng.gamma(2.0, 0.5, size)


def even(rng: np.random.Generator, mean: float, size: int) -> np.ndarray:
    return mean + 0.02 * rng.standard_normal(size)


@pytest.mark.parametrize("draw", [skewed, even])
@pytest.mark.parametrize("size", [16, 40])
def test_the_bound_lies_above_the_truth(draw: Callable[..., np.ndarray], size: int) -> None:
    rng = np.random.default_rng(0)
    zero = np.zeros(size)
    below = sum(upper_bound(DIVERGENCE_COSINE, zero, draw(rng, 0.01, size), seed=run) < 0.01 for run in range(RUNS))
    assert below <= MOST


def test_a_share_of_a_loss_is_bounded_in_pairs() -> None:
    """Losses differ between texts far more than pruning changes them; pairs take that out."""
    rng = np.random.default_rng(1)
    below, widths = 0, []
    for run in range(RUNS):
        before = 4 + rng.standard_normal(40)
        after = before * (1.01 + 0.02 * rng.standard_normal(40))
        bound = upper_bound(TOKEN_LOSS, before, after, seed=run)
        below += bound < 0.01
        widths.append(bound - 0.01)
    assert below <= MOST
    assert np.mean(widths) < 0.01  # the texts' own spread would give 0.06


def test_the_sequence_keeps_its_level() -> None:
    """Plans with true costs from half to twice the budget: how often is one over the budget accepted?"""
    rng = np.random.default_rng(2)
    budget, costs = 0.01, np.linspace(0.005, 0.02, 10)
    broken, accepted_any = 0, 0
    for run in range(RUNS):
        samples = [skewed(rng, cost, 30) for cost in costs]

        def holds(plan: int, samples: list[np.ndarray] = samples, run: int = run) -> bool:
            return upper_bound(DIVERGENCE_COSINE, np.zeros(30), samples[plan], seed=run) <= budget

        accepted, _ = fixed_sequence(range(10), holds)
        accepted_any += accepted is not None
        broken += accepted is not None and costs[accepted] > budget
    assert broken <= MOST
    assert accepted_any > RUNS / 2  # a test that accepts nothing keeps every level


def test_the_first_failure_ends_it() -> None:
    looked: list[int] = []

    def holds(plan: int) -> bool:
        looked.append(plan)
        return plan != 2

    assert fixed_sequence(range(6), holds) == (1, 3)
    assert looked == [0, 1, 2]
    assert fixed_sequence([], holds) == (None, 0)


def test_edges() -> None:
    ones = np.ones(5)
    assert upper_bound(DIVERGENCE_COSINE, ones, ones) == 0
    assert upper_bound(DIVERGENCE_COSINE, ones, ones + 0.5) == pytest.approx(0.5)
    assert upper_bound(DIVERGENCE_COSINE, ones[:1], ones[:1]) == float("inf")
    better = upper_bound(ACCURACY, np.array([1.0, 0, 1, 1, 0, 1]), np.array([1.0, 1, 1, 1, 0, 1]))
    assert better >= -1
