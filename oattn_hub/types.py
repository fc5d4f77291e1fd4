"""Names for what many rooms hand to each other: arrays, and what a JSON file can hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

#: An array of numbers; shape and meaning stand where it is used.
Array = NDArray[Any]

#: What a JSON file can hold.
Json = None | bool | int | float | str | Sequence["Json"] | Mapping[str, "Json"]
