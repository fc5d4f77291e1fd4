"""A model with heads cut out, and what that saved."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import torch
from torch import nn

from oattn_hub.adapters import adapt
from oattn_hub.attention import MemoryStore
from oattn_hub.errors import InvalidInput, OattnError, SurgeryError
from oattn_hub.inputs import CalibrationInputs, calibration_inputs
from oattn_hub.inputs.types import Data
from oattn_hub.models.load import LoadedModel, Source, load_model
from oattn_hub.models.offloaded import copied, is_offloaded, refuse_gradients
from oattn_hub.models.options import LoadAgain
from oattn_hub.pruning import costs
from oattn_hub.pruning.ablation import check_masking
from oattn_hub.pruning.costs import PruningResult
from oattn_hub.pruning.cutting import cut_model
from oattn_hub.pruning.masks import masked_sites
from oattn_hub.pruning.plan import PruningPlan
from oattn_hub.pruning.portable import apply_cuts
from oattn_hub.pruning.readout import is_exact, largest_difference, readouts, tolerance_of
from oattn_hub.pruning.refits import refitted_copy, with_refits
from oattn_hub.pruning.sites import adapter_of
from oattn_hub.pruning.surgery import CutList, cut_list
from oattn_hub.records import PRUNING_KEY

if TYPE_CHECKING:
    from oattn_hub.hub.publish import Publication
    from oattn_hub.pruning.compensate import Kind
    from oattn_hub.report.evaluation import EvaluationSection


@dataclass(frozen=True)
class PrunedModel:
    """A smaller model, the plan that made it, and the cuts that rebuild it; ``probe`` is what it was checked on."""

    model: nn.Module
    plan: PruningPlan
    cuts: CutList
    result: PruningResult
    loaded: LoadedModel
    evaluation: EvaluationSection | None = None
    probe: Mapping[str, torch.Tensor] | None = None

    def save_pretrained(self, folder: str | Path, variant: str = "cut", **options: Any) -> Path:
        """Write a checkpoint; see :func:`oattn_hub.pruning.checkpoint.save_checkpoint`."""
        from oattn_hub.pruning.checkpoint import save_checkpoint

        save_checkpoint(self, Path(folder), variant, **options)
        return Path(folder)

    def heal(self, model: Source | None = None, **options: Any) -> PrunedModel:
        """Train the output projections for a few minutes; see :func:`oattn_hub.pruning.heal.heal`."""
        from oattn_hub.pruning.heal import heal

        refuse_gradients(self.model)
        return heal(self, model, **options)

    def push_to_hub(self, repo_id: str, **options: Any) -> Publication:
        """Publish the checkpoint; see :func:`oattn_hub.hub.push_checkpoint`."""
        from oattn_hub.hub import push_checkpoint

        return push_checkpoint(self, repo_id, **options)


def prune(
    plan: PruningPlan,
    model: Source | None = None,
    *,
    inputs: Data = None,
    inplace: bool = False,
    allow_other_weights: bool = False,
    measure: bool = True,
    evaluation: EvaluationSection | None = None,
    compensate: Kind | bool | None = None,
    **permissions: Unpack[LoadAgain],
) -> PrunedModel:
    """Cut the plan's heads out of a model and make sure that the result is the masked model.

    Args:
        plan: which heads.
        model: a module, a loaded model or a spec; None loads the model the plan was made for.
        inputs: a list of dicts of forward arguments to check and measure on; None makes some where it can be done.
        inplace: cut the given module itself instead of a copy (no check against the masked model, no comparison).
        allow_other_weights: apply the plan to a model of the same structure with other weights.
        measure: also measure FLOPs and latency before and after.
        evaluation: goes along to the checkpoint's card; None takes the one of the plan's report.
        compensate: None refits output projections if the plan was measured so; False is the plain cut; see
            :func:`oattn_hub.pruning.refits.with_refits`.
        permissions: what only the caller may grant to load the model: ``trust_remote_code``, ``token`` …
    """
    loaded = plan.load(**permissions) if model is None else load_model(model, **permissions)
    plan = _bound(plan, loaded, allow_other_weights, inputs)
    sites = plan.adapter_of(loaded.model).sites
    plan = with_refits(plan, loaded, compensate, inputs)
    before = sum(p.numel() for p in loaded.model.parameters())
    # the sites of a model are found once: in the original, and in the copy with other output projections
    whole, adapter, added = (
        refitted_copy(plan, loaded, inplace) if plan.refits else (loaded, plan.adapter_of(loaded.model), [])
    )
    cuts = cut_list(whole.model, plan.heads, adapter)
    cuts.setdefault("bias", []).extend(added)
    smaller = whole.model if inplace else copied(whole.model, [site.module for site in adapter.sites])
    try:
        cut_model(smaller, cuts)
    except Exception as error:
        raise _cannot_run(loaded, error) from error
    _remember(smaller, cuts)
    after = sum(p.numel() for p in smaller.parameters())
    _check_smaller(before, after)
    result = PruningResult(plan.n_heads, plan.n_heads - len(plan.heads), before, after)
    pruned = replace(loaded, model=smaller)
    batches = None if inplace else _inputs(loaded, inputs)
    if batches is not None:
        if is_exact(loaded.model):
            check_masking(loaded.model, sites, plan.heads, lambda: readouts(loaded, batches[0]))
        _check_runs(whole, pruned, replace(plan, bound=adapter), cuts, batches[0])
        if measure and not is_offloaded(loaded.model):  # the time would be that of the disk
            result = replace(result, **costs.measure(loaded, pruned, batches[0], batches.tokens))
    probe = None if batches is None else batches[0]
    plan = replace(plan, bound=None)  # it would keep the original in memory
    return PrunedModel(smaller, plan, cuts, result, pruned, evaluation or plan.evaluation, probe)


def _bound(plan: PruningPlan, loaded: LoadedModel, allow_other_weights: bool, inputs: Data) -> PruningPlan:
    """The plan bound to the model, if it is for it; attention that only a forward call shows is looked for once."""
    if _cuts_of(loaded.model) is not None:
        original = loaded.info.base_model
        named = f" ({original}; plan.model.removed lists the heads that it lost)" if original else ""
        raise SurgeryError(
            f"{loaded.model_id} was pruned before. Prune the original{named} once, with the heads of both plans "
            "together."
        )
    try:
        plan = replace(plan, bound=plan.adapter_of(loaded.model))
        plan.check(loaded.model, allow_other_weights)
    except InvalidInput:
        batches = _inputs(loaded, inputs)
        if batches is None:
            raise
        with adapt(loaded.model, plan.adapter).hook(MemoryStore()), torch.no_grad():
            loaded.forward(batches[0])
        plan = replace(plan, bound=adapter_of(loaded.model, plan.adapter))
        plan.check(loaded.model, allow_other_weights)
    return plan


def _check_smaller(before: int, after: int) -> None:
    if after > before:
        raise SurgeryError(
            f"The cut model has {after:,} parameters and the original {before:,}, so nothing was gained: the original "
            "shares weights that a cut takes apart. Use plan.masked(model), and please report the model."
        )


def _check_runs(
    whole: LoadedModel, pruned: LoadedModel, plan: PruningPlan, cuts: CutList, batch: Mapping[str, torch.Tensor]
) -> None:
    """As :func:`_check_cut`; a forward that reads a size we do not know of says so in its own way."""
    try:
        _check_cut(whole, pruned, plan, cuts, batch)
    except OattnError:
        raise
    except Exception as error:
        raise _cannot_run(pruned, error) from error


def _cannot_run(loaded: LoadedModel, error: Exception) -> SurgeryError:
    reason = " ".join(str(error).split())[:200]
    return SurgeryError(
        f"{loaded.model_id} does not run with these heads cut out ({type(error).__name__}: {reason}); the model is as "
        "it was. Use plan.masked(model), save the masked variant, or describe the model in an adapter of your own."
    )


def _cuts_of(model: nn.Module) -> CutList | None:
    """The cuts a model was made with; kept in its config, or on the module where there is none."""
    return getattr(getattr(model, "config", None), PRUNING_KEY, None) or getattr(model, PRUNING_KEY, None)


def _remember(model: nn.Module, cuts: CutList) -> None:
    config = getattr(model, "config", None)
    setattr(config if hasattr(config, "to_dict") else model, PRUNING_KEY, cuts)


def _inputs(loaded: LoadedModel, inputs: Data) -> CalibrationInputs | None:
    """What to check the cut on; None where the model's inputs are not known."""
    try:
        return calibration_inputs(loaded, inputs, batches=1, tokens=128)
    except OattnError:
        if inputs is not None:
            raise
        return None


