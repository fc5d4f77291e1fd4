"""Models nobody described: attention found by what modules are called and what they hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oattn_hub.adapters.base import _HEAD_ATTRIBUTES, Adapter, find_attribute, qualified_names
from oattn_hub.adapters.registry import register

if TYPE_CHECKING:
    from torch import nn

_NAMES = ("attention", "attn", "msa")


@register
class GenericAdapter(Adapter):
    """The innermost modules that are called attention, own parameters and have a head count."""

    name = "generic"
    description = "any model whose attention modules are called so and have a head count; heads cannot be cut"
    groups = {
        "*cross*": "cross",
        "*encoder_attn*": "cross",
        "*decoder*": "decoder",
        "*encoder*": "encoder",
        "*": "self",  # which of the two it is, a module's name does not say
    }

    def claims(self) -> int:
        """Nothing: it serves only when no family does."""
        return 0

    def site_kind(self, name: str, module: nn.Module) -> str | None:
        """``self`` for an innermost attention module."""
        inner = any(_looks_like_attention(child) for child in module.modules() if child is not module)
        return "self" if _looks_like_attention(module) and not inner else None


def _looks_like_attention(module: nn.Module) -> bool:
    classes = [name.rsplit(".", 1)[-1].lower() for name in qualified_names(module)]
    called_so = any(word in name for name in classes for word in _NAMES)
    owns_weights = next(module.parameters(), None) is not None
    return called_so and owns_weights and find_attribute(module, _HEAD_ATTRIBUTES) is not None
