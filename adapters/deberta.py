"""DeBERTa: disentangled attention; the position terms are part of the scores."""

from __future__ import annotations

from oattn_hub.adapters.base import Adapter
from oattn_hub.adapters.registry import register


@register
class DebertaAdapter(Adapter):
    """DeBERTa and DeBERTa-v2/v3."""

    name = "deberta"
    description = "DeBERTa, v2 and v3: content and relative position terms, computed step by step"
    modules = {"*.DebertaV2Attention": "v2", "*.DebertaAttention": "v1"}
