"""DeBERTa: disentangled attention; the position terms are part of the scores."""

from __future__ import annotations

from oattn_hub.adapters.base import Adapter
from oattn_hub.adapters.layout import Count, HeadAxis, interleaved, split
from oattn_hub.adapters.registry import register

_COUNTS: dict[str, Count] = {"self.num_attention_heads": "heads", "self.all_head_size": "width"}


@register
class DebertaAdapter(Adapter):
    """DeBERTa and DeBERTa-v2/v3."""

    name = "deberta"
    description = "DeBERTa, v2 and v3: content and relative position terms, computed step by step"
    modules = {"*.DebertaV2Attention": "v2", "*.DebertaAttention": "v1"}
    layout = {
        "v1": interleaved(
            "self.in_proj",
            "output.dense",
            extra=(
                HeadAxis("self.q_bias", 0),
                HeadAxis("self.v_bias", 0),
                HeadAxis("self.pos_proj"),
                HeadAxis("self.pos_q_proj"),
            ),
            counts=_COUNTS,
            only_if={"self.talking_head": False},
        ),
        "v2": split(
            "self.query_proj",
            "self.key_proj",
            "self.value_proj",
            "output.dense",
            extra=(HeadAxis("self.pos_key_proj"), HeadAxis("self.pos_query_proj")),
            counts=_COUNTS,
        ),
    }
