"""The report's theory section: what was found about the paper's first half, and its drawings."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oattn_hub import codec
from oattn_hub.errors import FormatError
from oattn_hub.geometry.softmax import TOLERANCE, Agreement, HeadInvariance
from oattn_hub.report.samples import decode, display_matrix, encode, value_range
from oattn_hub.report.theme import MATRIX_MAP, SERIES
from oattn_hub.report.theory_words import group_findings
from oattn_hub.types import JsonObject

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_PICTURE_SIDE = 128
Float = NDArray[np.float64]


@dataclass(frozen=True)
class TheoryHead(HeadInvariance):
    """One head against the theorem and the corollary, with its place in the model."""

    layer: int
    head: int


@dataclass(frozen=True)
class Picture:
    """A matrix to look at: at most 128 x 128 block means, one byte per entry (see ``samples``)."""

    rows: int
    columns: int
    low: float
    high: float
    kind: str
    codes: str

    def __post_init__(self) -> None:
        if min(self.rows, self.columns) < 1 or len(base64.b64decode(self.codes)) != self.rows * self.columns:
            raise ValueError(f"a picture of {self.rows} x {self.columns} has codes of another length")

    @staticmethod
    def pair(left: Float, right: Float, kind: str) -> tuple[Picture, Picture]:
        """Two pictures on one scale."""
        small = [display_matrix(matrix[:, :, None], kind, side=_PICTURE_SIDE) for matrix in (left, right)]
        low, high = value_range(*small)

        def picture(matrix: Float) -> Picture:
            codes = base64.b64encode(encode(matrix, low, high).tobytes()).decode()
            return Picture(matrix.shape[1], matrix.shape[2], float(low[0]), float(high[0]), kind, codes)

        return picture(small[0]), picture(small[1])

    def values(self) -> Float:
        """The matrix, to the precision of a byte."""
        codes = np.frombuffer(base64.b64decode(self.codes), np.uint8).reshape(self.rows, self.columns)
        return np.asarray(decode(codes, self.low, self.high, self.kind), dtype=np.float64)


@dataclass(frozen=True)
class Example:
    """The pictures of one head: the paper's Fig. 1 (original, organised) and Fig. 2 (expansion, softmax)."""

    layer: int
    head: int
    original: Picture
    organised: Picture
    expansion: Picture
    softmax: Picture


@dataclass(frozen=True)
class TheoryGroup:
    """What was found on the heads of one group.

    Attributes:
        masked: share of the pairs the model never attends to; its logits are taken before that mask.
        example: the head whose expansion error is the median one.
    """

    name: str
    n_queries: int
    n_keys: int
    masked: float
    heads: tuple[TheoryHead, ...]
    agreements: tuple[Agreement, ...]
    example: Example


