"""Names for what many rooms hand to each other: arrays, and what a JSON file can hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

#: An array of numbers; shape and meaning stand where it is used.
Array = NDArray[Any]

#: What a JSON file can hold.
Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]

#: A JSON object that is written; what is read is narrowed before it is used.
JsonObject = dict[str, Json]

#: A function of torch as hooks and function modes see it, and what it is called with by place and by name: of any kind.
Function = Callable[..., Any]
Args = tuple[Any, ...]
Kwargs = dict[str, Any]
