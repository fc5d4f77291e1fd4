"""The compiled inner loops of the tree EMD, and of growing a tree.

Plain functions here; ``compiled`` hands them to numba when they are first needed, so that importing the package costs
nothing. They run without the interpreter lock, one call per thread.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from oattn_hub.lazy import require

Floats = NDArray[np.floating[Any]]
Doubles = NDArray[np.float64]
Ints = NDArray[np.int64]
Result = TypeVar("Result")


@cache
def compiled(function: Callable[..., Result]) -> Callable[..., Result]:
    """The machine code of a kernel, kept on disk where there is a place for it."""
    require("numba", what="Organising heads")
    import numba

    # sums may be reordered (that is what makes them vector code); NaN keeps its meaning
    options: dict[str, Any] = {"nogil": True, "fastmath": {"reassoc", "nsz", "contract"}}
    try:
        kernel: Callable[..., Result] = numba.njit(cache=True, **options)(function)
    except RuntimeError:  # neither the package's folder nor the user's cache can be written
        kernel = numba.njit(**options)(function)
    return kernel


def inner_sums(
    points: Floats, typical: Doubles, scale: float, parents: Ints, first: int, last: int, out: Floats
) -> None:
    """out[a, f, b] = scale * sum of (points - typical) over the f-th kept folder: each is added to its parent.

    Both are (a, folders, b, c), typical is (points, b or 1, c or 1). ``parents`` gives points, then kept folders, the
    place of the smallest kept folder that holds them and more, -1 if there is none. Of all a and b together, those
    from ``first`` to ``last``: a few lines along c at a time, so that all folders stay in the cache.
    """
    n_points, n_b = points.shape[1:3]
    for place in range(first, last):
        a, b = place // n_b, place % n_b
        out[a, :, b] = 0.0
        for child in range(len(parents)):
            if parents[child] < 0:
                continue
            total = out[a, parents[child], b]
            if child >= n_points:
                folder = out[a, child - n_points, b]
                for c in range(len(total)):
                    total[c] += folder[c]
            else:
                point = points[a, child, b]
                usual = typical[child, b if typical.shape[1] > 1 else 0]
                if len(usual) > 1:
                    for c in range(len(total)):
                        total[c] += (point[c] - usual[c]) * scale
                else:
                    for c in range(len(total)):
                        total[c] += (point[c] - usual[0]) * scale


def folder_values(
    lines: Floats,
    keys_are_slices: bool,
    typical: Doubles,
    member_starts: Ints,
    members: Ints,
    row_weights: Doubles,
    child_starts: Ints,
    children: Ints,
    column_weights: Doubles,
    start: int,
    stop: int,
    out: Floats,
) -> None:
    """out[s] is weights * sum over a column folder of (slice s - the typical slice) in a row folder.

    For the row folders from ``start`` to ``stop`` one after the other, in each for all column folders; what out has
    beyond them stays. Lines are (slices, rows, columns), or (rows, slices, columns) where the keys are slices; columns
    are the heads. Eight pairs of slice and row folder go through the column folders together: their sums do not wait
    for each other.
    """
    n_slices, n_rows, n_folders = len(out), stop - start, len(column_weights)
    n_columns = typical.shape[1]
    sums = np.zeros((8, n_folders))
    sums0, sums1, sums2, sums3 = sums[0], sums[1], sums[2], sums[3]
    sums4, sums5, sums6, sums7 = sums[4], sums[5], sums[6], sums[7]
    for first in range(0, n_slices * n_rows, 8):
        count = min(8, n_slices * n_rows - first)
        for place in range(count):
            s, f = (first + place) // n_rows, start + (first + place) % n_rows
            total, row = sums[place], members[member_starts[f]]
            line, usual = lines[row, s] if keys_are_slices else lines[s, row], typical[row]
            for column in range(n_columns):
                total[column] = line[column] - usual[column]
            for m in range(member_starts[f] + 1, member_starts[f + 1]):
                row = members[m]
                line, usual = lines[row, s] if keys_are_slices else lines[s, row], typical[row]
                for column in range(n_columns):
                    total[column] += line[column] - usual[column]
        for g in range(n_columns, n_folders):
            s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = 0.0
            for number in range(child_starts[g - n_columns], child_starts[g - n_columns + 1]):
                child = children[number]
                s0 += sums0[child]
                s1 += sums1[child]
                s2 += sums2[child]
                s3 += sums3[child]
                s4 += sums4[child]
                s5 += sums5[child]
                s6 += sums6[child]
                s7 += sums7[child]
            sums0[g], sums1[g], sums2[g], sums3[g] = s0, s1, s2, s3
            sums4[g], sums5[g], sums6[g], sums7[g] = s4, s5, s6, s7
        for place in range(count):
            s, f = (first + place) // n_rows, (first + place) % n_rows
            values = out[s][f * n_folders : (f + 1) * n_folders]
            total, weight = sums[place], row_weights[start + f]
            for g in range(n_folders):
                values[g] = total[g] * (weight * column_weights[g])


def head_folder_values(
    planes: Floats,
    typical: Doubles,
    member_starts: Ints,
    members: Ints,
    row_weights: Doubles,
    parents: Ints,
    column_weights: Doubles,
    start: int,
    stop: int,
    out: Floats,
) -> None:
    """The same where the heads are slices: planes are (rows, columns, slices), so all slices are summed at once."""
    n_slices, n_rows, n_folders = len(out), stop - start, len(column_weights)
    n_columns = typical.shape[1]
    # lines a power of two apart would share few places of the cache, from which they are read side by side below
    sums = np.empty((n_folders, n_slices + 8))
    for f in range(n_rows):
        first, last = member_starts[start + f], member_starts[start + f + 1]
        sums[n_columns:] = 0.0
        for column in range(n_columns):
            total, line, usual = sums[column], planes[members[first], column], typical[members[first], column]
            for s in range(n_slices):
                total[s] = line[s] - usual
            for m in range(first + 1, last):
                line, usual = planes[members[m], column], typical[members[m], column]
                for s in range(n_slices):
                    total[s] += line[s] - usual
        for child in range(n_folders - 1):
            total, part = sums[parents[child]], sums[child]
            for s in range(n_slices):
                total[s] += part[s]
        weight = row_weights[start + f]
        for s in range(n_slices):
            values = out[s][f * n_folders : (f + 1) * n_folders]
            for g in range(n_folders):
                values[g] = sums[g, s] * (weight * column_weights[g])


def present_folder_values(
    slices: Floats,
    member_starts: Ints,
    members: Ints,
    row_weights: Doubles,
    parents: Ints,
    column_weights: Doubles,
    start: int,
    out: Doubles,
) -> None:
    """The same with missing entries, slices on the first axis: NaN where a folder pair has none that is present.

    Here out is weight * mean over the present entries, and the weights are the folders' own.
    """
    n_columns = slices.shape[2]
    counts = np.empty(len(column_weights))
    for s in range(out.shape[0]):
        for f in range(out.shape[1]):
            row = out[s, f]
            row[:] = 0.0
            counts[:] = 0.0
            for m in range(member_starts[start + f], member_starts[start + f + 1]):
                for column in range(n_columns):
                    value = slices[s, members[m], column]
                    if value == value:
                        row[column] += value
                        counts[column] += 1.0
            for child in range(len(row) - 1):
                row[parents[child]] += row[child]
                counts[parents[child]] += counts[child]
            for g in range(len(row)):
                weight = row_weights[start + f] * column_weights[g]
                row[g] = row[g] * weight / counts[g] if counts[g] > 0.0 else np.nan


def add_overlaps(rows: Floats, out: Doubles) -> None:
    """out[i, j] += sum over the columns of min(rows[i], rows[j]), i <= j; the number of rows is a multiple of 4.

    |a - b| = a + b - 2 min(a, b), so the l_1 distance is out[i, i] + out[j, j] - 2 out[i, j], exactly 0 for equal
    rows, and a minimum is cheaper than a difference and its magnitude. Blocks of 4 x 4 pairs share their loads: 16
    sums in registers, which is why they are written out, in the rows' precision.
    """
    n_rows, n_columns = rows.shape
    zero = rows.dtype.type(0)
    for i in range(0, n_rows, 4):
        a0, a1, a2, a3 = rows[i], rows[i + 1], rows[i + 2], rows[i + 3]
        for j in range(i, n_rows, 4):
            b0, b1 = rows[j], rows[j + 1]
            b2, b3 = rows[j + 2], rows[j + 3]
            s00 = s10 = s20 = s30 = s01 = s11 = s21 = s31 = zero
            s02 = s12 = s22 = s32 = s03 = s13 = s23 = s33 = zero
            for k in range(n_columns):
                x0, x1, x2, x3 = a0[k], a1[k], a2[k], a3[k]
                y = b0[k]
                s00 += x0 if x0 < y else y
                s10 += x1 if x1 < y else y
                s20 += x2 if x2 < y else y
                s30 += x3 if x3 < y else y
                y = b1[k]
                s01 += x0 if x0 < y else y
                s11 += x1 if x1 < y else y
                s21 += x2 if x2 < y else y
                s31 += x3 if x3 < y else y
                y = b2[k]
                s02 += x0 if x0 < y else y
                s12 += x1 if x1 < y else y
                s22 += x2 if x2 < y else y
                s32 += x3 if x3 < y else y
                y = b3[k]
                s03 += x0 if x0 < y else y
                s13 += x1 if x1 < y else y
                s23 += x2 if x2 < y else y
                s33 += x3 if x3 < y else y
            block = out[i + 0, j : j + 4]
            block[0] += s00
            block[1] += s01
            block[2] += s02
            block[3] += s03
            block = out[i + 1, j : j + 4]
            block[0] += s10
            block[1] += s11
            block[2] += s12
            block[3] += s13
            block = out[i + 2, j : j + 4]
            block[0] += s20
            block[1] += s21
            block[2] += s22
            block[3] += s23
            block = out[i + 3, j : j + 4]
            block[0] += s30
            block[1] += s31
            block[2] += s32
            block[3] += s33


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


def mean_distances(points: Doubles, starts: Ints, out: Doubles) -> None:
    """out = mean distance between the members of each two clusters, pairs in the order (0, 1), (0, 2), …

    points are (coordinates, points), those of a cluster side by side, from ``starts`` on to the start of the next;
    the number of coordinates is a multiple of 4.
    """
    n_coordinates, n_points = points.shape
    squares, sums = np.empty(n_points), np.empty(n_points)
    pair = 0
    for i in range(len(starts) - 2):
        after = starts[i + 1]
        later = n_points - after  # points of later clusters; slices of them, because an index from 0 on is vector code
        total, square = sums[:later], squares[:later]
        total[:] = 0.0
        for point in range(starts[i], after):
            square[:] = 0.0
            for c in range(0, n_coordinates, 4):  # together: the sums are then read and written less often
                here0, here1, here2, here3 = (
                    points[c, point],
                    points[c + 1, point],
                    points[c + 2, point],
                    points[c + 3, point],
                )
                line0, line1 = points[c, after:], points[c + 1, after:]
                line2, line3 = points[c + 2, after:], points[c + 3, after:]
                for other in range(later):
                    gap0, gap1 = line0[other] - here0, line1[other] - here1
                    gap2, gap3 = line2[other] - here2, line3[other] - here3
                    square[other] += gap0 * gap0 + gap1 * gap1 + gap2 * gap2 + gap3 * gap3
            for other in range(later):
                total[other] += np.sqrt(square[other])
        if n_points == len(starts) - 1:  # every cluster is a point
            out[pair : pair + later] = total
            pair += later
            continue
        for j in range(i + 1, len(starts) - 1):
            size = starts[j + 1] - starts[j]
            mean = 0.0
            for other in range(size):
                mean += total[starts[j] - after + other]
            out[pair] = mean / ((after - starts[i]) * size)
            pair += 1


def pairs_of_free(
    gaps: Doubles, free: NDArray[np.bool_], least: float, limit: float, most: int
) -> tuple[Ints, Ints, Doubles]:
    """Both points and the gap of the pairs of which one is free at least, and whose gap is from ``least`` to ``limit``.

    ``gaps`` has all pairs in the order (0, 1), (0, 2), …; not more than ``most`` of them lie there.
    """
    n = len(free)
    first, second, chosen = np.empty(most, dtype=np.int64), np.empty(most, dtype=np.int64), np.empty(most)
    places = np.flatnonzero(free)
    count, start, before = 0, 0, 0
    for i in range(n):
        row = gaps[start : start + n - 1 - i]
        start += n - 1 - i
        before += free[i]
        if free[i]:
            for j in range(len(row)):
                if least <= row[j] < limit:
                    first[count], second[count], chosen[count] = i, i + 1 + j, row[j]
                    count += 1
        else:
            for j in places[before:]:
                gap = row[j - i - 1]
                if least <= gap < limit:
                    first[count], second[count], chosen[count] = i, j, gap
                    count += 1
    return first[:count], second[:count], chosen[:count]


def join_closest(
    first: Ints,
    second: Ints,
    gaps: Doubles,
    limit: float,
    error: float,
    home: Ints,
    size: Ints,
    free: NDArray[np.bool_],
) -> None:
    """Join points, visited in pairs, into clusters: ``home`` comes as 0, 1, … and leaves as each point's cluster.

    Two free points join; a free point joins a cluster of size s when its gap is below limit * 2^(1 - s). ``size`` of
    the clusters comes as ones, ``free`` as all true; more pairs may follow in another call.
    """
    left = free.sum()
    for pair in range(len(gaps)):
        if left == 0:
            break
        i, j = first[pair], second[pair]
        if not free[i]:
            i, j = j, i
        if not free[i] or (not free[j] and gaps[pair] >= limit * 2.0 ** (1 - size[home[j]]) - error):
            continue
        left -= 2 if free[j] else 1
        home[i] = home[j]
        size[home[j]] += 1
        free[i] = free[j] = False
