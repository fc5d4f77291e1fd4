"""GPT-2: one fused convolution holds query, key and value side by side."""

from __future__ import annotations

from oattn_hub.adapters.base import Adapter
from oattn_hub.adapters.layout import Count, HeadAxis, HeadLayout, fused
from oattn_hub.adapters.registry import register

_COUNTS: dict[str, Count] = {"num_heads": "heads", "split_size": "width"}


@register
class GPT2Adapter(Adapter):
    """GPT-2 and models that reuse its attention."""

    name = "gpt2"
    description = "GPT-2: causal, query/key/value fused in one Conv1D"
    modules = {"*.GPT2Attention": "self", "*.DecisionTransformerGPT2Attention": "self"}
    groups = {"*crossattention*": "cross", "*": "decoder"}
    layout = {
        "self": fused("c_attn", "c_proj", counts=_COUNTS),
        "cross": HeadLayout(
            output=HeadAxis("c_proj", "in"),
            projections=(HeadAxis("q_attn"), HeadAxis("c_attn", "out", ("k", "v"))),
            counts=_COUNTS,
        ),
    }
