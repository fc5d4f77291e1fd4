"""The controls of a group in plain sentences: what its ranking of heads owes to the method's choices."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from oattn_hub.geometry.agreement import FEWEST_BATCHES

if TYPE_CHECKING:
    from oattn_hub.report.group import GroupResult

_STILL_MOVING = 0.02  # of the tree metric, which runs from 0 to 1
_UNMOVED = 0.001  # of an entropy; what is printed with one digit of a per cent would be 0.0
WHAT_RANKS_SAY = (  # measured: benchmarks/results/truth.md
    "The ranking says how much detail a head's attention has, not what the head does: heads whose task is known "
    "(Whisper's alignment heads, RXNMapper's atom mapping) stand in the middle of such rankings and near each other in "
    "the tree of heads, so look there for heads that do the same."
)


def limit_sentences(group: GroupResult) -> list[str]:
    """What was measured otherwise than usual, in lower case: too few batches, merged positions, an approximation."""
    sentences = [_few(group)] if group.n_batches < FEWEST_BATCHES else []
    if group.pooled != (1, 1):
        sentences.append(_pooled(group))
    if group.geometry.landmarks is not None:
        sentences.append(_approximated(group))
    return sentences


def control_sentences(group: GroupResult) -> list[str]:
    """One sentence for each control, in lower case; none for a report of an older version."""
    controls, sentences = group.haar.controls, []
    if controls is None:
        return []
    if controls.shannon is not None:
        sentences.append(
            f"the entropies rank the heads {_alike(controls.shannon)} the plain Shannon entropy of their attention "
            f"rows (rank correlation {controls.shannon:.2f}): {_adds(controls.shannon)}."
        )
    if controls.shuffled is not None:
        sentences.append(
            f"on trees with shuffled leaves the ranking is {_kept(controls.shuffled)} (rank correlation "
            f"{controls.shuffled:.2f}): {_organisation(controls.shuffled)}."
        )
    if controls.fewer is not None and controls.all_functions is not None:
        sentences.append(
            f"with {controls.fewer_functions} Haar functions instead of the usual number the rank correlation is "
            f"{controls.fewer:.2f}, with all of them {controls.all_functions:.2f}: "
            f"{_choice(min(controls.fewer, controls.all_functions))}."
        )
    return [*sentences, *_chance(group), _convergence(group)]


def _few(group: GroupResult) -> str:
    return (
        f"{group.n_batches} batches are too few for intervals that hold what they say; give at least {FEWEST_BATCHES}, "
        "better 6 or more."
    )


def _pooled(group: GroupResult) -> str:
    merged = [
        f"{size} neighbouring {axis}" for size, axis in zip(group.pooled, ("queries", "keys"), strict=True) if size > 1
    ]
    return (
        f"the attention is longer than what is organised as it is: {' and '.join(merged)} were read as one, which "
        f"leaves {group.n_queries} x {group.n_keys}; what heads do within these neighbourhoods is not seen."
    )


def _approximated(group: GroupResult) -> str:
    return (
        f"this is an approximation, since {group.n_heads:,} heads are too many to compare each with each: the head "
        f"tree was grown from {len(group.geometry.affinity):,} of them, drawn once, and each other head is beside the "
        "one that attends most like it; every entropy is measured on its own head, in trees that all heads together "
        "shaped."
    )


def _chance(group: GroupResult) -> list[str]:
    controls = group.haar.controls
    if controls is None or group.haar.tree_spread is None or controls.perturbed is None:
        return []
    mean = group.haar.entropies[0]
    share = np.divide(group.haar.tree_spread, mean, out=np.zeros_like(mean), where=mean > 0)
    moves = (
        f"a head's entropy by {100 * float(np.median(share)):.1f} % (median head; the most "
        f"{100 * float(share.max()):.1f} %)"
    )
    if share.max() < _UNMOVED:
        moves = f"no head's entropy by {100 * _UNMOVED:g} %"
    return [
        f"noise of {100 * controls.perturbation:g} % grows other trees: that alone moves {moves} and leaves a "
        f"rank correlation of {controls.perturbed:.3f}; the intervals contain it, as every batch has its own trees."
    ]


def _convergence(group: GroupResult) -> str:
    assert group.haar.controls is not None
    changes = {axis: value for axis, value in group.haar.controls.convergence.items() if value == value}
    if not changes:
        return "the questionnaire made one pass, so whether its trees settle is not known."
    named = ", ".join(f"{value:.3f} ({axis})" for axis, value in changes.items())
    verdict = "still move" if max(changes.values()) > _STILL_MOVING else "have settled"
    return f"the trees {verdict}: the last pass changed their metric, which runs from 0 to 1, by {named}."


def _alike(correlation: float) -> str:
    if abs(correlation) <= 0.4:
        return "otherwise than"
    much = abs(correlation) > 0.8
    if correlation > 0:
        return "much like" if much else "partly like"
    return f"{'nearly' if much else 'partly'} in the opposite order of"


def _adds(correlation: float) -> str:
    if abs(correlation) > 0.8:
        return "most of the ranking can be had without any geometry"
    if abs(correlation) > 0.4:
        return "a part of the ranking can be had without any geometry"
    return "it says something that row entropies do not"


def _kept(correlation: float) -> str:
    return "nearly the same" if correlation > 0.9 else "partly the same" if correlation > 0.5 else "another one"


def _organisation(correlation: float) -> str:
    if correlation > 0.9:
        return "the shape of the trees matters here, which token lies in which folder hardly does"
    return "it depends on which token lies in which folder"


def _choice(correlation: float) -> str:
    if correlation > 0.9:
        return "their number hardly decides the ranking"
    return "the ranking depends on how many functions are counted, which the paper sets to 400 without a reason"