@dataclass(frozen=True)
class TheorySection:
    """Theorem 1 and Corollary 1 on every head of a model, from its first batch."""

    groups: tuple[TheoryGroup, ...]

    @property
    def heads(self) -> list[TheoryHead]:
        """The records of all groups."""
        return [head for group in self.groups for head in group.heads]

    @property
    def findings(self) -> list[str]:
        """What was found, a sentence or two each; where the theory fails, they say so."""
        several = len(self.groups) > 1
        return [f"{group.name}: {line}" if several else line for group in self.groups for line in group_findings(group)]

    @classmethod
    def join(cls, sections: Iterable[TheorySection]) -> TheorySection:
        """One section of the groups of several."""
        return cls(tuple(group for section in sections for group in section.groups))

    def to_json(self) -> JsonObject:
        """Plain values; numbers that are not finite become null."""
        return {"groups": [_finite(asdict(group)) for group in self.groups]}

    @classmethod
    def from_json(cls, value: Any) -> TheorySection:
        """The section that ``to_json`` described."""
        try:
            return cls(tuple(_read_group(group) for group in value["groups"]))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise FormatError(f"This is not a theory section ({error}). Make the report again.") from error

    def draw_organisation(self, ax: Axes) -> Axes:
        """One head's logits in token order and organised (Fig. 1)."""
        example = self.groups[0].example
        _side_by_side(ax, example.original, example.organised, ("token order", "organised"))
        ax.set_title(f"Logits of layer {example.layer}, head {example.head}")
        return ax

    def draw_expansion(self, ax: Axes) -> Axes:
        """The second-order expansion of the same head beside its softmax (Fig. 2)."""
        example = self.groups[0].example
        _side_by_side(ax, example.expansion, example.softmax, ("expansion (Theorem 1)", "softmax"))
        record = next(r for r in self.groups[0].heads if (r.layer, r.head) == (example.layer, example.head))
        ax.set_title(f"Layer {example.layer}, head {example.head}, organised; relative error {record.error:.2f}")
        return ax

    def draw_exponents(self, ax: Axes) -> Axes:
        """Exponent of every head against that of its residual; the theorem puts them on the line."""
        x, y = (np.array([getattr(head, name) for head in self.heads]) for name in ("holder", "residual_holder"))
        ax.axvspan(0, 0.5, color=SERIES[2], alpha=0.15, lw=0, label="assumed: 0 < α < ½")
        ax.plot([0, 0.5], [0, 1], color=SERIES[2], lw=1.5, label="claimed: residual 2α")
        ax.plot(x, y, "o", ms=4, color=SERIES[0], alpha=0.7, ls="", label=f"{len(x)} heads")
        ax.set(xlabel="mixed Hölder exponent α, organised", ylabel="exponent of the residual")
        ax.set_title("Regularity of the heads and of what the expansion misses")
        ax.legend(loc="best")
        return ax

    def draw_errors(self, ax: Axes) -> Axes:
        """Relative error of every head, each curve sorted: expansion, as printed, corollary."""
        curves = (
            ("error", "expansion with boundary terms", SERIES[0]),
            ("error_as_printed", "as printed (eq. 12)", SERIES[1]),
            ("corollary_error_scaled", "Corollary 1, scaled at will", SERIES[5]),
        )
        for name, label, colour in curves:
            ax.plot(np.sort([getattr(head, name) for head in self.heads]), color=colour, lw=1.6, label=label)
        ax.axhline(TOLERANCE, color="grey", lw=0.8, ls="--", label=f"holds ({100 * TOLERANCE:.0f} %)")
        ax.set(xlabel="heads, sorted", ylabel="relative error of softmax", ylim=(0, None))
        ax.set_title("How far the theory is from softmax")
        ax.legend(loc="best")
        return ax


def _side_by_side(ax: Axes, left: Picture, right: Picture, names: tuple[str, str]) -> None:
    """Two pictures on one axes and one scale, a gap between them."""
    gap = max(1, left.columns // 16)
    both = np.hstack([left.values(), np.full((left.rows, gap), np.nan), right.values()])
    if left.kind == "probs":  # attention spans orders of magnitude; see samples
        both = np.sqrt(both)
    brightest = float(np.nanpercentile(both, 99.5))  # one sink key must not leave all else dark
    ax.imshow(both, cmap=MATRIX_MAP, interpolation="nearest", aspect="auto", vmax=brightest)
    centres = (left.columns - 1) / 2, left.columns + gap + (right.columns - 1) / 2
    ax.set_xticks(centres, names)
    ax.tick_params(length=0)
    ax.set_yticks([])
    ax.set(xlabel="keys", ylabel="queries")
    for spine in ax.spines.values():
        spine.set_visible(False)


def _finite(value: Any) -> Any:
    """The same value with null for every number that JSON cannot say."""
    if isinstance(value, dict):
        return {name: _finite(entry) for name, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(entry) for entry in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _read_group(value: dict[str, Any]) -> TheoryGroup:
    lists = {name: [_numbers(record) for record in value[name]] for name in ("heads", "agreements")}
    return codec.decode(TheoryGroup, {**value, **lists}, "The theory")


def _numbers(record: dict[str, Any]) -> dict[str, Any]:
    return {name: math.nan if value is None else value for name, value in record.items()}
