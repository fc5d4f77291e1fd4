"""A budget that holds: one-sided bounds of a mean cost, and a sequence of plans of which each is tested once.

The promise is "the cost on inputs like these is at most the budget, with 95 % confidence". Plans are ordered from few
heads to many before the verification inputs are looked at; each is tested once, and the first that fails ends it. Then
no correction for the number of looks is needed (fixed-sequence testing; Angelopoulos et al. 2021, Learn then Test,
arXiv 2110.01052): a plan over the budget is only accepted if the FIRST such plan passes by chance, in at most 5 % of
cases. A plan must pass at every length it is promised for; that needs no correction either, as all tests must pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from oattn_hub.pruning.tasks import Metric

Values = NDArray[np.float64]
Item = TypeVar("Item")
LEVEL = 0.95
_DRAWS = 2000


def upper_bound(metric: Metric, before: Values, after: Values, level: float = LEVEL, seed: int = 0) -> float:
    """What the mean increase is at most, with this confidence; inputs are compared in pairs.

    Bootstrap-t, which follows the skewness that costs have, and never below the plain t bound. Two inputs are the
    least from which a bound can be had.
    """
    if len(before) < 2:
        return float("inf")
    from scipy.stats import t as student

    found, error = _increase(metric, before, after)
    drawn = np.random.default_rng(seed).integers(len(before), size=(_DRAWS, len(before)))
    again, errors = _increase(metric, before[drawn], after[drawn])
    usable = errors > 1e-3 * error
    if not usable.any():  # all inputs cost the same
        return float(found)
    lowest = np.quantile((again[usable] - found) / errors[usable], 1 - level)
    return float(found + max(-lowest, student.ppf(level, len(before) - 1)) * error)


def _increase(metric: Metric, before: Values, after: Values) -> tuple[Values, Values]:
    """The increase of the means along the last axis, and its standard error (of a ratio, by the delta method)."""
    base, worse = before.mean(-1), (before - after if metric.higher_is_better else after - before)
    if not metric.relative:
        return worse.mean(-1), worse.std(-1, ddof=1) / np.sqrt(before.shape[-1])
    size = np.maximum(np.abs(base), 1e-12)
    share = worse.mean(-1) / size
    deviations = worse - share[..., None] * np.sign(base)[..., None] * before
    return share, deviations.std(-1, ddof=1) / np.sqrt(before.shape[-1]) / size


def fixed_sequence(plans: Sequence[Item], holds: Callable[[Item], bool]) -> tuple[Item | None, int]:
    """The last plan before the first that fails (None if that is the first), and how many were tested.

    >>> fixed_sequence([1, 2, 3, 4], lambda heads: heads < 3)
    (2, 3)
    """
    accepted: Item | None = None
    tested = 0
    for plan in plans:
        tested += 1
        if not holds(plan):
            break
        accepted = plan
    return accepted, tested
