"""A pruning plan: which heads to remove from which model, why these, and what it was measured to cost. Data only."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from oattn_hub.errors import FormatError, InvalidInput, LoadError
from oattn_hub.files import fingerprint, read_json, write_json

if TYPE_CHECKING:
    from torch import nn

    from oattn_hub.models.load import LoadedModel
    from oattn_hub.pruning.pruned import PrunedModel
    from oattn_hub.pruning.sites import HeadSite

Head = tuple[int, int]
SCHEMA = 1


@dataclass(frozen=True)
class PruningPlan:
    """Heads to remove from one model.

    Attributes:
        heads: (layer, head) pairs, sorted.
        n_heads: how many heads the whole model has.
        structure: fingerprint of the number of heads of every layer.
        weights: fingerprint of the model's first and last output projections; empty if the model was not at hand.
        model_id, revision, source, adapter: which model, and what ``load_model`` needs to load it again.
        options: further arguments of ``load_model`` (``gguf_file``, ``task``).
        score: the score that ranked the heads, or ``"by hand"``.
        chosen_by: how the number of heads was decided, e.g. ``{"fraction": 0.2}``.
        evaluations: how many times the masked model was evaluated to find this plan.
        cost: what removing these heads was measured to cost, if it was. Of a budget plan: on inputs that the search
            never saw, with a 95 % bootstrap interval over them (``low``, ``high``) of the ``increase``.
    """

    heads: list[Head]
    n_heads: int
    structure: str
    weights: str = ""
    model_id: str = ""
    revision: str | None = None
    source: str | None = None
    adapter: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    score: str = "by hand"
    chosen_by: Mapping[str, Any] = field(default_factory=dict)
    evaluations: int = 0
    cost: Mapping[str, Any] | None = None

    @classmethod
    def from_heads(cls, model: Any, heads: Iterable[Head], adapter: str | None = None) -> Self:
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
            model_id=loaded.model_id,
            revision=loaded.revision,
            source=loaded.source,
            adapter=adapter,
            chosen_by={"heads": "named"},
        )

    @property
    def fraction(self) -> float:
        """The part of the model's heads that goes."""
        return len(self.heads) / self.n_heads

    def check(self, model: nn.Module, allow_other_weights: bool = False) -> list[HeadSite]:
        """Refuse a model this plan was not made for; return the model's attention sites."""
        from oattn_hub.pruning.sites import head_sites, structure_fingerprint, weights_fingerprint

        sites = head_sites(model, self.adapter)
        if structure_fingerprint(sites) != self.structure:
            found = sum(site.site.n_heads for site in sites)
            raise InvalidInput(
                f"This plan is for {self.model_id or 'another model'} with {self.n_heads} heads; "
                f"{type(model).__qualname__} has {found} in {len(sites)} layers, arranged otherwise. "
                "Apply it to the model it was made for."
            )
        if self.weights and not allow_other_weights and weights_fingerprint(sites) != self.weights:
            raise InvalidInput(
                f"This plan was made on the weights of {self.model_id or 'another model'}; this model has others. "
                "Make a plan for this model, or pass allow_other_weights=True if you know that the heads are the same."
            )
        return sites

    def masked(self, model: nn.Module, allow_other_weights: bool = False) -> AbstractContextManager[None]:
        """Silence the plan's heads while the block runs; the model is not changed."""
        from oattn_hub.pruning.masks import masked_sites

        return masked_sites(model, self.check(model, allow_other_weights), self.heads)

    def apply(self, model: Any = None, **options: Any) -> PrunedModel:
        """Cut the heads out of a copy of the model; see :func:`oattn_hub.pruning.pruned.prune`."""
        from oattn_hub.pruning.pruned import prune

        return prune(self, model, **options)

    def load(self) -> LoadedModel:
        """Load the model this plan was made for."""
        from oattn_hub.models.load import load_model

        if self.source is None:
            raise LoadError(
                f"The plan does not say where {self.model_id or 'its model'} can be loaded from. "
                "Give the model: plan.apply(model)."
            )
        return load_model(self.source, revision=_hub_revision(self.source, self.revision), **dict(self.options))

    def to_json(self) -> dict[str, Any]:
        """The plan as a JSON-able dict."""
        return {"schema": SCHEMA, **asdict(self), "heads": [list(head) for head in self.heads]}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The plan back from :meth:`to_json`."""
        if not isinstance(value, Mapping) or value.get("schema") != SCHEMA:
            raise FormatError(f"This is not a pruning plan of schema {SCHEMA}; make the plan again.")
        known = {item.name for item in fields(cls)}
        content = {name: entry for name, entry in value.items() if name in known}
        try:
            return cls(**{**content, "heads": [(int(layer), int(head)) for layer, head in content["heads"]]})
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(f"The pruning plan is damaged ({error}); make it again.") from error

    def save(self, path: str | Path) -> Path:
        """Write the plan as JSON; returns the file."""
        target = Path(path)
        write_json(target, self.to_json())
        return target

    @classmethod
    def load_file(cls, path: str | Path) -> Self:
        """Read a plan that was saved."""
        return cls.from_json(read_json(Path(path)))


def structure_of(n_heads_by_layer: Mapping[int, int]) -> str:
    """Fingerprint of the number of heads of every layer; the same from a report as from the model."""
    return fingerprint([[layer, n_heads_by_layer[layer]] for layer in sorted(n_heads_by_layer)])


def lowest(
    values: Mapping[Head, float],
    count: int,
    min_heads_per_layer: int = 0,
    shared: Sequence[Collection[int]] = (),
) -> list[Head]:
    """The ``count`` heads of lowest score, leaving at least so many in every layer.

    Args:
        values: score of every head of the model.
        count: how many to remove.
        min_heads_per_layer: a floor; 0 lets whole layers of heads go.
        shared: sets of layers that share their weights: a head goes in all of them, by its mean score, or in none.

    >>> lowest({(0, 0): 1.0, (0, 1): 2.0, (1, 0): 3.0, (1, 1): 4.0}, 2, min_heads_per_layer=1)
    [(0, 0), (1, 0)]
    """
    left: dict[int, int] = {}
    for layer, _ in values:
        left[layer] = left.get(layer, 0) + 1
    chosen: list[Head] = []
    together = bundles(values, shared)
    for bundle in sorted(together, key=lambda bundle: sum(values[head] for head in bundle) / len(bundle)):
        if len(chosen) + len(bundle) > count:
            if len(bundle) == 1:
                break
            continue
        if all(left[layer] > min_heads_per_layer for layer, _ in bundle):
            chosen += bundle
            for layer, _ in bundle:
                left[layer] -= 1
    return sorted(chosen)


def bundles(heads: Iterable[Head], shared: Sequence[Collection[int]] = ()) -> list[list[Head]]:
    """Heads that can only go together, by position: those of layers that share their weights, others alone."""
    partners = {layer: sorted(layers) for layers in shared for layer in layers}
    found = {tuple((other, head) for other in partners.get(layer, [layer])) for layer, head in heads}
    return [list(bundle) for bundle in sorted(found)]


def _hub_revision(source: str, revision: str | None) -> str | None:
    """A commit can be asked for; the fingerprint of a folder's content cannot."""
    return None if Path(source).is_dir() or revision is None or len(revision) != 40 else revision
