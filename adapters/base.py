"""The base class of all adapters: it owns the logic, the families own the data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from oattn_hub.adapters.guess import guess_kv_heads, guess_layout, guess_output, named_axes, named_heads
from oattn_hub.adapters.layout import HeadLayout
from oattn_hub.adapters.learned import Learned, learned_about
from oattn_hub.adapters.site import COPIES, MASKED_BELOW, AttentionSite, find_below
from oattn_hub.errors import AdapterError

if TYPE_CHECKING:
    from torch import nn

    from oattn_hub.attention.handle import HookHandle
    from oattn_hub.attention.memory import BatchSink

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
            if name in self.left_out:
                continue
            found = self.sites_at(name, module, first_layer=len(sites))
            sites += found or self._learned_sites(name, module, first_layer=len(sites))
        return sites

    @cached_property
    def learned(self) -> dict[str, Learned]:
        """What forward calls have taught about the model, by module name."""
        return learned_about(self.model)

    def learn(self, name: str, **facts: int) -> None:
        """Remember something about a module that a forward call has shown; the sites are then found anew."""
        self.learned[name] = replace(self.learned.get(name, Learned()), **facts)
        self.__dict__.pop("sites", None)

    def _learned_sites(
        self, name: str, module: nn.Module, first_layer: int, known: Learned | None = None
    ) -> list[AttentionSite]:
        known = known or self.learned.get(name)
        if known is None or known.n_heads == 0:
            return []
        group = _first_match(name, WATCHED_GROUPS)
        layout = guess_layout(module, known.n_heads)
        n_kv_heads = guess_kv_heads(module, layout, known.n_heads) or known.n_kv_heads or known.n_heads
        counts = (known.n_heads, n_kv_heads, None)
        site = AttentionSite(name, module, group, first_layer, *counts, "watched", described=layout)
        return _turns(site, known.passes)

    def choose(self, running: Sequence[nn.Module], shape: Sequence[int], tokens: Sequence[int]) -> int:
        """Which of the running modules, from the inside out, attention of this shape belongs to."""
        return with_output(running, _count_heads(running[0], shape, tokens))

    def site_of_call(
        self, name: str, module: nn.Module, shape: Sequence[int], n_kv_heads: int, tokens: Sequence[int] = ()
    ) -> AttentionSite:
        """A site, not yet numbered, for attention of this shape, met in a module that nobody described.

        ``tokens`` is how many tokens the module was given, as far as its arguments say.
        """
        n_heads = _count_heads(module, shape, tokens)
        n_kv_heads = n_kv_heads if n_kv_heads and n_heads % n_kv_heads == 0 else n_heads
        return self._learned_sites(name, module, -1, Learned(n_heads, n_kv_heads))[0]

    @cached_property
    def left_out(self) -> dict[str, str]:
        """Modules left out on purpose: dotted name -> why they are not attention between tokens."""
        known = {**self.not_token_attention, **NOT_BETWEEN_TOKENS}
        reasons = {name: _lookup(module, known) for name, module in self.model.named_modules()}
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
        from oattn_hub.attention.handle import hook_model

        return hook_model(self, store, kinds, **options)

    def sites_at(self, name: str, module: nn.Module, first_layer: int) -> list[AttentionSite]:
        """The layers that one module serves: none, one, or one per pass."""
        kind = self.site_kind(name, module)
        if kind is None:
            return []
        passes = max(self.passes(self.model, name, module), self.learned.get(name, Learned()).passes)
        group = _first_match(name, self.groups)
        n_heads = len(copies["places"]) if (copies := getattr(module, COPIES, None)) else self.n_heads(module)
        layout, n_kv_heads = self._described(group, kind), self.n_kv_heads(module)
        if layout is None or find_below(module, layout.output.path) is None:  # a class of the family built otherwise
            layout = guess_layout(module, n_heads)
            n_kv_heads = guess_kv_heads(module, layout, n_heads) or n_kv_heads
        site = AttentionSite(
            name=name,
            module=module,
            group=group,
            layer=first_layer,
            n_heads=n_heads,
            n_kv_heads=n_kv_heads,
            head_dim=self.head_dim(module),
            kind=kind,
            head_axis=self.head_axes.get(kind, -3),
            masked_below=self.masked_below,
            streams=self.streams,
            described=layout,
        )
        return _turns(site, passes)

    def _described(self, group: str, kind: str) -> HeadLayout | None:
        if isinstance(self.layout, Mapping):
            return self.layout.get(group) or self.layout.get(kind)
        return self.layout

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


# Attention of no family that is never a matrix between tokens: pattern of a qualified class name -> why.
NOT_BETWEEN_TOKENS = {
    "*LinearAttention*": "linear attention: no weights between tokens are computed",
    "*DeltaAttention*": "linear attention: no weights between tokens are computed",
    "*LightningAttention*": "linear attention: no weights between tokens are computed",
    "*HSMSSD*": "state-space mixing: tokens are mixed into a few states with weights made from one token each",
    "*LambdaLayer*": "lambda layer: keys and values become one small matrix, no weights between tokens are computed",
    "*HyperConnection*": "copies of the residual stream are mixed, of one token at a time",
    "*AttentionResidual*": "outputs of earlier layers are mixed, of one token at a time",
    "*AssignAttention*": "tokens are assigned to groups: a softmax over the queries",
    "*CrossCovariance*": "attention between channels (cross-covariance), not between tokens",
    "*XCA*": "attention between channels (cross-covariance), not between tokens",
    "*FactorAttn*": "linear attention: no weights between tokens are computed",
    "*FactorAtt_*": "linear attention: no weights between tokens are computed",
    "*DeformableAttention*": "deformable attention: weights over a few sampled points, made from one token",
}

# Groups of layers in modules that nobody described.
WATCHED_GROUPS = {
    "*cross*": "cross",
    "*encoder_attn*": "cross",
    "*vision*": "vision",
    "*visual*": "vision",
    "*image*": "vision",
    "*audio*": "audio",
    "*decoder*": "decoder",
    "*encoder*": "encoder",
    "*": "self",  # which of the two it is, a module's name does not say
}


def _first_match(name: str, groups: Mapping[str, str]) -> str:
    return next(group for pattern, group in groups.items() if fnmatchcase(name, pattern))


def with_output(modules: Sequence[nn.Module], n_heads: int) -> int:
    """Which of some modules, from the inside out, is the smallest that also holds the output projection."""
    for index, module in enumerate(modules[:2]):
        if guess_output(module, n_heads) is not None and (index == 0 or called_attention(module)):
            return index
    return 0


def called_attention(module: nn.Module) -> bool:
    """Whether a module's class, or a base of it, is called attention."""
    classes = [name.rsplit(".", 1)[-1].lower() for name in qualified_names(module)]
    return any(word in name for name in classes for word in ("attention", "attn", "msa"))


