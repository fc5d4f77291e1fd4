"""What files are called by their content, on this side of the connection."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from oattn_hub.hub.selection import visible_files

if TYPE_CHECKING:
    from huggingface_hub.hf_api import RepoSibling

_BLOCK = 1 << 20


@dataclass(frozen=True)
class ContentId:
    """A content's size and its two names: SHA-256 for large files, git's SHA-1 for the others."""

    size: int
    sha256: str
    git_oid: str

    @classmethod
    def of(cls, path: Path) -> ContentId:
        """Read the file once and name it."""
        size = path.stat().st_size
        sha256, git = hashlib.sha256(), hashlib.sha1(b"blob %d\x00" % size, usedforsecurity=False)
        with path.open("rb") as stream:
            while block := stream.read(_BLOCK):
                sha256.update(block)
                git.update(block)
        return cls(size, sha256.hexdigest(), git.hexdigest())

    def is_remote(self, sibling: RepoSibling) -> bool:
        """Whether a file on the Hub has this content."""
        return self.sha256 == sibling.lfs.sha256 if sibling.lfs else self.git_oid == sibling.blob_id

    def is_called(self, name: str) -> bool:
        """Whether that is a name for this content: the cache of downloads calls files so."""
        return name in (self.sha256, self.git_oid)


def content_ids(folder: Path) -> dict[str, ContentId]:
    """The content of every file under a folder that may be published, by its path with forward slashes."""
    return {name: ContentId.of(folder / name) for name in visible_files(folder)}
