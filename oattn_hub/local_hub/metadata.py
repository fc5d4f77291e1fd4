"""What a README's front matter says about a repo, and whether the Hub would take it."""

from __future__ import annotations

import math
from functools import lru_cache

from oattn_hub.files.front_matter import listed, parse_front_matter
from oattn_hub.local_hub.blobs import BlobStore
from oattn_hub.local_hub.faults import Fault
from oattn_hub.local_hub.repos import Commit, Entry
from oattn_hub.types import Json, JsonObject

MAX_CARD = 2 * 2**20


def check_card(blobs: BlobStore, readme: Entry) -> None:
    """Refuse a card that the Hub would refuse."""
    if readme.size > MAX_CARD:
        raise Fault(400, f"README.md has {readme.size:,} bytes; a card has no more than {MAX_CARD:,}")
    try:
        parse_front_matter(blobs.read(readme.sha256).decode("utf-8", "replace"))
    except ValueError as error:
        raise Fault(400, f"Invalid metadata in README.md: {str(error)[:500]}") from error


def card_data(blobs: BlobStore, commit: Commit) -> JsonObject:
    """The metadata of a commit's README; nothing if it has none, or none that can be read."""
    entry = commit.files.get("README.md")
    return dict(_stored_card(blobs, entry.sha256)) if entry and entry.size <= MAX_CARD else {}


@lru_cache(maxsize=256)
def _stored_card(blobs: BlobStore, sha256: str) -> JsonObject:
    try:
        card = parse_front_matter(blobs.read(sha256).decode("utf-8", "replace"))
        return {str(key): _plain(item) for key, item in card.items()}
    except ValueError:  # stored by a version that was less strict: the others in a list must still be seen
        return {}


def _plain(value: object) -> Json:
    """As JSON can say it: YAML knows dates, sets and keys that are no texts."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | set | tuple):
        return [_plain(item) for item in value]
    finite = not isinstance(value, float) or math.isfinite(value)
    return value if value is None or (isinstance(value, str | int | float) and finite) else str(value)


def tags_of(card: JsonObject) -> list[str]:
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
