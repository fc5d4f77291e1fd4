"""Which classes load a pruned checkpoint: its own, its base model's, and the other task classes of its family.

A pruned base model is there to be trained on for a task: ``AutoModelForSequenceClassification`` puts a new head on it,
as it does on the original.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

import torch
from torch import nn

from oattn_hub.pruning.portable import apply_cuts
from oattn_hub.records import PRUNING_KEY
from oattn_hub.types import Function

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class Served:
    """A class that loads the checkpoint.

    Attributes:
        cls: transformers' own class.
        prefix: what the paths of cuts begin with that this class lacks.
        expected: arguments of ``checks.check_keys`` where another class than this one was saved.
    """

    cls: type
    prefix: str = ""
    expected: Mapping[str, object] = field(default_factory=dict)


def served_classes(model: PreTrainedModel) -> list[Served]:
    """The model's own class first; none for a model that is not transformers' own."""
    if not type(model).__module__.startswith("transformers."):
        return []
    name = model.base_model_prefix
    base: PreTrainedModel | None = getattr(model, name, None) if name else None
    if base is None or not hasattr(base, "from_pretrained") or type(base).__name__ == type(model).__name__:
        own = Served(type(model), expected={"own": f"{name}."} if name else {})
        return [own, *_tasks(model, model, prefix="")]
    prefix = f"{name}."
    wanted, has = set(_outline(type(base), base).state_dict()), set(base.state_dict())
    # a base model inside a task's class may be built without a part (BERT's pooler) or with one more (ViT's mask token)
    expected = {"own": prefix, "may_lack": sorted(wanted - has | _computed(model, prefix))}
    expected["spare"] = sorted(f"{prefix}{key}" for key in has - wanted)
    return [Served(type(model)), Served(type(base), prefix, expected), *_tasks(model, base, prefix)]


@cache
def _names_of_auto_classes() -> tuple[str, ...]:
    """AutoBackbone is none of them: it reads no local folders. Listing all that transformers has takes a while."""
    import transformers

    return tuple(name for name in dir(transformers) if name.startswith("AutoModel"))


def auto_classes(model_type: str) -> Iterator[tuple[str, Sequence[str]]]:
    """Auto class and the names of the classes it loads for a model type."""
    import transformers

    for auto in _names_of_auto_classes():
        mapping = getattr(getattr(transformers, auto, None), "_model_mapping", None)
        served = mapping._model_mapping.get(model_type) if mapping is not None else None
        if served is not None:
            yield auto, [served] if isinstance(served, str) else served


def _computed(model: PreTrainedModel, prefix: str) -> set[str]:
    """Weights of the base model that the class of ``model`` computes and never saves (Marian's positions)."""
    return {key.removeprefix(prefix) for key in model._keys_to_ignore_on_save or () if key.startswith(prefix)}


def _tasks(model: PreTrainedModel, base: PreTrainedModel, prefix: str) -> Iterator[Served]:
    """Task classes with the same base model under the same name, on which the cuts can be made."""
    import transformers

    name, has = model.base_model_prefix, set(base.state_dict())
    known = {served for _, names in auto_classes(model.config.model_type) for served in names}
    for cls in (getattr(transformers, other, None) for other in sorted(known)):
        if cls in (None, type(model), type(base)) or getattr(cls, "base_model_prefix", None) != name:
            continue
        try:
            task = _outline(cls, model)
            inner = getattr(task, name)
            wanted = set(inner.state_dict())
            apply_cuts(task, getattr(model.config, PRUNING_KEY))
        except Exception:  # whatever a class says to a config of another task
            continue
        if type(inner) is type(base):
            lacking = {"may_lack": sorted(f"{name}.{key}" for key in wanted - has)}
            spare = {"spare": sorted(f"{prefix}{key}" for key in has - wanted)}
            yield Served(cls, expected={"own": prefix, "base": f"{name}.", **lacking, **spare})


def _outline(cls: Function, like: PreTrainedModel) -> nn.Module:
    """A model without weights. What a class says to a config of another task is nothing to the user, who built none."""
    from transformers.utils import logging

    config = copy.deepcopy(like.config)
    config.dtype = like.dtype  # saving leaves a string there, which some classes cannot build from
    spoken = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        with torch.device("meta"):
            found: nn.Module = cls(config)
    finally:
        logging.set_verbosity(spoken)
    return found
