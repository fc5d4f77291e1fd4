"""Models made of parts that different families describe: an image encoder with a text decoder, towers with a pooler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from oattn_hub.adapters.base import Adapter, AttentionSite

if TYPE_CHECKING:
    from torch import nn


class CompositeAdapter(Adapter):
    """Several families side by side, called ``first+second``; every module is served by the part that knows it.

    Layouts are found under ``part.kind``, so that two parts may use one name for different things.
    """

    def __init__(self, parts: Sequence[Adapter]) -> None:
        self.parts = tuple(parts)
        self.name = "+".join(part.name for part in parts)
        self.description = "; ".join(part.description for part in parts)
        self.masked_below = max(part.masked_below for part in parts)
        self.streams = next((part.streams for part in parts if part.streams), ())
        self.layout = {
            f"{part.name}.{key}": layout
            for part in parts
            for key, layout in (part.layout.items() if isinstance(part.layout, dict) else [("", part.layout)])
        }

    def claims(self, model: nn.Module) -> int:
        """The sum over the parts."""
        return sum(part.claims(model) for part in self.parts)

    def sites_at(self, model: nn.Module, name: str, module: nn.Module, first_layer: int) -> list[AttentionSite]:
        """The layers of the first part that knows the module."""
        for part in self.parts:
            sites = part.sites_at(model, name, module, first_layer)
            if sites:
                return [replace(site, kind=f"{part.name}.{_layout_key(part, site)}") for site in sites]
        return []

    def not_attention(self, model: nn.Module) -> dict[str, str]:
        """What any part leaves out."""
        return {name: reason for part in self.parts for name, reason in part.not_attention(model).items()}


def _layout_key(part: Adapter, site: AttentionSite) -> str:
    """A part's layouts go by group or by kind; a part with a single layout needs no key."""
    if not isinstance(part.layout, dict):
        return ""
    return site.group if site.group in part.layout else site.kind
