"""The compiled inner loops of the tree EMD.

Plain functions here; ``compiled`` hands them to numba when they are first needed, so that importing the package costs
nothing. They run without the interpreter lock, one call per thread.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]
Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]


@cache
def compiled(function: Callable[..., None]) -> Callable[..., None]:
    """The machine code of a kernel, kept on disk where there is a place for it."""
    import numba

    # sums may be reordered (that is what makes them vector code); NaN keeps its meaning
    options: dict[str, Any] = {"nogil": True, "fastmath": {"reassoc", "nsz", "contract"}}
    try:
        kernel: Callable[..., None] = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # neither the package's folder nor the user's cache can be written
        kernel = numba.njit(**options)(function)
    return kernel


def folder_values(
    slices: Floats,
    member_starts: Ints,
    members: Ints,
    row_weights: Doubles,
    child_starts: Ints,
    children: Ints,
    column_weights: Doubles,
    start: int,
    out: Doubles,
) -> None:
    """out[s, f, g] = weight * sum of slice s over folder ``start + f`` (rows) x folder g (columns)."""
    n_slices, _, n_columns = slices.shape
    n_folders = len(column_weights)
    for s in range(n_slices):
        for f in range(out.shape[1]):
            row = out[s, f]
            row[:] = 0.0
            for member in members[member_starts[start + f] : member_starts[start + f + 1]]:
                for column in range(n_columns):
                    row[column] += slices[s, member, column]
            for g in range(n_columns, n_folders):
                for child in children[child_starts[g] : child_starts[g + 1]]:
                    row[g] += row[child]
            for g in range(n_folders):
                row[g] *= row_weights[start + f] * column_weights[g]


def present_folder_values(
    slices: Floats,
    member_starts: Ints,
    members: Ints,
    row_weights: Doubles,
    child_starts: Ints,
    children: Ints,
    column_weights: Doubles,
    start: int,
    out: Doubles,
) -> None:
    """The same with missing entries: out is weight * mean over the present entries, NaN where there is none.

    Here the weights are those of the folders themselves, not divided by their sizes.
    """
    n_slices, _, n_columns = slices.shape
    n_folders = len(column_weights)
    counts = np.empty(n_folders)
    for s in range(n_slices):
        for f in range(out.shape[1]):
            row = out[s, f]
            row[:] = 0.0
            counts[:] = 0.0
            for member in members[member_starts[start + f] : member_starts[start + f + 1]]:
                for column in range(n_columns):
                    value = slices[s, member, column]
                    if value == value:
                        row[column] += value
                        counts[column] += 1.0
            for g in range(n_columns, n_folders):
                for child in children[child_starts[g] : child_starts[g + 1]]:
                    row[g] += row[child]
                    counts[g] += counts[child]
            for g in range(n_folders):
                if counts[g] > 0.0:
                    row[g] *= row_weights[start + f] * column_weights[g] / counts[g]
                else:
                    row[g] = np.nan


def centre(values: Doubles, out: Floats) -> None:
    """out = values less the mean row, rounded to out's precision; rows of out beyond values are left alone.

    Differences of rows stay the same, and what is left to round is of their size.
    """
    n_rows, n_columns = values.shape
    mean = np.zeros(n_columns)
    for i in range(n_rows):
        for column in range(n_columns):
            mean[column] += values[i, column]
    for column in range(n_columns):
        mean[column] /= n_rows
    for i in range(n_rows):
        for column in range(n_columns):
            out[i, column] = values[i, column] - mean[column]


def add_distances(rows: Floats, tile: int, out: Doubles) -> None:
    """out[i, j] += l_1 distance of rows i <= j; the number of rows is a multiple of 4.

    Blocks of 2 x 4 pairs share their loads. Within a tile sums are in the rows' precision, over tiles in float64.
    """
    n_rows, n_columns = rows.shape
    zero = rows.dtype.type(0)
    for begin in range(0, n_columns, tile):
        end = min(begin + tile, n_columns)
        for i in range(0, n_rows, 2):
            a0, a1 = rows[i, begin:end], rows[i + 1, begin:end]
            for j in range(i // 4 * 4, n_rows, 4):
                b0, b1, b2, b3 = (
                    rows[j, begin:end],
                    rows[j + 1, begin:end],
                    rows[j + 2, begin:end],
                    rows[j + 3, begin:end],
                )
                s00 = s01 = s02 = s03 = s10 = s11 = s12 = s13 = zero
                for k in range(end - begin):
                    x0, x1, y0, y1, y2, y3 = a0[k], a1[k], b0[k], b1[k], b2[k], b3[k]
                    s00 += abs(x0 - y0)
                    s01 += abs(x0 - y1)
                    s02 += abs(x0 - y2)
                    s03 += abs(x0 - y3)
                    s10 += abs(x1 - y0)
                    s11 += abs(x1 - y1)
                    s12 += abs(x1 - y2)
                    s13 += abs(x1 - y3)
                out[i, j] += s00
                out[i, j + 1] += s01
                out[i, j + 2] += s02
                out[i, j + 3] += s03
                out[i + 1, j] += s10
                out[i + 1, j + 1] += s11
                out[i + 1, j + 2] += s12
                out[i + 1, j + 3] += s13


def add_present_distances(rows: Doubles, out: Doubles) -> None:
    """out[i, j] += l_1 distance of rows i < j over the columns where neither is NaN."""
    n_rows, n_columns = rows.shape
    for i in range(n_rows):
        for j in range(i + 1, n_rows):
            total = 0.0
            for k in range(n_columns):
                gap = abs(rows[i, k] - rows[j, k])
                total += gap if gap == gap else 0.0
            out[i, j] += total
