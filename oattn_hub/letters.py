"""What somebody else wrote, made harmless for the place where it is shown."""

from __future__ import annotations

import re

_TURNING = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"

TURNING = re.compile(f"[{_TURNING}]")
"""Letters that turn the direction of what follows: with them a name is read as another."""

STEERING = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f{_TURNING}]")
"""The same, and what a terminal obeys instead of showing it; line feed and tab may stay."""

CONTROL = re.compile(f"[\x00-\x1f\x7f-\x9f\u2028\u2029{_TURNING}]")
"""The same, and every way to begin a new line."""


def spreadsheet_text(text: str) -> str:
    """A text that no spreadsheet computes: one that starts like a formula gets an apostrophe.

    >>> spreadsheet_text("=1+1"), spreadsheet_text("encoder")
    ("'=1+1", 'encoder')
    """
    return f"'{text}" if text[:1] in ("=", "+", "-", "@", "\t", "\r") else text
