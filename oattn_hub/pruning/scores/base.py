"""What a head-importance score is, and what it may look at."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oattn_hub.records import Head

if TYPE_CHECKING:
    from oattn_hub.adapters import AttentionSite
    from oattn_hub.inputs import CalibrationInputs
    from oattn_hub.models.load import LoadedModel
    from oattn_hub.pruning.outputs import OutputGeometry
    from oattn_hub.pruning.tasks import Task
    from oattn_hub.report import Report

Values = NDArray[np.float64]


@dataclass(frozen=True)
class Score:
    """A rule that gives every head a number; the lowest goes first.

    Attributes:
        name: what the user writes.
        title: what tables and figures print.
        citation: where it comes from.
        cost: what computing it takes.
        measure: the rule; (n_heads,) values in model order.
        by_input: of a rule that is a mean over inputs, (n_heads, n_inputs) what it is the mean of.
    """

    name: str
    title: str
    citation: str
    cost: str
    measure: Callable[[Subject], Values]
    by_input: Callable[[Subject], Values] | None = None


@dataclass(frozen=True, eq=False)
class Subject:
    """The model under study, with the calibration inputs that all scores share."""

    loaded: LoadedModel
    inputs: CalibrationInputs
    task: Task
    report: Report | None = None
    adapter: str | None = None
    seed: int = 0

    @cached_property
    def sites(self) -> list[AttentionSite]:
        """The attention layers, in model order."""
        from oattn_hub.pruning.sites import head_sites

        return head_sites(self.loaded.model, self.adapter)

    @cached_property
    def heads(self) -> list[Head]:
        """(layer, head) of every head, in model order."""
        from oattn_hub.pruning.sites import all_heads

        return all_heads(self.sites)

    @cached_property
    def reference(self) -> Any:
        """The unpruned model's outputs on the calibration inputs."""
        return self.task.observe(self.loaded, self.inputs)

    @cached_property
    def alone(self) -> Values:
        """(n_heads, n_inputs) how far the outputs move without one head."""
        from oattn_hub.pruning.masks import masked_sites

        found = []
        for head in self.heads:
            with masked_sites(self.loaded.model, self.sites, [head]):
                seen = self.task.observe(self.loaded, self.inputs)
            found.append(self.task.divergence(seen, self.reference))
        return np.array(found)

    @cached_property
    def outputs(self) -> OutputGeometry:
        """What the heads write on the calibration inputs, organised."""
        from oattn_hub.pruning.outputs import output_geometry

        return output_geometry(self.loaded, self.sites, self.inputs)

    def in_model_order(self, values: dict[Head, float]) -> Values:
        """Values by head as an array in model order."""
        return np.array([values[head] for head in self.heads], dtype=np.float64)
