"""Scores, plans, masks, surgery, evaluation and checkpoints: from "which heads?" to a smaller model that loads.

Plans are data and need no torch; the names that do need it are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oattn_hub.lazy import lazy_exports

if TYPE_CHECKING:
    from oattn_hub.pruning.evaluation import evaluate as evaluate
    from oattn_hub.pruning.manifest import read_manifest as read_manifest
    from oattn_hub.pruning.masks import masked as masked
    from oattn_hub.pruning.migration import migrate as migrate
    from oattn_hub.pruning.plan import PruningPlan as PruningPlan
    from oattn_hub.pruning.planning import plan_from_report as plan_from_report
    from oattn_hub.pruning.pruned import PrunedModel as PrunedModel
    from oattn_hub.pruning.reload import load_pruned as load_pruned
    from oattn_hub.pruning.scores import list_scores as list_scores
    from oattn_hub.pruning.validation import validate as validate

# public name -> module that defines it
_EXPORTS = {
    "PrunedModel": "oattn_hub.pruning.pruned",
    "PruningPlan": "oattn_hub.pruning.plan",
    "evaluate": "oattn_hub.pruning.evaluation",
    "list_scores": "oattn_hub.pruning.scores",
    "load_pruned": "oattn_hub.pruning.reload",
    "masked": "oattn_hub.pruning.masks",
    "migrate": "oattn_hub.pruning.migration",
    "plan_from_report": "oattn_hub.pruning.planning",
    "read_manifest": "oattn_hub.pruning.manifest",
    "validate": "oattn_hub.pruning.validation",
}

__all__ = [*_EXPORTS]

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
