"""Do domains agree on the heads, and are low heads regular? Plain arrays in, records of a report out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np

from oattn_hub.analysis.controls import rank_correlation
from oattn_hub.analysis.measure import BatchMeasurement
from oattn_hub.geometry import PartitionTree, Stability, holder_exponent, stability
from oattn_hub.geometry.missing import fill_missing
from oattn_hub.records import Head
from oattn_hub.report.validation import BetweenDomains, Regularity, WithinDomain
from oattn_hub.types import Array


def domain_agreement(
    group: str, entropies: Mapping[str, Array], fraction: float, seed: int
) -> tuple[list[WithinDomain], list[BetweenDomains]]:
    """Agreement inside every domain and between all pairs of them.

    Args:
        group: The group's name.
        entropies: For each domain, (inputs, heads).
        fraction: Share of the heads that counts as low.
        seed: Of the intervals' draws.
    """
    found = {name: stability(values, fraction, seed) for name, values in entropies.items()}
    within = [
        WithinDomain(group, name, one.n_batches, _known(one.jaccard), _known(one.spearman))
        for name, one in found.items()
    ]
    pairs = [(a, b) for a, b in combinations(found, 2)]
    return within, [_between(group, a, b, found[a], found[b]) for a, b in pairs]


def _between(group: str, first: str, second: str, one: Stability, other: Stability) -> BetweenDomains:
    low, other_low = (set(np.flatnonzero(side.rank < side.set_size).tolist()) for side in (one, other))
    return BetweenDomains(
        group=group,
        first=first,
        second=second,
        jaccard=len(low & other_low) / len(low | other_low),
        spearman=rank_correlation(one.mean, other.mean),
        coverage=_coverage(one, other),
        expected=_expected_coverage(one.n_batches, other.n_batches),
        coverage_back=_coverage(other, one),
        expected_back=_expected_coverage(other.n_batches, one.n_batches),
    )


def _expected_coverage(count: int, other: int, confidence: float = 0.95) -> float:
    """How often Student's interval from ``count`` inputs holds the mean of ``other`` more inputs of the same kind."""
    from scipy.stats import t

    if count < 2:
        return 0.0
    reach = t.ppf((1 + confidence) / 2, count - 1) / np.sqrt(1 + count / other)
    return float(1 - 2 * t.sf(reach, count - 1))


def _coverage(one: Stability, other: Stability) -> float:
    return float(np.mean((one.mean_low <= other.mean) & (other.mean <= one.mean_high)))


def regularity(
    group: str,
    heads: Sequence[Head],
    tensors: Sequence[Array],
    measured: Sequence[BatchMeasurement],
    fraction: float,
) -> Regularity:
    """Hölder exponents of every head joined to its entropy.

    Args:
        group: The group's name.
        heads: (layer, head) in axis order.
        tensors: (query, key, head) of some inputs.
        measured: Their measurements, whose trees the exponents are taken on.
        fraction: Share of the heads that counts as low.
    """
    by_input = [head_exponents(X, one) for X, one in zip(tensors, measured, strict=True)]
    known = np.isfinite(by_input)
    counts = known.sum(axis=0)
    sums = np.where(known, by_input, 0.0).sum(axis=0)
    exponents = np.divide(sums, counts, out=np.full(len(heads), np.nan), where=counts > 0)
    entropies = np.mean([one.entropies for one in measured], axis=0)
    n_lowest = max(1, round(fraction * len(heads)))
    low = np.argsort(np.argsort(entropies, kind="stable"), kind="stable") < n_lowest
    usable = counts > 0
    sides = exponents[low & usable], exponents[~low & usable]
    return Regularity(
        group=group,
        heads=tuple(heads),
        exponents=tuple(exponents.tolist()),
        entropies=tuple(entropies.tolist()),
        n_inputs=len(tensors),
        n_lowest=n_lowest,
        lowest=_median(sides[0]),
        others=_median(sides[1]),
        p_value=_mann_whitney(*sides),
        spearman=rank_correlation(exponents[usable], entropies[usable]),
    )


def head_exponents(X: Array, measured: BatchMeasurement) -> Array:
    """(H,) mixed Hölder exponent of every head on the batch's own trees; NaN where the attention is constant."""
    trees = {"query": PartitionTree(measured.query_labels), "key": PartitionTree(measured.key_labels)}
    filled = fill_missing(X, trees)
    return np.array(
        [holder_exponent(filled[:, :, head], trees["query"], trees["key"]).alpha for head in range(X.shape[2])]
    )


def _mann_whitney(one: Array, other: Array) -> float | None:
    from scipy.stats import mannwhitneyu

    return float(mannwhitneyu(one, other).pvalue) if len(one) and len(other) else None


def _median(values: Array) -> float:
    return float(np.median(values)) if len(values) else float("nan")


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