def _check_cut(
    loaded: LoadedModel, pruned: LoadedModel, plan: PruningPlan, cuts: CutList, batch: Mapping[str, torch.Tensor]
) -> None:
    """Make sure that masked and cut model have the same outputs.

    A model of lower precision is compared as a float32 copy: its own rounding can be as large as a small mistake. For
    a copy of an offloaded model there may be no memory; it is compared as it is.
    """
    if is_exact(loaded.model) or is_offloaded(loaded.model):
        original, smaller = loaded, pruned
    else:
        original = smaller = replace(loaded, model=copy.deepcopy(loaded.model).float())
        batch = {name: value.float() if value.is_floating_point() else value for name, value in batch.items()}
    with masked_sites(original.model, plan.adapter_of(original.model).sites, plan.heads):
        expected = readouts(original, batch)
    try:
        if smaller is original:
            apply_cuts(smaller.model, cuts)
        found = readouts(smaller, batch)
    except (RuntimeError, ValueError, TypeError, IndexError) as error:  # whatever a forward says to a wrong shape
        raise SurgeryError(
            f"The cut model does not run ({' '.join(str(error).split())[:200]}), so the adapter's layout does not "
            "describe this model. Use plan.masked(model) or the masked variant, and please report the model."
        ) from error
    _check_equal(expected, found, tolerance_of(original.model))


def _check_equal(expected: list[torch.Tensor], found: list[torch.Tensor], tolerance: float) -> None:
    """Compare the outputs of the two models; keys and values that a model returns have fewer heads after a cut."""
    alike = [(masked, cut) for masked, cut in zip(expected, found, strict=True) if masked.shape == cut.shape]
    if not alike:
        raise SurgeryError(
            "The cut model answers with tensors of other shapes than the masked one, so the adapter's layout does not "
            "describe this model. Use plan.masked(model), and please report the model."
        )
    for masked, cut in alike:
        difference, size = largest_difference(masked, cut)
        if difference > tolerance * max(1.0, size):
            raise SurgeryError(
                f"The cut model differs from the masked one by {difference:.2g} (outputs reach {size:.2g}), so the "
                "adapter's layout does not describe this model. Use plan.masked(model), and please report the model."
            )
