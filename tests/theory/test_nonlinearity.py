"""A nonlinearity is only made with derivatives that are its own."""

from __future__ import annotations

import numpy as np
import pytest

from oattn_hub.errors import InvalidInput
from oattn_hub.geometry import Nonlinearity
from oattn_hub.geometry.nonlinearity import SOFTMAX, get_nonlinearity


def test_a_users_own_function_is_taken() -> None:
    log = Nonlinearity("log", np.log, lambda x: 1 / x, lambda x: -1 / x**2, checked_on=(0.5, 3.0))
    assert get_nonlinearity(log) is log


@pytest.mark.parametrize(
    ("first", "second", "which"), [(np.sin, np.cos, "first"), (np.cos, np.cos, "second")], ids=["first", "second"]
)
def test_wrong_derivatives_are_refused(first: np.ufunc, second: np.ufunc, which: str) -> None:
    with pytest.raises(InvalidInput, match=f"The {which} derivative of 'mine' at -2 .* finite differences say"):
        Nonlinearity("mine", np.sin, first, second)


def test_a_function_undefined_where_it_is_checked_is_refused() -> None:
    with pytest.raises(InvalidInput, match="the interval it is checked on"):
        Nonlinearity("log", np.log, lambda x: 1 / x, lambda x: -1 / x**2, checked_on=(-1.0, 3.0))


def test_softmax_is_the_exponential_of_the_log_normalised_rows() -> None:
    f = np.random.default_rng(0).standard_normal((4, 6, 2)) * 200  # exp(f) itself would overflow
    rows = SOFTMAX.value(SOFTMAX.prepare(f)).sum(axis=1)
    np.testing.assert_allclose(rows, 1.0, atol=1e-12)


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(InvalidInput, match=r"Unknown nonlinearity 'relu'. Known: exp, softmax, tanh"):
        get_nonlinearity("relu")
