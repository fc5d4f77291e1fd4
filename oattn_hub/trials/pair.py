"""Two models under one question: a pruned checkpoint and what it was made from."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

from oattn_hub.errors import LoadError
from oattn_hub.models.load import LoadedModel, Source, load_again, load_model
from oattn_hub.models.options import LoadAgain
from oattn_hub.pruning import read_manifest


@dataclass(frozen=True)
class ModelPair:
    """The base model, and the same model without some of its heads."""

    base: LoadedModel
    pruned: LoadedModel


def open_pair(folder: str | Path, model: Source | None = None, **permissions: Unpack[LoadAgain]) -> ModelPair:
    """The checkpoint in ``folder`` and its base model.

    Args:
        folder: what ``oattn prune`` or ``pruned.save_pretrained`` wrote.
        model: the base model, if it is not where the checkpoint says; anything ``load_model`` takes.
        permissions: what only the caller may grant to load it: ``trust_remote_code``, ``token`` …
    """
    plan = read_manifest(Path(folder)).plan
    if model is not None:
        base = load_model(model, **permissions)
    elif plan.model.source is not None:
        base = load_again(plan.model, **permissions)
    else:
        raise LoadError(f"{folder} does not say where its base model can be loaded from. Name it with --model.")
    plan.check(base.model)  # a comparison with another model would say nothing about the heads
    return ModelPair(base, load_model(folder))
