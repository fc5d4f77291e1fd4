"""ALBERT: one attention module serves many layers, and each pass through it is a layer of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oattn_hub.adapters.base import Adapter
from oattn_hub.adapters.layout import split
from oattn_hub.adapters.registry import register

if TYPE_CHECKING:
    from torch import nn


@register
class AlbertAdapter(Adapter):
    """ALBERT. A head that is cut from the shared module is removed from every layer the module serves."""

    name = "albert"
    description = "ALBERT: layers share weights, every pass is a layer (name#pass)"
    modules = {"*.AlbertAttention": "self"}
    layout = split(
        "query",
        "key",
        "value",
        "dense",
        counts={"num_attention_heads": "heads", "all_head_size": "width"},
    )

    def passes(self, model: nn.Module, name: str, module: nn.Module) -> int:
        """How many of the model's layers fall to the group of layers that ``module`` is in."""
        attention: Any = module
        layers, groups = attention.config.num_hidden_layers, attention.config.num_hidden_groups
        own = int(name.split("albert_layer_groups.")[1].split(".")[0])
        return sum(int(layer / (layers / groups)) == own for layer in range(layers))
