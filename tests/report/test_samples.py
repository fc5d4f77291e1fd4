"""The display codes give back what they were made from, up to their stated coarseness."""

from __future__ import annotations

import numpy as np
import pytest

from oattn_hub.report.samples import decode, display_matrix, encode, value_range


def _codes(X: np.ndarray, kind: str, *orders: np.ndarray, side: int = 64) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    values = display_matrix(X, kind, *orders, side=side)
    low, high = value_range(values)
    return encode(values, low, high), low, high


@pytest.mark.parametrize("kind", ["probs", "scores"])
def test_small_matrices_come_back(kind: str) -> None:
    X = np.random.default_rng(0).normal(size=(7, 9, 3))
    X = np.abs(X) if kind == "probs" else X
    X[2, 3:, 1] = np.nan
    codes, low, high = _codes(X, kind)
    assert codes.shape == (3, 7, 9)
    for head in range(3):
        back = decode(codes[head], low[head], high[head], kind)
        spread = np.nanmax(np.abs(X[:, :, head]))
        np.testing.assert_allclose(back, X[:, :, head], atol=spread / 60)
    assert (codes[1, 2, 3:] == 0).all()


def test_large_matrices_become_block_means() -> None:
    X = np.random.default_rng(1).random((130, 200, 2))
    codes, low, high = _codes(X, "scores", side=64)
    assert codes.shape == (2, 64, 64)
    block = X[0:2, 0:3, 0].mean()  # 130 / 64 and 200 / 64 entries, rounded down
    assert decode(codes[0], low[0], high[0], "scores")[0, 0] == pytest.approx(block, abs=0.01)


def test_orders_are_applied_before_the_means() -> None:
    X = np.random.default_rng(2).random((128, 128, 1))
    order = np.random.default_rng(3).permutation(128)
    direct, *_ = _codes(X[order][:, order], "probs")
    ordered, *_ = _codes(X, "probs", order, order)
    np.testing.assert_array_equal(direct, ordered)


def test_constant_and_empty_heads_have_codes() -> None:
    X = np.stack([np.full((4, 4), 0.25), np.full((4, 4), np.nan)], axis=-1)
    codes, low, high = _codes(X, "probs")
    assert (codes[0] == 1).all()
    assert decode(codes[0], low[0], high[0], "probs")[0, 0] == pytest.approx(0.25)
    assert np.isnan(decode(codes[1], low[1], high[1], "probs")).all()
