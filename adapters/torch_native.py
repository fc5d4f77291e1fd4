"""Plain torch: ``nn.MultiheadAttention``, alone or inside ``nn.TransformerEncoder`` and ``nn.Transformer``."""

from __future__ import annotations

from oattn_hub.adapters.base import Adapter
from oattn_hub.adapters.layout import MULTIHEAD
from oattn_hub.adapters.registry import register


@register
class TorchAdapter(Adapter):
    """Torch's own attention; its fused fast path is left on, and attention is recomputed from the layer's inputs."""

    name = "torch"
    description = "torch.nn.MultiheadAttention, TransformerEncoder, TransformerDecoder, Transformer"
    modules = {"torch.nn.modules.activation.MultiheadAttention": "self"}
    groups = {"*multihead_attn*": "cross", "*decoder*": "decoder", "*": "encoder"}
    layout = MULTIHEAD
