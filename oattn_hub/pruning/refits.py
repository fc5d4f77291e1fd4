"""Refitted output projections: put into a cut model, and kept on disk beside their plan."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from oattn_hub.errors import FormatError, InvalidInput
from oattn_hub.files import read_tensors, write_tensors
from oattn_hub.inputs import calibration_inputs
from oattn_hub.inputs.types import Data
from oattn_hub.models.offloaded import add_weight, copied, replace_weight
from oattn_hub.pruning.compensate import KINDS, Compensator, Kind, Refit, Refits
from oattn_hub.pruning.origin import Compensation
from oattn_hub.pruning.projections import bias_owner, output_owner, rewritten
from oattn_hub.pruning.tasks import find_task

if TYPE_CHECKING:
    from oattn_hub.adapters import Adapter
    from oattn_hub.models.load import LoadedModel
    from oattn_hub.pruning.plan import PruningPlan

_WEIGHT, _SHIFT = ".weight", ".shift"


def write_refits(path: Path, refits: Refits) -> None:
    """Write refits as one safetensors file."""
    arrays = {f"{name}{_WEIGHT}": refit.weight.float().numpy() for name, refit in refits.items()}
    arrays |= {f"{name}{_SHIFT}": r.shift.float().numpy() for name, r in refits.items() if r.shift is not None}
    write_tensors(path, {name: np.ascontiguousarray(array) for name, array in arrays.items()})


def read_refits(path: Path) -> dict[str, Refit]:
    """Refits back from :func:`write_refits`."""
    arrays = {name: torch.from_numpy(array) for name, array in read_tensors(path, sealed=True).items()}
    names = [name.removesuffix(_WEIGHT) for name in arrays if name.endswith(_WEIGHT)]
    if not names or len(names) != sum(not name.endswith(_SHIFT) for name in arrays):
        raise FormatError(f"{path} holds no refitted output projections; make the plan again.")
    return {name: Refit(arrays[f"{name}{_WEIGHT}"], arrays.get(f"{name}{_SHIFT}")) for name in sorted(names)}


def with_refits(
    plan: PruningPlan, loaded: LoadedModel, compensate: Kind | bool | None, inputs: Data = None
) -> PruningPlan:
    """The plan with the refits it is to be applied with, saying only what is true of them.

    Args:
        plan: which heads, and perhaps the refits its cost was measured with.
        loaded: its model.
        compensate: None is what the plan was measured with; ``"none"`` or False the plain cut; ``"refit"`` (True) or
            ``"bias"`` the plan's own refits if they are of that kind, else new ones, whose cost nobody has measured.
        inputs: what new refits are fitted to; None is the bundled calibration data.
    """
    kind = {None: None, True: "refit", False: "none"}.get(compensate, compensate)  # type: ignore[arg-type]
    if kind not in (None, *KINDS):
        raise InvalidInput(f"compensate is {compensate!r}; choose from {', '.join(KINDS)}, True and False.")
    measured = plan.compensation["kind"] if plan.compensation else "none"
    if kind in (None, measured):
        if measured != "none" and not plan.refits:
            raise InvalidInput(
                "The plan was measured with refitted output projections, and they are not at hand (they lie beside the "
                "plan's JSON as .safetensors). Bring them, or apply the plan with compensate='none' or 'refit'."
            )
        return plan
    if kind == "none":
        return replace(plan, cost=None, compensation=None, refits=None)
    seen = calibration_inputs(loaded, inputs, batches=32, part=None if inputs is not None else "calibration")
    seen = find_task(loaded, seen).shown(seen)
    refits = Compensator(loaded, plan.adapter_of(loaded.model).sites, seen, kind).refits(plan.heads)
    compensation: Compensation = {
        "kind": kind,
        "layers": len(refits),
        "fitted_on": seen.description,
        "inputs": seen.fingerprint,
    }
    return replace(plan, cost=None, compensation=compensation, refits=refits)


def refitted_copy(
    plan: PruningPlan, loaded: LoadedModel, inplace: bool = False
) -> tuple[LoadedModel, Adapter, list[str]]:
    """The uncut model with the plan's refits for its weights, its adapter, and the modules that were given a bias."""
    sites = plan.adapter_of(loaded.model).sites
    model = loaded.model if inplace else copied(loaded.model, [site.module for site in sites])
    adapter = plan.adapter_of(model)
    added = []
    for site in adapter.sites:
        refit = (plan.refits or {}).get(site.module_name)
        if refit is None or site.turn:
            continue
        replace_weight(*output_owner(site), rewritten(site, refit.weight))
        owner: Any = bias_owner(site)
        if refit.shift is None or owner is None:
            continue
        if owner.bias is None:
            add_weight(owner, "bias", refit.shift)
            added.append(next(name for name, module in model.named_modules() if module is owner))
        else:
            replace_weight(owner, "bias", partial(_shifted, shift=refit.shift))
    return replace(loaded, model=model), adapter, added


def _shifted(bias: torch.Tensor, shift: torch.Tensor) -> torch.Tensor:
    return bias + shift.to(bias)
