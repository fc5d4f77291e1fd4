"""Where a plan comes from, as it says itself: plain dicts with known names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypedDict

from oattn_hub.records import Head


class ChosenBy(TypedDict, total=False):
    """How the number of heads was decided; what was not asked for is not there."""

    heads: str
    fraction: float
    score_by: str
    pruned_heads: str
    max_loss_increase: float
    metric: str
    unit_of_budget: str
    ranking: str
    trials: Mapping[str, float]
    rounds: int
    verifications: int
    lengths: Sequence[int | None]
    effort: Mapping[str, float]  # of the search: see its Effort
    not_measured: str
    min_heads_per_layer: int
    keep: Sequence[Head]
    alignment_heads: Sequence[Head]
    unit: str
    shape: str


class Compensation(TypedDict, total=False):
    """How the heads that stay make up for those that go."""

    kind: str
    layers: int
    strengths: Sequence[float] | None
    fitted_on: str
    inputs: str
    n_inputs: int


class Healing(TypedDict, total=False):
    """What was trained after the cut."""

    trained: str
    parameters: int
    trained_on: str
    inputs: str
    steps: int
    seconds: float
    rate: float
    before: float
    after: float
