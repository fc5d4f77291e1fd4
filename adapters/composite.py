"""Models made of parts that different families describe: an image encoder with a text decoder, towers with a pooler."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

from oattn_hub.adapters.base import Adapter
from oattn_hub.adapters.site import AttentionSite

if TYPE_CHECKING:
    from torch import nn


class CompositeAdapter(Adapter):
    """Several families side by side, called ``first+second``; every module is served by the part that knows it."""

    def __init__(self, parts: Sequence[type[Adapter]], model: nn.Module | None = None) -> None:
        super().__init__(model)
        self.families = tuple(parts)
        self.parts = [family(model) for family in parts]
        self.name = "+".join(family.name for family in parts)
        self.description = "; ".join(family.description for family in parts)

    def bind(self, model: nn.Module) -> CompositeAdapter:
        """The same families for another model."""
        return CompositeAdapter(self.families, model)

    @cached_property
    def left_out(self) -> dict[str, str]:
        """What any part leaves out."""
        return {name: reason for part in self.parts for name, reason in part.left_out.items()}

    def claims(self) -> int:
        """The sum over the parts."""
        return sum(part.claims() for part in self.parts)

    def sites_at(self, name: str, module: nn.Module, first_layer: int) -> list[AttentionSite]:
        """The layers of the first part that knows the module."""
        found = (part.sites_at(name, module, first_layer) for part in self.parts)
        return next((sites for sites in found if sites), [])
