"""A pruning plan: which heads to remove from which model, why these, and what it was measured to cost. Data only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, Unpack

from oattn_hub.codec import decode, encode
from oattn_hub.errors import FormatError, InvalidInput, LoadError
from oattn_hub.files import read_json, unsealed, write_sealed
from oattn_hub.pruning.origin import ChosenBy, Compensation, Healing
from oattn_hub.records import Head, ModelInfo
from oattn_hub.report.cost import Cost
from oattn_hub.types import Json, JsonObject

if TYPE_CHECKING:
    from torch import nn

    from oattn_hub.adapters import Adapter, AttentionSite
    from oattn_hub.models.load import LoadedModel, Source
    from oattn_hub.models.options import LoadAgain
    from oattn_hub.pruning.compensate import Refits
    from oattn_hub.pruning.pruned import PrunedModel
    from oattn_hub.report.evaluation import EvaluationSection

SCHEMA = 2
_NOT_SAVED = ("loaded", "bound", "evaluation", "refits")
_REFITS = ".safetensors"


@dataclass(frozen=True)
class PruningPlan:
    """Heads to remove from one model.

    Attributes:
        heads: (layer, head) pairs, sorted.
        n_heads: how many heads the whole model has.
        structure: fingerprint of the number of heads of every layer.
        weights: fingerprint of the model's first and last output projections; empty if the model was not at hand.
        model: which model; its ``adapter`` is the one the heads were counted by, empty for the model's own choice.
        score: the score that ranked the heads, or ``"by hand"``.
        chosen_by: how the number of heads was decided, e.g. ``{"fraction": 0.2}``.
        evaluations: how many times the masked model was evaluated to find this plan.
        cost: what removing these heads was measured to cost, if it was. Of a budget plan: on inputs that the search
            never saw, with a 95 % bootstrap interval over them (``low``, ``high``) of the ``increase`` and a one-sided
            95 % bound (``upper``); for every length (``lengths``), and once more on inputs that decided nothing
            (``last_look``).
        compensation: how the heads that stay make up for those that go, if they do: kind, layers, fitted on what.
        healing: what was trained after the cut, if anything was: on what, for how long, from which loss to which.
        refits: the output projections that ``cost`` was measured with; saved beside the plan, not in it.
        loaded: the model itself, if whoever made the plan had it at hand; not saved.
        bound: the adapter that found the sites of ``loaded``, so that they are found once; not saved.
        evaluation: the report's evaluation, which goes along to the checkpoint's card; not saved.
    """

    heads: list[Head]
    n_heads: int
    structure: str
    weights: str = ""
    model: ModelInfo = field(default_factory=lambda: ModelInfo(""))
    score: str = "by hand"
    chosen_by: ChosenBy = field(default_factory=lambda: ChosenBy())
    evaluations: int = 0
    cost: Cost | None = None
    compensation: Compensation | None = None
    healing: Healing | None = None
    refits: Refits | None = field(default=None, repr=False, compare=False)
    loaded: LoadedModel | None = field(default=None, repr=False, compare=False)
    bound: Adapter | None = field(default=None, repr=False, compare=False)
    evaluation: EvaluationSection | None = field(default=None, repr=False, compare=False)

    @classmethod
    def from_heads(cls, model: Source, heads: Iterable[Head], adapter: str | None = None) -> Self:
        """A plan by hand.

        Args:
            model: a module, a loaded model, or anything ``load_model`` takes.
            heads: (layer, head) pairs.
            adapter: name of the adapter, if the model's own choice is not wanted.
        """
        from oattn_hub.models.load import load_model
        from oattn_hub.pruning.sites import (
            all_heads,
            check_heads,
            head_sites,
            structure_fingerprint,
            weights_fingerprint,
        )

        loaded = load_model(model)
        sites = head_sites(loaded.model, adapter)
        return cls(
            heads=check_heads(sites, heads),
            n_heads=len(all_heads(sites)),
            structure=structure_fingerprint(sites),
            weights=weights_fingerprint(sites),
            model=replace(loaded.info, adapter=adapter or ""),
            chosen_by={"heads": "named"},
        )

    @property
    def adapter(self) -> str | None:
        """Name of the adapter that the heads were counted by; None for the model's own choice."""
        return self.model.adapter or None

    @property
    def fraction(self) -> float:
        """The part of the model's heads that goes."""
        return len(self.heads) / self.n_heads

    def check(self, model: nn.Module, allow_other_weights: bool = False) -> list[AttentionSite]:
        """Refuse a model this plan was not made for; return the model's attention sites."""
        from oattn_hub.pruning.sites import structure_fingerprint, weights_fingerprint

        sites = self.adapter_of(model).sites
        if structure_fingerprint(sites) != self.structure:
            found = sum(site.n_heads for site in sites)
            raise InvalidInput(
                f"This plan is for {self.model.id or 'another model'} with {self.n_heads} heads; "
                f"{type(model).__qualname__} has {found} in {len(sites)} layers, arranged otherwise. "
                "Apply it to the model it was made for."
            )
        if self.weights and not allow_other_weights and weights_fingerprint(sites) != self.weights:
            raise InvalidInput(
                f"This plan was made on the weights of {self.model.id or 'another model'}; this model has others. "
                "Make a plan for this model, or pass allow_other_weights=True if you know that the heads are the same."
            )
        return sites

    def adapter_of(self, model: nn.Module) -> Adapter:
        """The adapter that the heads were counted by, bound to ``model``."""
        from oattn_hub.pruning.sites import adapter_of

        if self.bound is not None and self.bound.model is model:
            return self.bound
        return adapter_of(model, self.adapter)

    def masked(self, model: nn.Module, allow_other_weights: bool = False) -> AbstractContextManager[None]:
        """Silence the plan's heads while the block runs; the model is not changed."""
        from oattn_hub.pruning.masks import masked_sites

        return masked_sites(model, self.check(model, allow_other_weights), self.heads)

    def apply(self, model: Source | None = None, **options: Any) -> PrunedModel:
        """Cut the heads out of a copy of the model; see :func:`oattn_hub.pruning.pruned.prune`."""
        from oattn_hub.pruning.pruned import prune

        return prune(self, model, **options)

    def load(self, **permissions: Unpack[LoadAgain]) -> LoadedModel:
        """The model this plan was made for: the one at hand, or loaded again.

        Args:
            permissions: what only the caller may grant, as in ``load_model``: ``trust_remote_code``, ``token`` …
        """
        if self.loaded is not None:
            return self.loaded
        from oattn_hub.models.load import load_again

        if self.model.source is None:
            raise LoadError(
                f"The plan does not say where {self.model.id or 'its model'} can be loaded from. "
                "Give the model: plan.apply(model)."
            )
        return load_again(self.model, **permissions)

    def to_json(self) -> JsonObject:
        """The plan as a JSON-able dict."""
        return {"schema": SCHEMA, **{name: encode(getattr(self, name)) for name in _SAVED}}

    @classmethod
    def from_json(cls, value: Json) -> Self:
        """The plan back from :meth:`to_json`."""
        if not isinstance(value, Mapping) or value.get("schema") != SCHEMA:
            raise FormatError(f"This is not a pruning plan of schema {SCHEMA}; make the plan again.")
        plan = decode(cls, {name: entry for name, entry in value.items() if name != "schema"}, leave_out=_NOT_SAVED)
        if len(set(plan.heads)) > max(plan.n_heads, 0) or plan.n_heads < 1 or any(min(head) < 0 for head in plan.heads):
            raise FormatError(f"The plan removes {len(plan.heads)} of {plan.n_heads} heads, or one that no model has.")
        return plan

    def save(self, path: str | Path) -> Path:
        """Write the plan as JSON, and its refits as safetensors beside it; returns the JSON file."""
        target = Path(path)
        if self.refits:
            from oattn_hub.pruning.refits import write_refits

            write_refits(target.with_suffix(_REFITS), self.refits)
        write_sealed(target, self.to_json())
        return target

    @classmethod
    def load_file(cls, path: str | Path) -> Self:
        """Read a plan that was saved, with its refits where they lie beside it."""
        value, beside = read_json(Path(path)), Path(path).with_suffix(_REFITS)
        is_plan = isinstance(value, dict) and value.get("schema") == SCHEMA
        content = unsealed(value, Path(path)) if is_plan else value
        try:
            plan = cls.from_json(content)
        except FormatError as error:
            raise FormatError(f"{path} is no pruning plan that can be read: {error}") from error
        if plan.compensation is None or not beside.is_file():
            return plan
        from oattn_hub.pruning.refits import read_refits

        return replace(plan, refits=read_refits(beside))


_SAVED = [item.name for item in fields(PruningPlan) if item.name not in _NOT_SAVED]
