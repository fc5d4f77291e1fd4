"""XLNet and Transformer-XL: scores are content terms plus terms of relative position, computed step by step."""

from __future__ import annotations

from oattn_hub.adapters.base import Adapter
from oattn_hub.adapters.layout import HeadAxis, HeadLayout, fused
from oattn_hub.adapters.registry import register


@register
class XLNetAdapter(Adapter):
    """Relative attention. XLNet's second stream, if it runs, is a group of its own with the same heads."""

    name = "xlnet"
    description = "relative attention: xlnet (content and query stream), transformer-xl of oattn_hub.models"
    modules = {
        "*.XLNetRelativeAttention": "xlnet",
        "oattn_hub.models.transfo_xl.RelativeAttention": "transfo_xl",
    }
    groups = {"*": "decoder"}
    layout = {
        "xlnet": HeadLayout(
            output=HeadAxis("o", 1),
            projections=(
                *(HeadAxis(name, 1) for name in ("q", "k", "v", "r", "seg_embed")),
                *(HeadAxis(name, 0) for name in ("r_r_bias", "r_s_bias", "r_w_bias")),
            ),
            counts={"n_head": "heads"},
        ),
        "transfo_xl": fused(
            "qkv_net",
            "o_net",
            extra=(HeadAxis("r_net"), HeadAxis("r_w_bias", 0), HeadAxis("r_r_bias", 0)),
            counts={"n_head": "heads"},
        ),
    }
    streams = ("query_stream",)
