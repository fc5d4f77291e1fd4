"""Scores of what a head writes, rather than of where it looks."""

from __future__ import annotations

import numpy as np

from oattn_hub.pruning.scores.attention import HAAR
from oattn_hub.pruning.scores.base import Score, Subject, Values


def _output(subject: Subject) -> Values:
    return np.sqrt(np.diag(subject.outputs.gram))


def _displacement(subject: Subject) -> Values:
    from oattn_hub.pruning.outputs import removal_order

    order = removal_order(subject.outputs.gram)
    place = np.empty(len(order))
    place[order] = np.arange(len(order))
    return place / max(len(order) - 1, 1)


def _haar_output(subject: Subject) -> Values:
    return HAAR.measure(subject) * subject.outputs.sizes


OUTPUT = Score(
    "output",
    "energy of the head's output",
    "oattn_hub: size of what the head writes, what it writes alike over many queries weighing more",
    "one forward pass per input",
    _output,
)
DISPLACEMENT = Score(
    "displacement",
    "joint displacement (ours)",
    "oattn_hub: order in which heads can go so that their outputs' SUM moves the stream least",
    "one forward pass per input",
    _displacement,
)
HAAR_OUTPUT = Score(
    "haar-output",
    "Haar l1 entropy x size of the head's output",
    "a variant of eq. 21 that also asks how much the head writes",
    "one forward pass per input",
    _haar_output,
)
