"""What a removal was measured to cost, as plans and reports keep it: plain dicts with known names."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
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


def together(descriptions: Sequence[str]) -> str:
    """Descriptions of inputs as one; how a later one begins like the first is not repeated.

    >>> together(["text, first half, 62 contexts of 128 tokens", "text, first half, 15 contexts of 512 tokens"])
    'text, first half, 62 contexts of 128 tokens; 15 contexts of 512 tokens'
    """
    different = list(dict.fromkeys(descriptions))
    first = different[0].split(", ")
    shorter = [different[0]]
    for parts in (description.split(", ") for description in different[1:]):
        alike = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, parts, strict=False)))
        shorter.append(", ".join(parts[alike:]))
    return "; ".join(shorter)


_SCALES = {
    "1 - cosine": "0 is the same embedding as before, 1 one that has nothing in common with it.",
    "KL divergence": "0 is no change; at 0.01 what the unpruned model expects is, on average, 1 % less probable.",
}


def scale_words(title: str) -> str:
    """How to read a cost of that title when one meets it for the first time; empty where per cent explain it.

    >>> scale_words("1 - cosine with the unpruned embedding")
    'A cost of 0 is the same embedding as before, 1 one that has nothing in common with it.'
    """
    return next((f"A cost of {words}" for start, words in _SCALES.items() if title.startswith(start)), "")
