"""A few contexts a report keeps, so that a head can be looked at where it attends: tokens, pictures, seconds.

An attention matrix is kept at full resolution (up to ``LONGEST_SIDE``) as one deflated byte per entry. Code 0 is a
masked entry. Probabilities are coded on a logarithmic scale, three codes per octave, so that a value read back is right
to 12 %; scores and logits linearly between the head's smallest and largest value. What does not fit into the head's
share of bytes is smoothed: its most unusual entries stay as they are, the others become the mean of their block of
1/16 x 1/16 of the matrix. Nothing is computed from these codes.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from oattn_hub.errors import FormatError
from oattn_hub.records import JsonRecord
from oattn_hub.types import Array

LONGEST_SIDE = 512
MOST_CONTEXTS = 3
_PER_OCTAVE, _OCTAVES = 3, 15
_PROBABILITY_CODES = 1 + _PER_OCTAVE * _OCTAVES  # code 46 is 1, code 1 is 2**-15 or less
LINEAR_CODES = 63
_BLOCKS = 16
# Of all heads and contexts of a report together. Few entries are kept as they are, many share what a page has room for.
_SMALL, _BYTES_PER_ENTRY, _MOST_BYTES = 1_000_000, 0.28, 1_900_000
_FEW_ENTRIES = 3_500_000  # above this many entries per context, two contexts are kept instead of three


@dataclass(frozen=True)
class Axis(JsonRecord):
    """What the positions of a model's argument are.

    Args:
        name: the argument, e.g. ``input_ids``.
        kind: ``text``, ``image`` or ``time``.
        length: how many positions the attention has for it.
        tokens: of text, what each position says.
        picture: of an image, the picture as the model saw it, a JPEG in base64; ``rows`` x ``columns`` patches come
            after ``prefix`` positions that belong to no patch.
        seconds: of time, how long all positions together last.
    """

    name: str
    kind: str
    length: int
    tokens: tuple[str, ...] = ()
    picture: str = ""
    rows: int = 0
    columns: int = 0
    prefix: int = 0
    seconds: float = 0.0


@dataclass(frozen=True)
class Context(JsonRecord):
    """One input of the analysis: its batch, and what its positions are."""

    batch: int
    axes: tuple[Axis, ...]

    def axis(self, length: int, decoder: bool = False) -> Axis | None:
        """The axis with so many positions; the decoder's own comes first where it is asked for.

        Time is time however many positions share it, so that attention of merged positions is read in seconds too.
        """
        merged = [
            replace(axis, length=length) for axis in self.axes if axis.kind == "time" and 1 < length < axis.length
        ]
        fitting = [axis for axis in self.axes if axis.length == length] or merged
        return min(fitting, key=lambda axis: axis.name.startswith("decoder") != decoder, default=None)


@dataclass(frozen=True, eq=False)
class Sample:
    """The attention of all heads of a group in one context, and the trees that organise it.

    Args:
        batch: which context.
        kind: what the entries are: probs, scores or logits.
        query_labels, key_labels: (levels, n) trees of this context.
        shape: (2,) rows and columns of the matrices kept here; smaller than the attention if that is very long.
        low, high: (H,) the range of linear codes; of probabilities they are not used.
        codes, offsets: all deflated matrices one after the other, and (H + 1,) where each begins.
    """

    batch: int
    kind: str
    query_labels: Array
    key_labels: Array
    shape: Array
    low: Array
    high: Array
    codes: Array
    offsets: Array

    @property
    def query_order(self) -> Array:
        """The rows of a matrix in the order of the query tree."""
        return _reduced_order(np.argsort(self.query_labels[-1]), int(self.shape[0]))

    @property
    def key_order(self) -> Array:
        """The columns of a matrix in the order of the key tree."""
        return _reduced_order(np.argsort(self.key_labels[-1]), int(self.shape[1]))

    def stream(self, head: int) -> bytes:
        """The deflated codes of one head (its position on the head axis)."""
        start, stop = self.offsets[head : head + 2].tolist()
        return bytes(self.codes[start:stop].tobytes())

    def matrix(self, head: int) -> Array:
        """(rows, columns) values of one head, NaN where masked."""
        rows, columns = self.shape.tolist()
        try:
            content = zlib.decompressobj().decompress(self.stream(head), rows * columns + 1)
        except zlib.error as error:
            raise FormatError(
                f"The attention kept of head {head} is damaged ({error}); make the report again."
            ) from error
        if len(content) != rows * columns:
            raise FormatError(f"The attention kept of head {head} is damaged; make the report again.")
        table = code_values(self.kind, float(self.low[head]), float(self.high[head]))
        codes = np.frombuffer(content, np.uint8).reshape(rows, columns)
        return np.asarray(table[np.minimum(codes, len(table) - 1)])


_SAMPLE_ARRAYS = ("query_labels", "key_labels", "shape", "low", "high", "codes", "offsets")


def sample_arrays(samples: Sequence[Sample]) -> dict[str, Array]:
    """The samples as arrays with names; :func:`samples_from` takes them back."""
    return {f"sample/{s.batch}/{s.kind}/{name}": getattr(s, name) for s in samples for name in _SAMPLE_ARRAYS}


def samples_from(arrays: Mapping[str, Array]) -> tuple[Sample, ...]:
    """The samples among a group's arrays; none in a report of before they were kept."""
    found: dict[tuple[int, str], dict[str, Array]] = {}
    for path, array in arrays.items():
        if path.startswith("sample/"):
            _, batch, kind, name = path.split("/")
            found.setdefault((int(batch), kind), {})[name] = array
    samples = tuple(Sample(batch, kind, **parts) for (batch, kind), parts in sorted(found.items()))
    for sample in samples:
        _check_sample(sample)
    return samples


