"""Results of the authors' code, and tensors with a known answer."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from numpy.typing import NDArray

Array = NDArray[Any]

# a shared machine is sometimes slow, and the first example compiles
settings.register_profile("oattn", deadline=None, max_examples=40)
settings.load_profile("oattn")

DATA = Path(__file__).parents[1] / "data/geometry"


@pytest.fixture(scope="session")
def golden() -> Callable[[str], Mapping[str, Array]]:
    """Numbers of the authors' code, by file name."""

    def load(name: str) -> Mapping[str, Array]:
        with np.load(DATA / name, allow_pickle=False) as arrays:
            return dict(arrays)

    return load


@pytest.fixture(scope="session")
def golden_folder() -> Path:
    """The folder of large results beside the project, or the one named by OATTN_GOLDEN."""
    folder = Path(os.environ.get("OATTN_GOLDEN", Path(__file__).parents[3] / "shared/golden"))
    if not folder.is_dir():
        pytest.skip("no results of the authors' code beside the project; name their folder with OATTN_GOLDEN")
    return folder


@pytest.fixture(scope="session")
def planted() -> Callable[..., tuple[Array, list[Array]]]:
    """A tensor of constant blocks and a little noise, hidden by permutations, and each point's block on each axis."""

    def make(seed: int, blocks: tuple[int, ...] = (3, 4, 3), size: int = 5, noise: float = 0.01) -> Any:
        rng = np.random.default_rng(seed)
        levels = rng.permutation(int(np.prod(blocks))).reshape(blocks).astype(float)
        X = np.kron(levels, np.ones((size,) * len(blocks)))
        X += noise * rng.standard_normal(X.shape)
        truth = []
        for axis, count in enumerate(blocks):
            order = rng.permutation(count * size)
            X = np.take(X, order, axis=axis)
            truth.append(np.repeat(np.arange(count), size)[order])
        return X, truth

    return make
