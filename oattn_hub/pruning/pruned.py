"""A model with heads cut out, and what that saved."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from oattn_hub.errors import InvalidInput, OattnError, SurgeryError
from oattn_hub.inputs import CalibrationInputs, calibration_inputs
from oattn_hub.models.load import LoadedModel, load_model
from oattn_hub.pruning.masks import masked_sites
from oattn_hub.pruning.plan import PruningPlan
from oattn_hub.pruning.portable import apply_cuts
from oattn_hub.pruning.readout import readouts
from oattn_hub.pruning.surgery import CutList, cut_list

if TYPE_CHECKING:
    from oattn_hub.report.evaluation import EvaluationSection

PRUNING_KEY = "oattn_pruning"
# A cut model that differs from the masked one by more than this part of the output's size was cut wrongly.
_TOLERANCE = 1e-4


@dataclass(frozen=True)
class PruningResult:
    """Size and speed before and after. FLOPs and seconds are of one forward call on ``tokens`` tokens."""

    heads_before: int
    heads_after: int
    parameters_before: int
    parameters_after: int
    tokens: int | None = None
    flops_before: int | None = None
    flops_after: int | None = None
    seconds_before: float | None = None
    seconds_after: float | None = None

    def to_json(self) -> dict[str, Any]:
        """The result as a JSON-able dict."""
        return asdict(self)

    def __str__(self) -> str:
        lines = [
            _saving("heads", self.heads_before, self.heads_after),
            _saving("parameters", self.parameters_before, self.parameters_after),
        ]
        if self.flops_before and self.flops_after:
            lines.append(_saving(f"FLOPs at {self.tokens} tokens", self.flops_before, self.flops_after))
        if self.seconds_before and self.seconds_after:
            before, after = 1000 * self.seconds_before, 1000 * self.seconds_after
            lines.append(f"latency: {before:.1f} ms -> {after:.1f} ms ({after / before - 1:+.1%})")
        return "\n".join(lines)


@dataclass(frozen=True)
class PrunedModel:
    """A smaller model, the plan that made it, and the cuts that rebuild it."""

    model: nn.Module
    plan: PruningPlan
    cuts: CutList
    result: PruningResult
    loaded: LoadedModel
    evaluation: EvaluationSection | None = None

    def save_pretrained(self, folder: str | Path, variant: str = "cut", **options: Any) -> Path:
        """Write a checkpoint; see :func:`oattn_hub.pruning.checkpoint.save_checkpoint`."""
        from oattn_hub.pruning.checkpoint import save_checkpoint

        return save_checkpoint(self, Path(folder), variant, **options)

    def push_to_hub(self, repo_id: str, **options: Any) -> Any:
        """Publish the checkpoint; see :func:`oattn_hub.hub.push_checkpoint`."""
        from oattn_hub.hub import push_checkpoint

        return push_checkpoint(self, repo_id, **options)


def prune(
    plan: PruningPlan,
    model: Any = None,
    *,
    inputs: Any = None,
    inplace: bool = False,
    allow_other_weights: bool = False,
    measure: bool = True,
    evaluation: EvaluationSection | None = None,
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
    """
    loaded = plan.load() if model is None else load_model(model)
    sites = plan.check(loaded.model, allow_other_weights)
    if _cuts_of(loaded.model) is not None:
        raise SurgeryError(
            f"{loaded.model_id} was pruned before. Prune the original once, with the heads of both plans together."
        )
    cuts = cut_list(loaded.model, plan.heads, plan.adapter)
    before = sum(p.numel() for p in loaded.model.parameters())
    smaller = loaded.model if inplace else copy.deepcopy(loaded.model)
    apply_cuts(smaller, cuts)
    _remember(smaller, cuts)
    after = sum(p.numel() for p in smaller.parameters())
    result = PruningResult(plan.n_heads, plan.n_heads - len(plan.heads), before, after)
    pruned = replace(loaded, model=smaller)
    batches = None if inplace else _inputs(loaded, inputs)
    if batches is not None:
        with masked_sites(loaded.model, sites, plan.heads):
            expected = readouts(loaded, batches[0])
        _check_equal(expected, readouts(pruned, batches[0]))
        if measure:
            result = replace(result, **_measured(loaded, pruned, batches[0], batches.tokens))
    return PrunedModel(smaller, plan, cuts, result, pruned, evaluation or plan.evaluation)


def _cuts_of(model: Any) -> Any:
    """The cuts a model was made with; kept in its config, or on the module where there is none."""
    return getattr(getattr(model, "config", None), PRUNING_KEY, None) or getattr(model, PRUNING_KEY, None)


def _remember(model: Any, cuts: CutList) -> None:
    config = getattr(model, "config", None)
    setattr(config if hasattr(config, "to_dict") else model, PRUNING_KEY, cuts)


def _inputs(loaded: LoadedModel, inputs: Any) -> CalibrationInputs | None:
    """What to check the cut on; None where the model's inputs are not known."""
    try:
        return calibration_inputs(loaded, inputs, batches=1, tokens=128)
    except OattnError:
        if inputs is not None:
            raise
        return None


def _check_equal(expected: list[torch.Tensor], found: list[torch.Tensor]) -> None:
    for masked, cut in zip(expected, found, strict=True):
        difference, size = (masked - cut).abs().max().item(), masked.abs().max().item()
        if not difference <= _TOLERANCE * max(1.0, size):
            raise SurgeryError(
                f"The cut model differs from the masked one by {difference:.2g} (outputs reach {size:.2g}), so the "
                "adapter's layout does not describe this model. Use plan.masked(model), and please report the model."
            )


def _measured(
    before: LoadedModel, after: LoadedModel, batch: Mapping[str, torch.Tensor], tokens: int | None
) -> dict[str, Any]:
    seconds = latencies([before, after], batch)
    return {
        "tokens": tokens,
        "flops_before": count_flops(before, batch),
        "flops_after": count_flops(after, batch),
        "seconds_before": seconds[0],
        "seconds_after": seconds[1],
    }


def count_flops(loaded: LoadedModel, batch: Mapping[str, torch.Tensor]) -> int:
    """Floating point operations of one forward call, as torch counts them."""
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter, torch.no_grad():
        loaded.forward(batch)
    return int(counter.get_total_flops())


def latencies(models: list[LoadedModel], batch: Mapping[str, torch.Tensor], repeats: int = 7) -> list[float]:
    """Median seconds of a forward call of each model, measured in turn so that a busy machine is unfair to none."""
    if repeats < 1:
        raise InvalidInput(f"repeats is {repeats}; it is a count, 1 or more.")
    seconds: list[list[float]] = [[] for _ in models]
    with torch.no_grad():
        for turn in range(repeats + 1):
            for loaded, found in zip(models, seconds, strict=True):
                start = time.perf_counter()
                loaded.forward(batch)
                if turn:  # the first call warms up
                    found.append(time.perf_counter() - start)
    return [statistics.median(found) for found in seconds]


def _saving(what: str, before: float, after: float) -> str:
    return f"{what}: {before:,} -> {after:,} ({after / before - 1:+.1%})"
