"""The base class of all adapters: it owns the logic, the families own the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from oattn_hub.adapters.layout import HeadLayout, guess_layout
from oattn_hub.adapters.site import COPIES, MASKED_BELOW, AttentionSite, find_below
from oattn_hub.errors import AdapterError

if TYPE_CHECKING:
    from torch import nn

    from oattn_hub.attention.memory import BatchSink
    from oattn_hub.attention.recorder import HookHandle

# Where modules keep their head counts: looked up on the module, then on its children, then on its config.
_HEAD_ATTRIBUTES = ("num_attention_heads", "num_heads", "n_heads", "n_head", "nhead", "heads")
_KV_HEAD_ATTRIBUTES = ("num_key_value_heads", "num_kv_heads", "n_kv_heads")
_HEAD_DIM_ATTRIBUTES = ("head_dim", "attention_head_size", "key_value_proj_dim", "d_head", "key_dim")


class Adapter:
    """A family of models, and bound to one of them: its attention sites and its forward hooks.

    The class is the family, mostly data that subclasses fill in; ``BertAdapter(model)`` is bound to a model.
    :func:`oattn_hub.adapt` finds the class that serves a model and binds it.

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
        layout: How heads lie in the projections (see ``adapters/layout.py``): one for all, or one for each group or
            kind of site. Where there is none, it is guessed from the names of the projections.
    """

    name: str
    description: str
    modules: Mapping[str, str] = {}
    groups: Mapping[str, str] = {"*": "encoder"}
    not_token_attention: Mapping[str, str] = {}
    masked_below: float = MASKED_BELOW
    streams: tuple[str, ...] = ()
    head_axes: Mapping[str, int] = {}
    layout: HeadLayout | Mapping[str, HeadLayout] | None = None

    def __init__(self, model: nn.Module | None = None) -> None:
        self._model = model

    def bind(self, model: nn.Module) -> Self:
        """The same adapter for another model."""
        return type(self)(model)

    @property
    def model(self) -> nn.Module:
        """The model that this adapter is bound to."""
        if self._model is None:
            raise AdapterError(f"Adapter {self.name!r} is not bound to a model. Call oattn_hub.adapt(model) first.")
        return self._model

    @cached_property
    def sites(self) -> list[AttentionSite]:
        """The attention layers of the model in model order; found once."""
        sites: list[AttentionSite] = []
        for name, module in self.model.named_modules():
            sites += self.sites_at(name, module, first_layer=len(sites))
        return sites

    @cached_property
    def left_out(self) -> dict[str, str]:
        """Modules left out on purpose: dotted name -> why they are not attention between tokens."""
        reasons = {name: _lookup(module, self.not_token_attention) for name, module in self.model.named_modules()}
        return {name: reason for name, reason in reasons.items() if reason is not None}

    def claims(self) -> int:
        """How many of the model's modules this adapter describes."""
        return sum(
            _lookup(module, self.modules) is not None or _lookup(module, self.not_token_attention) is not None
            for module in self.model.modules()
        )

    def hook(
        self,
        store: str | Path | BatchSink | None = None,
        kinds: Sequence[str] = ("probs",),
        **options: Any,
    ) -> HookHandle:
        """Register forward hooks that stream the model's attention into ``store``, each forward call as one batch.

        Args:
            store: A folder, a ``MemoryStore``, or anything that takes batches; None is a temporary folder.
            kinds: Any of ``scores`` (before the mask), ``logits`` (after it, masked entries NaN), ``probs``.
            options: As for :func:`oattn_hub.capture`.

        Returns:
            A handle with the ``store``; its with-block or its ``remove()`` takes the hooks off.
        """
        from oattn_hub.attention.recorder import hook_model

        return hook_model(self, store, kinds, **options)

    def sites_at(self, name: str, module: nn.Module, first_layer: int) -> list[AttentionSite]:
        """The layers that one module serves: none, one, or one per pass."""
        kind = self.site_kind(name, module)
        if kind is None:
            return []
        passes = self.passes(self.model, name, module)
        labels = [name] if passes == 1 else [f"{name}#{index}" for index in range(passes)]
        group = next(group for pattern, group in self.groups.items() if fnmatchcase(name, pattern))
        return [
            AttentionSite(
                name=label,
                module=module,
                group=group,
                layer=first_layer + turn,
                n_heads=len(copies["places"]) if (copies := getattr(module, COPIES, None)) else self.n_heads(module),
                n_kv_heads=self.n_kv_heads(module),
                head_dim=self.head_dim(module),
                kind=kind,
                head_axis=self.head_axes.get(kind, -3),
                masked_below=self.masked_below,
                streams=self.streams,
                described=self.layout_of(group, kind, module),
                turn=turn,
                n_turns=passes,
            )
            for turn, label in enumerate(labels)
        ]

    def layout_of(self, group: str, kind: str, module: nn.Module) -> HeadLayout | None:
        """The layout for a site: as described, else guessed from the names of the module's parts, else None."""
        layout = self.layout
        if isinstance(layout, Mapping):
            layout = layout.get(group) or layout.get(kind)
        return layout or guess_layout(lambda path: find_below(module, path) is not None)

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
