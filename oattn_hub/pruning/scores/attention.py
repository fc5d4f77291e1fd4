"""Scores read off the attention matrices: the paper's entropy, a variant, and Shannon's."""

from __future__ import annotations

import tempfile

import numpy as np

from oattn_hub.errors import InvalidInput
from oattn_hub.pruning.scores.base import Score, Subject, Values
from oattn_hub.report import GroupResult, Report


def _report(subject: Subject) -> Report:
    if subject.report is None:
        raise InvalidInput(
            "This score is read off a report, and there is none. Analyse the model first: oh.analyze(…)."
        )
    return subject.report


def across_groups(subject: Subject, by_group: dict[str, Values]) -> Values:
    """One list of values from several groups of layers; with more than one, by rank within each.

    Entropies of attention matrices of different shapes do not compare, their ranks do.
    """
    groups = _report(subject).groups
    values: dict[tuple[int, int], float] = {}
    for name, group in groups.items():
        own = by_group[name]
        if len(groups) > 1:
            own = (np.argsort(np.argsort(own, kind="stable"), kind="stable") + 0.5) / len(own)
        values |= dict(zip(group.head_keys(), own.tolist(), strict=True))
    missing = [head for head in subject.heads if head not in values]
    if missing:
        raise InvalidInput(f"The report says nothing about head {missing[0]}; it was made for another model.")
    return subject.in_model_order(values)


def _haar(subject: Subject) -> Values:
    groups = _report(subject).groups
    return across_groups(subject, {name: group.haar.mean_entropies for name, group in groups.items()})


def _haar_detail(subject: Subject) -> Values:
    groups = _report(subject).groups
    return across_groups(subject, {name: _details(group).mean(axis=0) for name, group in groups.items()})


def _details(group: GroupResult) -> Values:
    """(batches, heads) entropies without the constant function."""
    if group.haar.details is None:  # a report of an older version keeps the coefficients of the first batch only
        return np.asarray(np.abs(group.haar.coefficients[:, 1:]).sum(axis=1)[None])
    return group.haar.details


def _shannon(subject: Subject) -> Values:
    from oattn_hub.attention import capture_inputs

    total: dict[tuple[int, int], float] = {}
    with tempfile.TemporaryDirectory(prefix="oattn-") as folder:
        store = capture_inputs(subject.loaded, subject.inputs, folder, ("probs",))
        for group in store.groups:
            for batch in range(store.n_batches):
                probs = np.nan_to_num(store.tensor(batch, "probs", group).astype(np.float64))
                entropy = -(probs * np.log(np.maximum(probs, 1e-30))).sum(axis=1).mean(axis=0)
                # A row over k keys has at most log k: shares of it compare between layers of different lengths.
                share = entropy / max(np.log(probs.shape[1]), 1e-12)
                for record, value in zip(store.heads(group), share.tolist(), strict=True):
                    total[record.layer, record.head] = total.get((record.layer, record.head), 0.0) - value
    return subject.in_model_order(total)


HAAR = Score(
    "haar",
    "Haar l1 entropy (the paper)",
    "Fasina, Pohle, Su, Coifman 2025, arXiv 2506.15541, eq. 21",
    "read off the report",
    _haar,
)
HAAR_DETAIL = Score(
    "haar-detail",
    "Haar l1 entropy without the constant",
    "a variant of eq. 21: how much of the attention is not uniform",
    "read off the report",
    _haar_detail,
)
SHANNON = Score(
    "shannon",
    "attention entropy, most diffuse first",
    "Shannon 1948; used on heads by Voita et al. 2019",
    "one forward pass per input",
    _shannon,
)