def _turns(site: AttentionSite, passes: int) -> list[AttentionSite]:
    """The site itself, or one for each pass through its module."""
    if passes == 1:
        return [site]
    return [
        replace(site, name=f"{site.name}#{turn}", layer=site.layer + turn, turn=turn, n_turns=passes)
        for turn in range(passes)
    ]


def _count_heads(module: nn.Module, shape: Sequence[int], tokens: Sequence[int] = ()) -> int:
    """How many heads attention of this shape has: (…, head, query, key), (…, query, head, key), (…, group, head of the
    group, query, key), or three axes with the heads among the contexts.

    Where the module does not say, its rows are counted: every token asks once in every head.
    """
    declared, rows = find_attribute(module, _HEAD_ATTRIBUTES), math.prod(shape[:-1])
    counted = next((rows // count for count in tokens if rows % count == 0), None)
    if len(shape) == 3:
        declared = declared or named_heads(module, [size for size in range(2, shape[0] + 1) if shape[0] % size == 0])
        if counted != 1 and not declared:
            given = named_axes(module, shape[0])
            declared = given[0] if len(given) == 1 and counted not in given else None
        if counted == 1 or not declared or shape[0] % declared:
            return counted if counted and shape[0] % counted == 0 else 1
        return declared
    possible = {*shape[:-1], *(math.prod(shape[axis : axis + 2]) for axis in range(1, len(shape) - 3))}
    if declared is None or declared not in possible:
        declared = named_heads(module, (shape[-3], shape[-2]))
    if declared is None and counted in possible:
        declared = counted
    if declared is not None:
        return declared
    # nobody counts them: queries are as many as keys, also where weights lie as (…, query, head, key)
    return shape[-2] if shape[-3] == shape[-1] != shape[-2] > 1 else shape[-3]


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
            value = _value(owner, name)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
    return None


def _value(owner: object, name: str) -> object:
    try:
        return getattr(owner, name, None)
    except Exception:  # a config may refuse to name one value for layers that differ
        return None
