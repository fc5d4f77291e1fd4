"""Functions whose Holder exponent is known."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

Float = NDArray[np.float64]


def _haar_columns(n_levels: int, level: int) -> Float:
    """(2^n_levels, 2^level) unnormalised Haar functions of one level: +1 on the left half, -1 on the right."""
    return np.kron(np.eye(2**level), np.repeat([[1.0], [-1.0]], 2 ** (n_levels - level - 1), axis=0))


@pytest.fixture(scope="session")
def random_holder() -> Callable[..., Float]:
    """A random Haar series on 2^n_levels points whose steps at share s are between s^alpha / 2 and s^alpha."""

    def make(alpha: float, n_levels: int, seed: int) -> Float:
        rng = np.random.default_rng(seed)
        f = np.zeros(1)
        for level in range(n_levels):
            step = rng.choice([-1.0, 1.0], 2**level) * rng.uniform(0.5, 1, 2**level) * 2.0 ** (-alpha * level)
            f = np.repeat(f, 2) + np.stack([step, -step], axis=1).ravel()
        return f

    return make


@pytest.fixture(scope="session")
def random_mixed_holder() -> Callable[..., Float]:
    """A random bi-Haar series on a square of 2^n_levels points: mixed steps at shares s, s' are +- (s s')^alpha.

    It has a mean and profiles of its own along queries and keys, as regular as the rest.
    """

    def make(alpha: float, n_levels: int, seed: int, size: float = 2.0) -> Float:
        rng = np.random.default_rng(seed)
        columns = [_haar_columns(n_levels, level) for level in range(n_levels)]
        blocks = [np.ones((2**n_levels, 1)), *columns]
        sizes = [1.0, *(2.0 ** (-alpha * level) for level in range(n_levels))]
        f = np.zeros((2**n_levels, 2**n_levels))
        for left, left_size in zip(blocks, sizes, strict=True):
            for right, right_size in zip(blocks, sizes, strict=True):
                signs = rng.choice([-1.0, 1.0], (left.shape[1], right.shape[1]))
                f += left_size * right_size * left @ signs @ right.T
        return f * (size / np.abs(f).max())

    return make


@pytest.fixture(scope="session")
def weierstrass() -> Callable[..., Float]:
    """Cell means of Weierstrass' function sum 2^(-alpha k) cos(2 pi 2^k x) on [0, 1]."""

    def make(alpha: float, n: int) -> Float:
        per_cell = 16
        x = (np.arange(n * per_cell) + 0.5) / (n * per_cell)
        octaves = range((n * per_cell).bit_length())
        f = sum(2.0 ** (-alpha * k) * np.cos(2 * np.pi * 2**k * x) for k in octaves)
        return np.asarray(f).reshape(n, per_cell).mean(axis=1)

    return make