def _check_sample(sample: Sample) -> None:
    """Refuse a sample out of a file that would take more room than any we keep, or does not fit itself."""
    whole = all(part.dtype.kind in "iu" for part in (sample.shape, sample.offsets, sample.codes))
    sides = sample.shape.tolist() if whole and sample.shape.shape == (2,) else []
    ends = sample.offsets.tolist() if whole and sample.offsets.ndim == 1 else []
    sized = len(sides) == 2 and all(1 <= side <= LONGEST_SIDE for side in sides)
    ordered = len(ends) == len(sample.low) + 1 == len(sample.high) + 1 and ends == sorted(ends)
    trees = all(labels.ndim == 2 and labels.size for labels in (sample.query_labels, sample.key_labels))
    if not (sized and ordered and trees and ends[0] == 0 and ends[-1] == sample.codes.size):
        raise FormatError(f"The attention kept of batch {sample.batch} is damaged; make the report again.")


def contexts_kept(shapes: Sequence[tuple[int, int, int]], n_batches: int) -> int:
    """How many contexts a report keeps of groups with these (query, key, head) shapes."""
    return min(n_batches, MOST_CONTEXTS if _entries(shapes) <= _FEW_ENTRIES else 2)


def bytes_per_entry(shapes: Sequence[tuple[int, int, int]], n_contexts: int) -> float:
    """How many bytes an entry may take so that all of them fit into a page one can mail."""
    entries = _entries(shapes) * n_contexts
    return min(1.0, max(_SMALL / entries, min(_BYTES_PER_ENTRY, _MOST_BYTES / entries)))


def _entries(shapes: Sequence[tuple[int, int, int]]) -> int:
    return sum(min(q, LONGEST_SIDE) * min(k, LONGEST_SIDE) * heads for q, k, heads in shapes)


def keep_sample(X: Array, kind: str, batch: int, query_labels: Array, key_labels: Array, per_entry: float) -> Sample:
    """Code one context's (query, key, head) tensor."""
    streams, lows, highs = [], [], []
    for head in range(X.shape[2]):
        values = _shortened(np.asarray(X[:, :, head], dtype=np.float64))
        present = values[~np.isnan(values)]
        low, high = (float(present.min()), float(present.max())) if present.size else (0.0, 0.0)
        streams.append(_fitted(values, kind, low, high, int(per_entry * values.size)))
        lows.append(low)
        highs.append(high)
    return Sample(
        batch=batch,
        kind=kind,
        query_labels=query_labels,
        key_labels=key_labels,
        shape=np.array(values.shape),
        low=np.array(lows, dtype=np.float32),
        high=np.array(highs, dtype=np.float32),
        codes=np.frombuffer(b"".join(streams), np.uint8),
        offsets=np.concatenate([[0], np.cumsum([len(stream) for stream in streams])]).astype(np.int64),
    )


