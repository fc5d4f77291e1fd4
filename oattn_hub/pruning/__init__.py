"""Scores, plans, masks, surgery, evaluation and checkpoints: from "which heads?" to a smaller model that loads.

Plans are data and need no torch; the names that do need it are imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from oattn_hub.pruning.checkpoint import load_pruned as load_pruned
    from oattn_hub.pruning.checkpoint import read_manifest as read_manifest
    from oattn_hub.pruning.evaluation import evaluate as evaluate
    from oattn_hub.pruning.masks import masked as masked
    from oattn_hub.pruning.migration import migrate as migrate
    from oattn_hub.pruning.plan import PruningPlan as PruningPlan
    from oattn_hub.pruning.planning import plan_from_report as plan_from_report
    from oattn_hub.pruning.pruned import PrunedModel as PrunedModel
    from oattn_hub.pruning.scores import list_scores as list_scores

# public name -> module that defines it
_EXPORTS = {
    "PrunedModel": "pruned",
    "PruningPlan": "plan",
    "evaluate": "evaluation",
    "list_scores": "scores",
    "load_pruned": "checkpoint",
    "masked": "masks",
    "migrate": "migration",
    "plan_from_report": "planning",
    "read_manifest": "checkpoint",
}

__all__ = [*_EXPORTS]


def __getattr__(name: str) -> Any:
    if name not in _EXPORTS:
        raise AttributeError(f"module 'oattn_hub.pruning' has no attribute {name!r}; it has {', '.join(_EXPORTS)}")
    return getattr(import_module(f"oattn_hub.pruning.{_EXPORTS[name]}"), name)
