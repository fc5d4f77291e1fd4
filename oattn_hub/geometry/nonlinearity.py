"""The smooth functions A that a paraproduct linearises: their values and first two derivatives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp

from oattn_hub.errors import InvalidInput

Float = NDArray[np.float64]
Pointwise = Callable[[Float], Float]

_STEP = 1e-4  # central differences: error ~ step^2 in A', ~ eps / step in the rounding of A and A'
_TOLERANCE = 1e-5


def _unchanged(f: Float) -> Float:
    return f


@dataclass(frozen=True)
class Nonlinearity:
    """A function A in C^2 with A' and A'', compared with finite differences when it is made.

    Args:
        name: what figures and messages call it.
        value: A, applied to each entry.
        first: A'.
        second: A''.
        prepare: turns the given f (query, key, …) into the function that A is applied to.
        checked_on: an interval on which the derivatives are compared with finite differences; A must be defined there.

    >>> Nonlinearity("square", lambda x: x**2, lambda x: 2 * x, lambda x: np.full_like(x, 2.0)).name
    'square'
    >>> Nonlinearity("wrong", np.sin, np.sin, np.cos)
    Traceback (most recent call last):
    ...
    oattn_hub.errors.InvalidInput: The first derivative of 'wrong' at -2 is given as -0.909297, finite differences say \
-0.416147. Correct it, or the interval it is checked on, (-2.0, 2.0).
    """

    name: str
    value: Pointwise
    first: Pointwise
    second: Pointwise
    prepare: Pointwise = _unchanged
    checked_on: tuple[float, float] = (-2.0, 2.0)

    def __post_init__(self) -> None:
        points = np.linspace(*self.checked_on, 17)
        with np.errstate(all="ignore"):  # what is not a number does not compare equal, and is refused by that
            self._compare("first", self.value, self.first(points), points)
            self._compare("second", self.first, self.second(points), points)

    def derivatives(self, x: Float) -> tuple[Float, Float]:
        """A'(x) and A''(x); evaluated once where they are the same function, as for exp."""
        first = self.first(x)
        return first, first if self.second is self.first else self.second(x)

    def _compare(self, which: str, function: Pointwise, given: Float, points: Float) -> None:
        measured = (function(points + _STEP) - function(points - _STEP)) / (2 * _STEP)
        wrong = ~(np.abs(measured - given) <= _TOLERANCE * (1 + np.abs(measured)))
        if wrong.any():
            i = int(np.argmax(wrong))
            raise InvalidInput(
                f"The {which} derivative of {self.name!r} at {points[i]:g} is given as {given[i]:g}, finite "
                f"differences say {measured[i]:g}. Correct it, or the interval it is checked on, {self.checked_on}."
            )


def _log_normalised(f: Float) -> Float:
    return np.asarray(f - logsumexp(f, axis=1, keepdims=True), dtype=np.float64)


def _tanh_first(x: Float) -> Float:
    return 1 - np.tanh(x) ** 2


def _tanh_second(x: Float) -> Float:
    return np.asarray(-2 * np.tanh(x) * (1 - np.tanh(x) ** 2))


EXP = Nonlinearity("exp", np.exp, np.exp, np.exp)

# softmax(f) = exp(g) with g = f - log(row sum of exp f). Taking the row's normaliser into the function keeps A
# pointwise, as Theorem 1 needs it, and changes no mixed difference: g - f depends on the query alone. Dividing an
# expansion of exp(f) by the row sums afterwards errs more (median of 10 heads of SmolLM2: 0.60, this way 0.44).
SOFTMAX = Nonlinearity("softmax", np.exp, np.exp, np.exp, prepare=_log_normalised)

TANH = Nonlinearity("tanh", np.tanh, _tanh_first, _tanh_second)

_NAMED = {nonlinearity.name: nonlinearity for nonlinearity in (EXP, SOFTMAX, TANH)}


def get_nonlinearity(nonlinearity: str | Nonlinearity) -> Nonlinearity:
    """The nonlinearity of that name, or the given one.

    >>> get_nonlinearity("tanh").name
    'tanh'
    """
    if isinstance(nonlinearity, Nonlinearity):
        return nonlinearity
    if nonlinearity not in _NAMED:
        raise InvalidInput(
            f"Unknown nonlinearity {nonlinearity!r}. Known: {', '.join(_NAMED)}; "
            "or pass a Nonlinearity(name, A, A', A'')."
        )
    return _NAMED[nonlinearity]
