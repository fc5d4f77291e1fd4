"""Dataclasses to JSON and back: what is written is read, everything else is one clear error."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

import pytest

from oattn_hub.codec import decode, encode
from oattn_hub.errors import FormatError
from oattn_hub.records import ModelInfo, Provenance, Settings


@dataclass(frozen=True)
class Inner:
    numbers: tuple[float, ...] = ()
    pair: tuple[int, int] = (0, 0)


class Named(TypedDict, total=False):
    share: float
    looks: list[Inner]


@dataclass(frozen=True)
class Outer:
    name: str
    inner: Inner
    count: int | None = None
    kind: Literal["cut", "masked"] = "cut"
    table: Mapping[str, list[int]] = field(default_factory=dict)
    free: Any = None
    named: Named = field(default_factory=lambda: Named())


WHOLE = Outer("x", Inner((1.0, math.inf, -math.inf), (2, 3)), 4, "masked", {"a": [1, 2]}, {"any": ["thing"]})


@pytest.mark.parametrize(
    "record",
    [
        WHOLE,
        Outer("", Inner()),
        ModelInfo("me/bert", removed=((0, 1), (2, 3)), options={"task": "base"}),
        Settings("probs", 6, 128, 0, {"n_iters": 3, "median": "published"}),
        Provenance("text", "f" * 64, "oattn analyze x", seconds={"load": 1.5}),
    ],
)
def test_a_record_comes_back_from_its_json(record: Any) -> None:
    assert decode(type(record), json.loads(json.dumps(encode(record), allow_nan=False))) == record


def test_nan_comes_back() -> None:
    assert math.isnan(decode(Inner, encode(Inner((math.nan,)))).numbers[0])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"surprise": 1}, r"Outer has unknown fields \['surprise'\]"),
        ({"name": 7}, r"Outer.name is 7, expected a text"),
        ({"count": True}, r"Outer.count is True, expected a whole number"),
        ({"count": 1.5}, r"Outer.count is 1.5, expected a whole number"),
        ({"kind": "sawn"}, r"Outer.kind is 'sawn', expected one of \['cut', 'masked'\]"),
        ({"inner": [1]}, r"Outer.inner is \[1\], expected an object"),
        ({"inner": {"numbers": [1, "two"]}}, r"Outer.inner.numbers\[1\] is 'two', expected a number"),
        ({"inner": {"numbers": "12"}}, r"Outer.inner.numbers is '12', expected a list"),
        ({"inner": {"pair": [1]}}, r"Outer.inner.pair has 1 entries, expected 2"),
        ({"table": {"a": [None]}}, r"Outer.table.a\[0\] is None, expected a whole number"),
        ({"inner": {"numbers": [10**400]}}, r"too large"),
        ({"named": [1]}, r"Outer.named is \[1\], expected an object"),
        ({"named": {"share": "half"}}, r"Outer.named.share is 'half', expected a number"),
        ({"named": {"looks": [{"numbers": 1}]}}, r"Outer.named.looks\[0\].numbers is 1, expected a list"),
    ],
)
def test_anything_else_is_one_sentence(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(FormatError, match=sentence):
        decode(Outer, {**encode(WHOLE), **change})


def test_names_that_a_dict_of_known_names_does_not_know_stay() -> None:
    entry = {"share": 1, "of a later version": ["thing"]}
    assert decode(Outer, {**encode(WHOLE), "named": entry}).named == entry


def test_a_missing_field_is_named() -> None:
    with pytest.raises(FormatError, match=r"Outer lacks name, inner"):
        decode(Outer, {"count": 1})


def test_what_no_file_may_set_is_unknown_to_files() -> None:
    with pytest.raises(FormatError, match=r"unknown fields \['free'\]"):
        decode(Outer, encode(WHOLE), leave_out=("free",))
