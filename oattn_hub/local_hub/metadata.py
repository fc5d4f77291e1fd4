"""What a README's front matter says about a repo, and whether the Hub would take it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from oattn_hub.hub.front_matter import listed, parse_front_matter
from oattn_hub.local_hub.blobs import BlobStore
from oattn_hub.local_hub.faults import Fault
from oattn_hub.local_hub.repos import Commit


def check_card(readme: str) -> None:
    """Refuse a card that the Hub would refuse."""
    try:
        parse_front_matter(readme)
    except ValueError as error:
        raise Fault(400, f"Invalid metadata in README.md: {error}") from error


def card_data(blobs: BlobStore, commit: Commit) -> dict[str, Any]:
    """The metadata of a commit's README; nothing if it has none."""
    entry = commit.files.get("README.md")
    return dict(_stored_card(blobs, entry.sha256)) if entry else {}


@lru_cache(maxsize=256)
def _stored_card(blobs: BlobStore, sha256: str) -> dict[str, Any]:
    return parse_front_matter(blobs.read(sha256).decode("utf-8", "replace"))


def tags_of(card: dict[str, Any]) -> list[str]:
    """The tags one can search by, as the Hub derives them from the metadata."""
    plain = [*listed(card.get("library_name")), *listed(card.get("pipeline_tag")), *listed(card.get("tags"))]
    bases = listed(card.get("base_model"))
    relation = card.get("base_model_relation")
    derived = [
        *listed(card.get("language")),
        *(f"dataset:{name}" for name in listed(card.get("datasets"))),
        *(f"base_model:{name}" for name in bases),
        *(f"base_model:{relation}:{name}" for name in bases if relation),
        *(f"license:{name}" for name in listed(card.get("license"))),
    ]
    return list(dict.fromkeys([*plain, *derived]))
