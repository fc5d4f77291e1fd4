"""The tree EMD against its definition, and what missing entries do to it."""

from __future__ import annotations

import threading
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from oattn_hub.errors import InvalidInput
from oattn_hub.geometry import PartitionTree, tree_emd
from oattn_hub.geometry.checks import AXES
from oattn_hub.geometry.emd import Folders

Tensor = NDArray[np.float64]


def random_tree(rng: np.random.Generator, n: int) -> PartitionTree:
    """Repeated folders on several levels included."""
    levels = [np.zeros(n, dtype=int)]
    for _ in range(int(rng.integers(1, 4))):
        levels.append(levels[-1] * 3 + rng.integers(0, 3, n) * (rng.random(n) < 0.7))
    return PartitionTree(np.stack([*levels, np.arange(n)]))


def random_case(seed: int, ndim: int) -> tuple[Tensor, dict[str, PartitionTree]]:
    rng = np.random.default_rng(seed)
    shape = tuple(int(size) for size in rng.integers(1, 8, ndim))
    return rng.normal(size=shape), {AXES[i]: random_tree(rng, n) for i, n in enumerate(shape)}


def by_definition(X: Tensor, trees: dict[str, PartitionTree], axis: int, alpha: float, beta: float) -> Tensor:
    """Sum over all folder pairs of all levels; with missing entries, over those that both slices have."""
    others = [i for i in range(X.ndim) if i != axis]
    slices = np.moveaxis(X, axis, 0)
    boxes: list[tuple[float, list[NDArray[np.intp]]]] = [(1.0, [])]
    for other in others:
        tree = trees[AXES[other]]
        boxes = [
            (weight * (len(folder) / tree.n) ** beta * 2.0 ** (-alpha * level), [*chosen, folder])
            for weight, chosen in boxes
            for level in range(tree.n_levels)
            for folder in tree.folders(level)
        ]
    total, shared = np.zeros((len(slices),) * 2), np.zeros((len(slices),) * 2)
    for weight, chosen in boxes:
        cells = [part[np.ix_(*chosen)] for part in slices]
        means = np.array([np.nan if np.isnan(cell).all() else np.nanmean(cell) for cell in cells])
        gaps = np.abs(means[:, None] - means[None, :])
        shared += np.where(np.isnan(gaps), 0.0, weight)
        total += weight * np.where(np.isnan(gaps), 0.0, gaps)
    everything = sum(weight for weight, _ in boxes)
    with np.errstate(invalid="ignore", divide="ignore"):
        result = np.where(shared > 0, total * everything / shared, np.inf)
    np.fill_diagonal(result, 0.0)
    return result


@given(st.integers(0, 10**6), st.sampled_from([2, 3]), st.sampled_from([(0.0, 1.0), (1.0, 0.0), (0.5, 0.3)]))
def test_equals_the_sum_over_all_folder_pairs(seed: int, ndim: int, weights: tuple[float, float]) -> None:
    X, trees = random_case(seed, ndim)
    for axis in range(ndim):
        ours = tree_emd(X, trees, axis, alpha=weights[0], beta=weights[1])
        np.testing.assert_allclose(ours, by_definition(X, trees, axis, *weights), atol=1e-12)


@given(st.integers(0, 10**6), st.sampled_from([2, 3]))
def test_missing_entries_count_for_nothing(seed: int, ndim: int) -> None:
    X, trees = random_case(seed, ndim)
    X[np.random.default_rng(seed + 1).random(X.shape) < 0.4] = np.nan
    for axis in range(ndim):
        np.testing.assert_allclose(tree_emd(X, trees, axis), by_definition(X, trees, axis, 0.0, 1.0), atol=1e-12)


@given(st.integers(0, 10**6))
def test_is_a_metric(seed: int) -> None:
    X, trees = random_case(seed, 3)
    d = tree_emd(X, trees, "head")
    assert (d == d.T).all()
    assert (np.diag(d) == 0).all()
    assert (d[:, None, :] <= d[:, :, None] + d[None, :, :] + 1e-12).all()
    different = np.abs(X[:, :, :, None] - X[:, :, None, :]).max(axis=(0, 1)) > 0
    assert ((d > 0) == different).all()


def test_float32_sums_and_threads_change_next_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    X = rng.random((40, 30, 25)) ** 8
    trees = {name: random_tree(rng, n) for name, n in zip(AXES, X.shape, strict=True)}
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    one = tree_emd(X, trees, "query", precision="float64")
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert np.array_equal(tree_emd(X, trees, "query", precision="float64"), one)
    np.testing.assert_allclose(tree_emd(X, trees, "query", precision="float32"), one, rtol=1e-5)
    assert np.array_equal(tree_emd(X, trees, "query"), one)  # too small for float32 to be worth it
    monkeypatch.setattr("oattn_hub.geometry.emd._FLOAT32_FROM", 0)
    assert np.array_equal(tree_emd(X, trees, "query"), tree_emd(X, trees, "query", precision="float32"))


