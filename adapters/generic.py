"""Models nobody described: attention found by what modules are called and what they hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oattn_hub.adapters.base import _HEAD_ATTRIBUTES, WATCHED_GROUPS, Adapter, called_attention, find_attribute
from oattn_hub.adapters.guess import guess_output
from oattn_hub.adapters.registry import register

if TYPE_CHECKING:
    from torch import nn


@register
class GenericAdapter(Adapter):
    """The innermost modules that are called attention, own parameters and have a head count."""

    name = "generic"
    description = "any other model: modules that are called attention, and those that are seen to attend"
    groups = WATCHED_GROUPS

    def claims(self) -> int:
        """Nothing: it serves only when no family does."""
        return 0

    def site_kind(self, name: str, module: nn.Module) -> str | None:
        """``self`` for an innermost attention module, or for the one around it that has the output projection."""
        if not _looks_like_attention(module):
            return None
        inner = [child for child in module.modules() if child is not module and _looks_like_attention(child)]
        if not inner:
            parent = self.model.get_submodule(name.rpartition(".")[0]) if "." in name else None
            return None if parent is not None and self._completes(parent, [module]) else "self"
        return "self" if self._completes(module, inner) else None

    def _completes(self, outer: nn.Module, inner: list[nn.Module]) -> bool:
        """Whether ``outer`` holds one attention module and the output projection that this one lacks."""
        if len(inner) != 1 or not _looks_like_attention(outer):
            return False
        n_heads = self.n_heads(inner[0])
        others = [child for child in outer.modules() if child not in (outer, inner[0]) and _looks_like_attention(child)]
        return not others and guess_output(inner[0], n_heads) is None and guess_output(outer, n_heads) is not None


def _looks_like_attention(module: nn.Module) -> bool:
    owns_weights = next(module.parameters(), None) is not None
    return called_attention(module) and owns_weights and find_attribute(module, _HEAD_ATTRIBUTES) is not None
