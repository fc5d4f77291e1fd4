"""GPT-NeoX, BLOOM and Falcon: query, key and value of one head lie side by side in one projection."""

from __future__ import annotations

from oattn_hub.adapters.base import Adapter
from oattn_hub.adapters.layout import fused, interleaved
from oattn_hub.adapters.registry import register


@register
class GPTNeoXAdapter(Adapter):
    """Decoders with an interleaved ``query_key_value``."""

    name = "gpt_neox"
    description = "interleaved query_key_value: gpt_neox (pythia), bloom, falcon"
    modules = {"*.GPTNeoXAttention": "self", "*.BloomAttention": "self", "*.FalconAttention": "falcon"}
    groups = {"*": "decoder"}
    layout = {
        "self": interleaved(
            "query_key_value",
            "dense",
            counts={"num_heads": "heads", "num_attention_heads": "heads"},
            head_arguments=("alibi",),
        ),
        # Falcon-7B: all query heads, then one key and one value head. The other Falcons arrange them otherwise.
        "falcon": fused(
            "query_key_value",
            "dense",
            counts={"num_heads": "heads"},
            head_arguments=("alibi",),
            only_if={"multi_query": True, "new_decoder_architecture": False},
        ),
    }
