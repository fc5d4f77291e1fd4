"""XLNet and Transformer-XL: scores are content terms plus terms of relative position, computed step by step."""

from __future__ import annotations

from oattn_hub.adapters.base import Adapter
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
    streams = ("query_stream",)
