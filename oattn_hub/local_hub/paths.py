"""Names of files in a repo."""

from __future__ import annotations

import re

from oattn_hub.local_hub.faults import Fault

_MAX_DEPTH = 32
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f\\\ud800-\udfff]")  # control characters, backslashes, half characters


def check_path(path: object) -> str:
    """Refuse names that could lead out of a folder, or that git could not hold."""
    parts = path.split("/") if isinstance(path, str) and len(path) <= 1000 else []
    outside = any(part in ("", ".", "..") or part.lower() == ".git" or _FORBIDDEN.search(part) for part in parts)
    if not parts or outside or len(parts) > _MAX_DEPTH:
        raise Fault(400, f"{str(path)[:100]!r} is not a valid path in a repo")
    return str(path)