def test_sizes_in_use_are_compared_in_float64() -> None:
    """1,500 keys: in float32 noise of 1e-10 grew another key tree from Whisper's cross attention, 3 % of entropy."""
    rng = np.random.default_rng(0)
    X = rng.random((16, 1500, 32))
    trees = {name: random_tree(rng, n) for name, n in (("query", 16), ("head", 32))}
    noisy = X * (1 + 1e-10 * rng.standard_normal(X.shape))
    found = tree_emd(X, trees, "key")
    np.testing.assert_allclose(tree_emd(noisy, trees, "key"), found, rtol=1e-8)


@pytest.mark.parametrize("size", [1e-45, 1e45])
def test_float32_has_the_range_of_the_tensor(size: float) -> None:
    X, trees = random_case(4, 3)
    expected = tree_emd(X, trees, "head", precision="float64") * size
    np.testing.assert_allclose(tree_emd(X * size, trees, "head", precision="float32"), expected, rtol=1e-4)


def test_float32_input_is_summed_in_float64() -> None:
    X, trees = random_case(3, 3)
    single = X.astype(np.float32)
    assert np.array_equal(tree_emd(single, trees, 0), tree_emd(single.astype(np.float64), trees, 0))


@pytest.mark.parametrize("axis", AXES)
def test_takes_little_memory_beside_the_tensor(axis: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of all folders in float64 took 8 bytes an entry with binary trees, twice the tensor."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    X = np.random.default_rng(0).random((128, 128, 256), dtype=np.float32)
    trees = {name: PartitionTree.dyadic(n) for name, n in zip(AXES, X.shape, strict=True)}
    tree_emd(X[:8, :8, :8], {name: PartitionTree.dyadic(8) for name in AXES}, axis)  # compiling is not counted
    tracemalloc.start()
    try:
        tree_emd(X, trees, axis, precision="float64")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 2 * X.size + 8_000_000


def test_repeated_folders_are_one_coordinate() -> None:
    tree = PartitionTree([[0, 0, 0], [0, 0, 1], [0, 0, 1], [0, 1, 2]])
    folders = Folders.of(tree, alpha=0.0, beta=1.0)
    assert folders.sizes.tolist() == [1, 1, 1, 2, 3]
    np.testing.assert_allclose(folders.weights, [1 / 3, 1 / 3, 1.0, 4 / 3, 1.0])


def test_input_is_left_alone() -> None:
    X, trees = random_case(5, 3)
    X.setflags(write=False)
    for axis in AXES:
        tree_emd(X, trees, axis)


def test_wrong_arguments_are_named() -> None:
    X, trees = np.ones((3, 4, 5)), {"query": PartitionTree.dyadic(3), "key": PartitionTree.dyadic(3)}
    with pytest.raises(InvalidInput, match="key axis has 3 points, X has 4"):
        tree_emd(X, trees, "head")
    with pytest.raises(InvalidInput, match="no tree for the head axis, only for query, key"):
        tree_emd(X, trees, "key")
    with pytest.raises(InvalidInput, match="'auto', 'float32', 'float64'"):
        tree_emd(X, trees, "head", precision="half")
    with pytest.raises(InvalidInput, match="alpha=-1"):
        tree_emd(X, trees, "head", alpha=-1)


def test_kernels_need_no_place_to_keep_their_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """A read-only installation without a home folder: compiled in memory."""
    import numba

    from oattn_hub.geometry import kernels

    real = numba.njit

    def read_only(**options: object) -> object:
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return real(**options)

    monkeypatch.setattr(numba, "njit", read_only)
    kernel = kernels.compiled.__wrapped__(kernels.add_present_distances)
    out = np.zeros((2, 2))
    kernel(np.array([[1.0, np.nan], [3.0, 5.0]]), out)
    assert out.tolist() == [[0.0, 2.0], [0.0, 0.0]]


def test_a_failure_in_a_thread_ends_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("no more")

    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    monkeypatch.setattr("oattn_hub.geometry.emd._Slices.fill", fail)
    X = np.random.default_rng(0).random((40, 40, 40))
    found: list[BaseException] = []

    def compare() -> None:
        try:
            tree_emd(X, {name: PartitionTree.dyadic(40) for name in ("query", "key")}, "head")
        except MemoryError as error:
            found.append(error)

    thread = threading.Thread(target=compare, daemon=True)  # which would wait for ever
    thread.start()
    thread.join(30)
    assert len(found) == 1
