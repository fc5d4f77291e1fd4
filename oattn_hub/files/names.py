"""Names that may become file names."""

from __future__ import annotations

import re
from pathlib import Path

from oattn_hub.files.fingerprints import fingerprint

_SAFE = re.compile(r"[\w-][\w.-]{0,99}", re.ASCII)
_RESERVED = re.compile(r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?", re.IGNORECASE)


def safe_name(text: str) -> str:
    """One part of a path, never more: a plain name as it is, any other with a mark that keeps names apart.

    >>> safe_name("encoder-128x128"), safe_name("../../.ssh/keys")
    ('encoder-128x128', 'ssh_keys-421c9d23')
    """
    if _SAFE.fullmatch(text) and not _RESERVED.fullmatch(text) and not text.endswith("."):
        return text
    letters = re.sub(r"[^A-Za-z0-9-]+", "_", text).strip("_-")[:60] or "name"
    return f"{letters}-{fingerprint(text)[:8]}"


def exists_here(text: str) -> bool:
    """Whether there is a file or folder of that name; what cannot be a name (too long, with a NUL) is none.

    >>> exists_here("."), exists_here("x" * 5000), exists_here("a\\0b")
    (True, False, False)
    """
    try:
        return Path(text).exists()
    except (OSError, ValueError):
        return False


def is_folder(text: str) -> bool:
    """The same for a folder."""
    return exists_here(text) and Path(text).is_dir()
