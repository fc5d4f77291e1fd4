"""What removing heads is predicted to cost, the refit that follows included, from one backward pass.

Removing a unit u (a head, a group, a layer) and refitting its layer changes the output projection V by a known amount
(Hassibi & Stork 1993, the optimal brain surgeon): with H the ridge regression's matrix and U the unit's features,

    dV_u = - H^-1[:, U] (H^-1[U, U])^-1 V[U] .

The loss moves along dV_u by the product of dV_u with the loss's gradient on V. Squares of such slopes, token by token,
give the curvature of the loss (the Fisher information), and between units

    C(S) = 1/2 sum_{u, v in S} F_uv ,     F_uv = mean over tokens of slope_u slope_v .

One backward pass per context would add the tokens' slopes before they are squared. With a random sign for each token's
loss the products of different tokens cancel in the mean, and one pass gives F without bias. A bias that is refitted
too centres the features. For a divergence, which has no labels, classes are drawn from the model's own prediction
(logits), or random directions are taken (embeddings).
Fisher information between heads: Kwon et al. 2022 (arXiv 2204.09656), after LeCun, Denker, Solla 1990.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from oattn_hub.adapters import AttentionSite
from oattn_hub.models.offloaded import refuse_gradients
from oattn_hub.pruning.compensate import Compensator, Moments, Refits, refitted
from oattn_hub.pruning.masks import masked_sites
from oattn_hub.pruning.projections import matrix, places
from oattn_hub.pruning.sites import Head, heads_of
from oattn_hub.pruning.stacks import split, stacks
from oattn_hub.pruning.watching import features_last, watched_projections

if TYPE_CHECKING:
    from oattn_hub.pruning.evaluation import Evaluator
    from oattn_hub.pruning.tasks import Metric

Values = NDArray[np.float64]
Unit = tuple[Head, ...]
# a layer, its heads' outputs, and what its output projection made of them
Projected = tuple[AttentionSite, torch.Tensor, torch.Tensor]
# Contexts of one backward pass, which keeps every layer's outputs.
_STACK = 8


@dataclass(frozen=True, eq=False)
class Removal:
    """How one module's output projection changes when units of it go.

    Attributes:
        weight: (features, width) the projection as it is now; zero for heads that were removed.
        mean: (features,) the mean of the features, if a bias makes good for it.
        units: positions of the units that this module holds.
        patterns: for every unit its features U and (features, |U|) H^-1[:, U] (H^-1[U, U])^-1.
    """

    weight: torch.Tensor
    mean: torch.Tensor | None
    units: list[int]
    patterns: list[tuple[torch.Tensor, torch.Tensor]]

    def slopes(self, features: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        """(units,) how fast the loss moves along each unit's dV, from one context's (tokens, ...) rows."""
        if self.mean is not None:
            features = features - self.mean.to(features)
        on_weight = features.T @ gradient
        return torch.stack([
            -((pattern.T.to(on_weight) @ on_weight) * self.weight[rows].to(on_weight)).sum()
            for rows, pattern in self.patterns
        ])  # fmt: skip


def removals(
    compensator: Compensator,
    moments: Mapping[str, Moments],
    units: Sequence[Unit],
    removed: Collection[Head],
    refits: Refits,
) -> Iterator[tuple[str, Removal]]:
    """Module by module: its projection without the heads that were removed, and the patterns of its units."""
    for site in compensator.sites:
        own = [number for number, unit in enumerate(units) if any(layer == site.layer for layer, _ in unit)]
        if site.turn or site.module_name not in moments or not own:
            continue
        lost = set(heads_of(site.layer, removed))
        kept = torch.tensor(places(site, set(range(site.n_heads)) - lost), dtype=torch.long)
        old = matrix(site)
        weight = torch.zeros_like(old)
        weight[kept] = refits[site.module_name].weight[kept] if site.module_name in refits else old[kept]
        sums = moments[site.module_name]
        inverse = compensator.inverse(site, sums, kept)
        patterns = [_pattern(site, units[number], kept, inverse) for number in own]
        mean = sums.x / sums.total if compensator.shifts(site) else None
        yield site.module_name, Removal(weight.float(), mean, own, patterns)


def _pattern(
    site: AttentionSite, unit: Unit, kept: torch.Tensor, inverse: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    own = torch.tensor(places(site, heads_of(site.layer, unit)), dtype=torch.long)
    full = torch.zeros(matrix(site).shape[0], len(own), dtype=torch.float64)
    if inverse is None or not bool(torch.isin(own, kept).all()):  # nothing is refitted, or the unit was removed already
        full[own, torch.arange(len(own))] = 1.0
        return own, full.float()
    where = torch.searchsorted(kept, own)
    columns = inverse[:, where]
    full[kept] = torch.linalg.solve(columns[where], columns.T).T
    return own, full.float()


def displaced(found: Iterable[tuple[str, Removal]], compensator: Compensator, n_units: int) -> Values:
    """(units,) by how much the layers' outputs move when a unit goes and its layer is refitted; no pass is needed.

    The increase of the ridge regression's own error, tr(V[U]' (H^-1[U, U])^-1 V[U]), for each weighted token; infinite
    for units of layers whose projections cannot be watched.
    """
    values, seen = np.zeros(n_units), np.zeros(n_units, dtype=bool)
    for name, removal in found:
        seen[removal.units] = True
        sums = compensator.unpruned[name]
        xx = sums.xx / sums.total
        if removal.mean is not None:
            xx = xx - torch.outer(removal.mean, removal.mean)
        for number, (rows, pattern) in zip(removal.units, removal.patterns, strict=True):
            moved = pattern.double() @ removal.weight[rows].double()
            values[number] += float((moved * (xx @ moved)).sum()) * sums.total / sums.count
    return np.where(seen, values, np.inf)


def fisher(
    evaluator: Evaluator,
    metric: Metric,
    found: Mapping[str, Removal],
    n_units: int,
    removed: Collection[Head],
    refits: Refits,
    seed: int = 0,
) -> Values:
    """(samples, units) slopes of every random scalar of every context along every unit's dV."""
    loaded, sites, task, inputs = evaluator.loaded, evaluator.sites, evaluator.task, evaluator.inputs
    refuse_gradients(loaded.model)
    size = 1 if any(site.output_module is None for site in sites) else _STACK
    rows, start = [], 0
    with refitted(sites, refits), masked_sites(loaded.model, sites, removed):
        for stack, count in stacks(loaded, inputs, size):
            seen: list[Projected] = []
            with torch.enable_grad(), watched_projections(loaded.model, sites, _keeper(seen)):
                outputs = split(task.read(loaded, stack), count)
            for scalar in task.samples(metric, outputs, inputs[start : start + count], seed + start):
                slopes = torch.autograd.grad(scalar, [one[2] for one in seen], retain_graph=True, allow_unused=True)
                rows.append(_by_context(seen, slopes, found, n_units, count))
            start += count
    return np.concatenate(rows)


def _keeper(seen: list[Projected]) -> Callable[[AttentionSite, torch.Tensor, torch.Tensor], None]:
    def see(site: AttentionSite, features: torch.Tensor, output: torch.Tensor) -> None:
        seen.append((site, features.detach(), output))

    return see


def _by_context(
    seen: Sequence[Projected],
    slopes: Sequence[torch.Tensor | None],
    found: Mapping[str, Removal],
    n_units: int,
    count: int,
) -> Values:
    total = np.zeros((count, n_units))
    for (site, features, _), slope in zip(seen, slopes, strict=True):
        removal = found.get(site.module_name)
        if removal is None or slope is None:
            continue
        gradient = features_last(site, slope).flatten(0, -2).unflatten(0, (count, -1))
        by_context = features.flatten(0, -2).unflatten(0, (count, -1))
        for number in range(count):
            total[number, removal.units] += removal.slopes(by_context[number], gradient[number]).double().numpy()
    return total
