"""Sizes of files in words."""

from __future__ import annotations

import re

from oattn_hub.errors import InvalidInput

_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}


def parse_size(size: int | str, name: str = "max_shard_size") -> int:
    """A size in bytes, as a number or with a unit.

    >>> parse_size("5GB"), parse_size("200 mb"), parse_size(1000)
    (5000000000, 200000000, 1000)
    """
    found = re.fullmatch(r"(\d{1,12}) ?([KMGT]?B)?", str(size).strip(), re.IGNORECASE)
    if found is None or not int(found[1]):
        raise InvalidInput(f"{name} is {size!r}; give a size such as 5GB or 200MB.")
    return int(found[1]) * _UNITS[(found[2] or "B").upper()]