def code_values(kind: str, low: float, high: float) -> Array:
    """What each code stands for; code 0 is NaN.

    >>> code_values("probs", 0, 1)[[46, 43]].tolist()
    [1.0, 0.5]
    """
    if kind == "probs":
        values = 2.0 ** ((np.arange(_PROBABILITY_CODES + 1) - _PROBABILITY_CODES) / _PER_OCTAVE)
    else:
        values = low + (np.arange(LINEAR_CODES + 1) - 1) * (high - low) / (LINEAR_CODES - 1)
    values[0] = np.nan
    return np.asarray(values)


def _fitted(values: Array, kind: str, low: float, high: float, budget: int) -> bytes:
    """The deflated codes; smoothed as much as it takes to fit."""
    # MiniLM's heads take about 0.55 bytes per entry unsmoothed, and less than in proportion when part of it is smoothed
    share = min(1.0, (budget / values.size / 0.55) ** 1.6)
    while True:
        kept = values if share >= 1.0 else _smoothed(values, share)
        stream = zlib.compress(_coded(kept, kind, low, high).tobytes(), 6)
        if len(stream) <= budget or share < 1e-4:
            return stream
        share *= min(0.8, 0.9 * budget / len(stream))


def _coded(values: Array, kind: str, low: float, high: float) -> Array:
    present = ~np.isnan(values)
    filled = np.where(present, values, low)
    if kind == "probs":
        places = _PROBABILITY_CODES + _PER_OCTAVE * np.log2(np.maximum(filled, 2.0**-_OCTAVES))
        codes = np.clip(np.rint(places), 1, _PROBABILITY_CODES)
    else:
        codes = 1 + np.rint((filled - low) * (LINEAR_CODES - 1) / ((high - low) or 1.0))
    return np.where(present, codes, 0).astype(np.uint8)


def _smoothed(values: Array, share: float) -> Array:
    """This share of the entries as they are, the furthest from the mean of their block; the others are that mean."""
    present = ~np.isnan(values)
    distance = np.where(present, np.abs(values - _block_means(values, present)), 0.0)
    least = np.partition(distance.ravel(), -max(1, int(share * values.size)))[-max(1, int(share * values.size))]
    usual = present & (distance < least)
    return np.where(usual, _block_means(values, usual), values)


def _block_means(values: Array, counted: Array) -> Array:
    """The mean of the counted entries of each entry's block; 0 in a block that has none."""
    sums, rows, columns = _by_block(np.where(counted, values, 0.0))
    counts = _by_block(counted.astype(np.float64))[0]
    return np.asarray((sums / np.maximum(counts, 1))[np.ix_(rows, columns)])


def _by_block(values: Array) -> tuple[Array, Array, Array]:
    """Sums over blocks, and the block of each row and column."""
    starts = [np.unique(np.arange(_BLOCKS) * n // _BLOCKS) for n in values.shape]
    sums = np.add.reduceat(np.add.reduceat(values, starts[0], axis=0), starts[1], axis=1)
    rows, columns = (np.searchsorted(s, np.arange(n), "right") - 1 for s, n in zip(starts, values.shape, strict=True))
    return sums, rows, columns


def _shortened(values: Array) -> Array:
    """Means over consecutive positions where a side is longer than what is kept."""
    for axis, n in enumerate(values.shape):
        if n > LONGEST_SIDE:
            starts = np.arange(LONGEST_SIDE) * n // LONGEST_SIDE
            present = ~np.isnan(values)
            totals = np.add.reduceat(np.where(present, values, 0.0), starts, axis=axis)
            counts = np.add.reduceat(present, starts, axis=axis, dtype=np.int64)
            values = np.divide(totals, counts, out=np.full_like(totals, np.nan), where=counts > 0)
    return values


def _reduced_order(order: Array, length: int) -> Array:
    """The order of shortened positions: each where its first position comes."""
    if len(order) == length:
        return order
    places = np.empty(len(order))
    places[order] = np.arange(len(order))
    return np.argsort(places[np.arange(length) * len(order) // length], kind="stable")
