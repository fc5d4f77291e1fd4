"""T5: unscaled scores plus a learned bias of relative positions, in encoder, decoder and cross attention."""

from __future__ import annotations

from oattn_hub.adapters.base import Adapter
from oattn_hub.adapters.layout import Count, HeadAxis, split
from oattn_hub.adapters.registry import register

_COUNTS: dict[str, Count] = {"n_heads": "heads", "inner_dim": "width"}


@register
class T5Adapter(Adapter):
    """T5 and mT5; the position bias is part of the scores."""

    name = "t5"
    description = "T5-like encoder-decoders: t5, mt5, umt5; encoder, decoder and cross attention"
    modules = {"*.T5Attention": "self", "*.MT5Attention": "self", "*.UMT5Attention": "umt5"}
    groups = {"*EncDecAttention*": "cross", "*decoder*": "decoder", "*": "encoder"}
    layout = {
        "self": split("q", "k", "v", "o", counts=_COUNTS, behaviours=("shared_position_bias",)),
        # Every layer of UMT5 has a bias table of its own, with a column for each head.
        "umt5": split(
            "q", "k", "v", "o", extra=(HeadAxis("relative_attention_bias.weight", 1, ("h",)),), counts=_COUNTS
        ),
    }
