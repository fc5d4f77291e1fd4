"""The base class of all adapters: it owns the logic, the families own the data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from oattn_hub.errors import AdapterError

if TYPE_CHECKING:
    from torch import nn

# Where modules keep their head counts: looked up on the module, then on its children, then on its config.
_HEAD_ATTRIBUTES = ("num_attention_heads", "num_heads", "n_heads", "n_head", "nhead", "heads")
_KV_HEAD_ATTRIBUTES = ("num_key_value_heads", "num_kv_heads", "n_kv_heads")
_HEAD_DIM_ATTRIBUTES = ("head_dim", "attention_head_size", "key_value_proj_dim", "d_head", "key_dim")


@dataclass(frozen=True)
class AttentionSite:
    """One attention layer of one model.

    ``layer`` counts the attention layers of the whole model in model order, so ``(layer, head)`` names a head
    everywhere. A module that serves several layers (ALBERT) gives one site per pass, named ``…#0``, ``…#1`` and so on.
    """

    name: str
    module: nn.Module
    group: str
    layer: int
    n_heads: int
    n_kv_heads: int
    head_dim: int | None
    kind: str = "self"
    head_axis: int = -3


class Adapter:
    """Describes one family of models; subclasses fill in the data.

    Attributes:
        name: What the user writes to choose this adapter.
        description: One line for ``oattn adapters``.
        modules: Pattern of a qualified class name -> kind of site. A module is the smallest one that holds the query,
            key, value and output projections; the kind picks the layout.
        groups: Pattern of the dotted module name -> group of layers, first match wins.
        not_token_attention: Pattern of a qualified class name -> why its softmax is not attention between tokens.
        masked_below: An additive mask entry at or below this value means "masked"; values above it are position terms.
        streams: Groups of a module's second, third… attention call in one pass (XLNet's query stream).
        head_axes: Kind of site -> axis of the heads in its queries, where it is not the third from the end.
        layout: How heads lie in the projections (see ``adapters/layout.py``); None means heads cannot be cut.
    """

    name: str
    description: str
    modules: Mapping[str, str] = {}
    groups: Mapping[str, str] = {"*": "encoder"}
    not_token_attention: Mapping[str, str] = {}
    masked_below: float = -1e4
    streams: tuple[str, ...] = ()
    head_axes: Mapping[str, int] = {}
    layout: Any = None

    def claims(self, model: nn.Module) -> int:
        """How many of the model's modules this adapter describes."""
        return sum(
            _lookup(module, self.modules) is not None or _lookup(module, self.not_token_attention) is not None
            for module in model.modules()
        )

    def sites(self, model: nn.Module) -> list[AttentionSite]:
        """The attention layers of ``model`` in model order."""
        sites: list[AttentionSite] = []
        for name, module in model.named_modules():
            sites += self.sites_at(model, name, module, first_layer=len(sites))
        return sites

    def sites_at(self, model: nn.Module, name: str, module: nn.Module, first_layer: int) -> list[AttentionSite]:
        """The layers that one module serves: none, one, or one per pass."""
        kind = self.site_kind(name, module)
        if kind is None:
            return []
        passes = self.passes(model, name, module)
        labels = [name] if passes == 1 else [f"{name}#{index}" for index in range(passes)]
        group = next(group for pattern, group in self.groups.items() if fnmatchcase(name, pattern))
        counts = (self.n_heads(module), self.n_kv_heads(module), self.head_dim(module))
        axis = self.head_axes.get(kind, -3)
        return [
            AttentionSite(label, module, group, first_layer + index, *counts, kind, axis)
            for index, label in enumerate(labels)
        ]

    def not_attention(self, model: nn.Module) -> dict[str, str]:
        """Modules left out on purpose: dotted name -> why they are not attention between tokens."""
        reasons = {name: _lookup(module, self.not_token_attention) for name, module in model.named_modules()}
        return {name: reason for name, reason in reasons.items() if reason is not None}

    # What a family may override ---------------------------------------------------------------------------------------

    def site_kind(self, name: str, module: nn.Module) -> str | None:
        """The kind of site ``module`` is, or None if it is not an attention layer."""
        return _lookup(module, self.modules)

    def passes(self, model: nn.Module, name: str, module: nn.Module) -> int:
        """How often one forward call runs ``module``, each time as another layer."""
        return 1

    def n_heads(self, module: nn.Module) -> int:
        """The number of query heads."""
        value = find_attribute(module, _HEAD_ATTRIBUTES)
        if value is None:
            raise AdapterError(
                f"Adapter {self.name!r} finds no head count on {type(module).__qualname__}; "
                f"it looks for {', '.join(_HEAD_ATTRIBUTES)}. Override n_heads in an adapter of your own."
            )
        return value

    def n_kv_heads(self, module: nn.Module) -> int:
        """The number of key/value heads; smaller than ``n_heads`` with grouped queries."""
        return find_attribute(module, _KV_HEAD_ATTRIBUTES) or self.n_heads(module)

    def head_dim(self, module: nn.Module) -> int | None:
        """Width of one head's query and key, if the module says so."""
        return find_attribute(module, _HEAD_DIM_ATTRIBUTES)


def qualified_names(module: nn.Module) -> list[str]:
    """The qualified names of a module's class and its bases, so that a subclass is served like its parent."""
    return [f"{cls.__module__}.{cls.__qualname__}" for cls in type(module).__mro__[:-2]]


def _lookup(module: nn.Module, table: Mapping[str, str]) -> str | None:
    names = qualified_names(module)
    return next((value for pattern, value in table.items() for name in names if fnmatchcase(name, pattern)), None)


def find_attribute(module: nn.Module, names: tuple[str, ...]) -> int | None:
    """The first positive integer attribute of ``names`` on the module, its children, or its config."""
    for owner in (module, *module.children(), getattr(module, "config", None)):
        for name in names:
            value = getattr(owner, name, None)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return None
