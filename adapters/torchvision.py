"""torchvision's Swin: the projections are read as parameters, so they have no calls of their own to hook."""

from __future__ import annotations

from oattn_hub.adapters.base import Adapter
from oattn_hub.adapters.layout import HeadAxis, HeadLayout
from oattn_hub.adapters.registry import register

_OUTPUT = HeadAxis("proj.weight", 1)


@register
class TorchvisionAdapter(Adapter):
    """Swin v1 and v2 of torchvision; its ViT is plain torch, its MaxViT is found by its names."""

    name = "torchvision"
    description = "torchvision's Swin v1 (masked only) and v2"
    modules = {
        "torchvision.models.swin_transformer.ShiftedWindowAttentionV2": "v2",
        "torchvision.models.swin_transformer.ShiftedWindowAttention": "v1",
    }
    masked_below = -99.0  # the shift mask is -100
    layout = {
        "v1": HeadLayout(_OUTPUT, refusal="its forward takes the scale of the scores from the number of heads"),
        "v2": HeadLayout(
            _OUTPUT,
            projections=(
                HeadAxis("qkv.weight", 0, ("q", "k", "v")),
                HeadAxis("qkv.bias", 0, ("q", "k", "v")),
                HeadAxis("logit_scale", 0, ("h",)),
                HeadAxis("cpb_mlp.2", "out", ("h",)),
            ),
            counts={"num_heads": "heads"},
            behaviours=("fixed_width",),
        ),
    }
