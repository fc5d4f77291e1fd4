"""What others published about a model."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from oattn_hub.hub.client import explained, open_api
from oattn_hub.types import JsonObject

if TYPE_CHECKING:
    from huggingface_hub import ModelInfo


@dataclass(frozen=True)
class Variant:
    """A report or a pruned checkpoint on the Hub."""

    repo_id: str
    kind: str
    base_model: str
    revision: str | None
    summary: str
    last_modified: str | None

    def to_json(self) -> JsonObject:
        """Plain values for ``--json``."""
        return asdict(self)


def list_variants(base_model: str, *, token: str | bool | None = None, endpoint: str | None = None) -> list[Variant]:
    """Reports and pruned checkpoints of a base model that ``oattn_hub`` published, newest first."""
    api = open_api(token, endpoint)
    with explained("list the variants of", base_model, api):
        found = list(api.list_models(filter=["oattn_hub", f"base_model:{base_model}"], full=True, cardData=True))
    variants = [_variant(model, base_model) for model in found]
    return sorted(variants, key=lambda variant: (variant.last_modified or "", variant.repo_id), reverse=True)


def _variant(model: ModelInfo, base_model: str) -> Variant:
    mark = model.card_data.get("oattn_hub") if model.card_data else None
    mark = mark if isinstance(mark, dict) else {}
    modified = model.last_modified.isoformat() if model.last_modified else None
    kind, summary = str(mark.get("kind", "unknown")), str(mark.get("summary", ""))
    return Variant(model.id, kind, base_model, model.sha, summary, modified)
