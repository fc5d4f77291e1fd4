"""What a removal was measured to cost, as plans and reports keep it: plain dicts with known names."""

from __future__ import annotations

from typing import TypedDict


class Look(TypedDict, total=False):
    """One measurement: the metric before and after, with its interval, at one length, and on which inputs."""

    metric: str
    title: str
    tokens: int | None
    before: float
    after: float
    increase: float
    low: float  # of the 95 % interval over inputs
    high: float
    upper: float  # the one-sided 95 % bound; a verified plan has one
    n_inputs: int
    inputs: str  # their fingerprint
    verified_on: str  # the inputs in words
    compared: int  # how many rankings were compared on these very inputs, if any were


class Cost(Look, total=False):
    """The first look, and all of them; an empty one says that nothing was measured."""

    level: float
    lengths: list[Look]
    last_look: list[Look]  # on inputs that decided nothing
    searched_on: str
