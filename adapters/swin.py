"""Swin in transformers and timm: a window is a context, and the stored tensor is the mean over windows and images."""

from __future__ import annotations

from oattn_hub.adapters.base import Adapter
from oattn_hub.adapters.layout import HeadAxis, HeadLayout, fused, split
from oattn_hub.adapters.registry import register


@register
class SwinAdapter(Adapter):
    """Shifted-window transformers. The shift mask is -100, far above the usual -1e38, hence ``masked_below``."""

    name = "swin"
    description = "Swin, transformers and timm: windows are contexts, averaged over windows and images"
    modules = {
        "*.SwinAttention": "transformers",
        "timm.models.swin_transformer.WindowAttention": "timm",
        "timm.models.swin_transformer_v2.WindowAttention": "timm_v2",
    }
    masked_below = -99.0
    layout = {
        "transformers": split(
            "q_proj",
            "k_proj",
            "v_proj",
            "o_proj",
            extra=(HeadAxis("relative_position_bias.relative_position_bias_table", 1, ("h",)),),
            counts={"num_attention_heads": "heads"},
        ),
        "timm": fused(
            "qkv",
            "proj",
            extra=(HeadAxis("relative_position_bias_table", 1, ("h",)),),
            counts={"num_heads": "heads"},
        ),
        "timm_v2": HeadLayout(
            output=HeadAxis("proj", "in"),
            projections=(
                HeadAxis("qkv", "out", ("q", "k", "v")),
                HeadAxis("q_bias", 0, ("q",)),
                HeadAxis("k_bias", 0, ("k",)),
                HeadAxis("v_bias", 0, ("v",)),
                HeadAxis("logit_scale", 0, ("h",)),
                HeadAxis("cpb_mlp.2", "out", ("h",)),
            ),
            counts={"num_heads": "heads"},
            behaviours=("fixed_width",),
        ),
    }
