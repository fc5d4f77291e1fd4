"""Dataclasses to JSON and back, by their annotations: what is written can be read, and nothing else is.

Every file of ours goes through here, so that an unknown field, a missing one or one of the wrong type is one clear
error wherever it stands. Numbers that JSON does not have (NaN, infinities) are written as texts.

>>> from dataclasses import dataclass
>>> @dataclass(frozen=True)
... class Point:
...     x: float
...     name: str = ""
>>> encode(Point(1.5))
{'x': 1.5, 'name': ''}
>>> decode(Point, {"x": 2})
Point(x=2.0, name='')
>>> decode(Point, {"x": "two"})
Traceback (most recent call last):
oattn_hub.errors.FormatError: Point.x is 'two', expected a number.
"""

from __future__ import annotations

import math
import sys
import types
import typing
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, TypeVar, cast

from oattn_hub.errors import FormatError
from oattn_hub.types import Json, JsonObject

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Record = TypeVar("Record")

_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_NAMES: dict[object, str] = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    type(None): "null",
}


def encode(value: object) -> Json:
    """Plain JSON values of a dataclass, or of anything that one may hold."""
    if is_dataclass(value) and not isinstance(value, type):
        return encode_record(value)
    if isinstance(value, Mapping):
        return {str(name): encode(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [encode(entry) for entry in value]
    if isinstance(value, float) and not math.isfinite(value):
        return next(name for name, number in _NOT_FINITE.items() if repr(number) == repr(float(value)))
    return cast("Json", value)  # what a record of ours holds beside these is plain


def encode_record(record: object) -> JsonObject:
    """The JSON object of a dataclass, whose fields are in the order they are declared in."""
    return {item.name: encode(getattr(record, item.name)) for item in _fields(record)}


def decode(
    record: type[Record], value: Json, place: str = "", leave_out: tuple[str, ...] = (), **given: object
) -> Record:
    """The dataclass back from what :func:`encode` gave.

    Args:
        record: The dataclass.
        value: What was read.
        place: Its name in errors.
        leave_out: Fields that no file may set; they keep their defaults.
        given: Fields that were read already, by name.
    """
    where = place or record.__name__
    if not isinstance(value, Mapping):
        raise FormatError(f"{where} is {_shown(value)}, expected an object with named fields.")
    hints = _hints(cast(Hashable, record), (*leave_out, *given))
    if unknown := sorted(str(name) for name in value if name not in hints):
        raise FormatError(f"{where} has unknown fields {unknown}; known are {sorted(hints)}.")
    required = [item.name for item in _fields(record) if item.default is item.default_factory is MISSING]
    if missing := [name for name in required if name not in (*value, *given)]:
        raise FormatError(f"{where} lacks {', '.join(missing)}.")
    return record(**{name: _decode(hints[name], entry, f"{where}.{name}") for name, entry in value.items()}, **given)


def _fields(record: object) -> tuple[Field[object], ...]:
    """Of a dataclass, or of an instance of one."""
    return fields(cast("DataclassInstance", record))


@cache
def _hints(record: Hashable, leave_out: tuple[str, ...]) -> dict[str, object]:
    """The fields' types; those left out are not looked at, they may be known to type checkers only."""
    found: dict[str, object] = {}
    for item in _fields(record):
        if item.init and item.name not in leave_out:
            owner = next(cls for cls in cast(type, record).__mro__ if item.name in vars(cls).get("__annotations__", {}))
            one = types.SimpleNamespace(__annotations__={item.name: item.type})
            found |= typing.get_type_hints(one, vars(sys.modules[owner.__module__]))
    return found


def _decode(hint: object, value: Json, where: str) -> object:
    if hint is Any:
        return value
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return _decode_union(arguments, value, where)
    if origin is typing.Literal:
        if value not in arguments or isinstance(value, bool):
            raise FormatError(f"{where} is {_shown(value)}, expected one of {list(arguments)}.")
        return value
    if is_dataclass(hint):
        return decode(cast(type, hint), value, where)
    if origin in (tuple, list) or origin is Sequence:
        return _decode_sequence(origin, arguments, value, where)
    if typing.is_typeddict(hint):
        return _decode_named(hint, value, where)
    if origin in (dict, Mapping):
        if not isinstance(value, Mapping):
            raise FormatError(f"{where} is {_shown(value)}, expected an object with named entries.")
        return {str(name): _decode(arguments[1], entry, f"{where}.{name}") for name, entry in value.items()}
    return _decode_plain(hint, value, where)


def _decode_named(hint: object, value: Json, where: str) -> dict[str, object]:
    """A dict with known names; others stay as they are, since a later version may have more to say."""
    if not isinstance(value, Mapping):
        raise FormatError(f"{where} is {_shown(value)}, expected an object with named entries.")
    known = typing.get_type_hints(cast(type, hint))
    return {
        str(name): _decode(known[name], entry, f"{where}.{name}") if name in known else entry
        for name, entry in value.items()
    }


def _decode_union(choices: tuple[object, ...], value: Json, where: str) -> object:
    if value is None and type(None) in choices:
        return None
    errors = []
    for choice in choices:
        try:
            if choice is not type(None):
                return _decode(choice, value, where)
        except FormatError as error:
            errors.append(error)
    raise errors[0]


def _decode_sequence(origin: object, arguments: tuple[object, ...], value: Json, where: str) -> object:
    if not isinstance(value, list | tuple):
        raise FormatError(f"{where} is {_shown(value)}, expected a list.")
    if origin is tuple and not (len(arguments) == 2 and arguments[1] is Ellipsis):
        if len(value) != len(arguments):
            raise FormatError(f"{where} has {len(value)} entries, expected {len(arguments)}.")
        hints: Sequence[object] = arguments
    else:
        hints = [arguments[0]] * len(value)
    found = [_decode(hint, entry, f"{where}[{index}]") for index, (hint, entry) in enumerate(zip(hints, value))]  # noqa: B905
    return found if origin is list else tuple(found)


def _decode_plain(hint: object, value: Json, where: str) -> object:
    if hint is float:
        if isinstance(value, str) and value in _NOT_FINITE:
            return _NOT_FINITE[value]
        if isinstance(value, int | float) and not isinstance(value, bool):
            try:
                return float(value)
            except OverflowError as error:
                raise FormatError(f"{where} is a number too large to be read.") from error
    elif type(value) is hint:
        return value
    raise FormatError(f"{where} is {_shown(value)}, expected {_NAMES.get(hint, hint)}.")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
