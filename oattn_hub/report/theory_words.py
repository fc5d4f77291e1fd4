"""The theory's findings in plain words."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from oattn_hub.geometry.softmax import TOLERANCE, Agreement

if TYPE_CHECKING:
    from oattn_hub.report.theory import TheoryGroup, TheoryHead

_SOURCES = {
    "expansion": "the expansion of Theorem 1",
    "corollary": "Corollary 1",
    "noise": "the logits with 1 % of noise (the most that can be kept)",
    "probs": "the attention the model used",
}


def group_findings(group: TheoryGroup) -> Iterator[str]:
    """What was found on a group, one line a finding; where the theory fails, the line says so."""
    yield _assumption(group.heads)
    yield _expansion(group.heads)
    yield _residual(group.heads)
    yield _corollary(group.heads)
    yield from _survival(group.agreements)
    yield _one_head(group)
    yield _limits(group)


def _assumption(heads: Sequence[TheoryHead]) -> str:
    count = sum(head.assumption_holds for head in heads)
    surely = sum(head.assumption_holds and head.holder_low > 0 for head in heads)
    before, after = _median(heads, "holder_before"), _median(heads, "holder")
    typical = _median(heads, "typical")
    verdict = " On the median head mixed coefficients grow towards fine scales instead of falling." if after < 0 else ""
    return (
        f"Theorem 1's assumption, a mixed Hölder exponent in (0, 1/2) after organisation, holds for {count} of "
        f"{len(heads)} heads (for {surely} with 95 % confidence that it is positive). Median exponent {before:.2f} in "
        f"token order, {after:.2f} organised ({typical:.2f} from typical instead of worst differences).{verdict}"
    )


def _expansion(heads: Sequence[TheoryHead]) -> str:
    explained = [head.explained for head in heads]
    count = sum(head.expansion_holds for head in heads)
    return (
        f"The second-order expansion explains {_percent(_median(heads, 'explained'))} of softmax's variance on the "
        f"median head ({_percent(min(explained))} to {_percent(max(explained))}); its relative error is "
        f"{_median(heads, 'error'):.2f}, and at most {TOLERANCE:g} on {count} of {len(heads)} heads. As printed, "
        f"without boundary terms, the error is {_median(heads, 'error_as_printed'):.2f}."
    )


def _residual(heads: Sequence[TheoryHead]) -> str:
    regular = [head for head in heads if head.assumption_holds]
    medians = f"{_median(heads, 'residual_holder'):.2f}, that of the heads {_median(heads, 'holder'):.2f}"
    if not regular:
        return (
            "That the residual is twice as regular cannot be seen here: no head meets the assumption. "
            f"The residual's median exponent is {medians}."
        )
    own, rest = _median(regular, "holder"), _median(regular, "residual_holder")
    which = "the one head that meets" if len(regular) == 1 else f"the {len(regular)} heads that meet"
    return (
        f"On {which} the assumption the residual's median exponent is {rest:.2f}; claimed: twice the heads' own "
        f"{own:.2f}. Over all heads it is {medians}."
    )


def _corollary(heads: Sequence[TheoryHead]) -> str:
    failing = sum(not head.corollary_holds for head in heads)
    verdict = f"does not hold for {failing} of" if failing else "holds for all"
    return (
        f"Corollary 1 (A' = A'' = 1) {verdict} {len(heads)} heads: scaled as well as can be, it misses softmax by "
        f"{_percent(_median(heads, 'corollary_error_scaled'))} on the median head. There A' runs from "
        f"{_median(heads, 'slope_low'):.2g} to {_median(heads, 'slope_high'):.2g}, the mean of the logits is "
        f"{_median(heads, 'mean'):.2g} (assumed 0) and their mixed coefficients have size "
        f"{_median(heads, 'coefficient_size'):.2g} (assumed to grow without bound)."
    )


def _survival(agreements: tuple[Agreement, ...]) -> Iterator[str]:
    """How much of the logits' organisation is found again after softmax, and in what the theory puts in its place."""
    for agreement in agreements:
        if agreement.source == "softmax":
            value = agreement.head_affinity
            verdict = "survives" if value >= 0.9 else "survives in part" if value >= 0.5 else "is mostly lost"
            yield (
                f"The organisation of the logits {verdict} in softmax: head affinities correlate {value:.2f}, "
                f"head trees {agreement.head_tree:.2f}, query trees {agreement.query_tree:.2f}, "
                f"key trees {agreement.key_tree:.2f} (1 is the same, 0 is chance)."
            )
    others = [
        f"{_SOURCES[a.source]} {a.head_affinity:.2f} and {a.head_tree:.2f}" for a in agreements if a.source in _SOURCES
    ]
    if others:
        yield f"The same for head affinities and head trees of {', '.join(others)}."


def _one_head(group: TheoryGroup) -> str:
    shown = (group.example.layer, group.example.head)
    head = next(head for head in group.heads if (head.layer, head.head) == shown)
    return (
        f"The head shown, layer {head.layer} head {head.head} (median error): organised Hölder exponent "
        f"{head.holder_before:.2f} -> {head.holder:.2f} [{head.holder_low:.2f}, {head.holder_high:.2f}]; "
        f"the expansion explains {_percent(head.explained)} of its softmax."
    )


def _limits(group: TheoryGroup) -> str:
    mask = ""
    if group.masked > 0:
        mask = (
            f" The model masks {_percent(group.masked)} of the pairs; the theory is held against its scores before the "
            "mask, and softmax taken over all keys."
        )
    return (
        f"The paper's claims are about a limit (scales to zero, coefficients to infinity); these are matrices of "
        f"{group.n_queries} x {group.n_keys} from one batch.{mask}"
    )


def _median(heads: Sequence[TheoryHead], name: str) -> float:
    values = np.array([getattr(head, name) for head in heads], dtype=np.float64)
    return float(np.nanmedian(values)) if np.isfinite(values).any() else float("nan")


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"
