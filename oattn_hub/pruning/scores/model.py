"""Scores read off the model: its weights, its gradients, and what happens without a head."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from oattn_hub.pruning.scores.base import Score, Subject, Values

if TYPE_CHECKING:
    import torch

    from oattn_hub.adapters import AttentionSite
    from oattn_hub.models.load import LoadedModel


def _weight(subject: Subject) -> Values:
    return np.array([_value_output_norm(site, head) for site in subject.sites for head in range(site.n_heads)])


def _value_output_norm(site: AttentionSite, head: int) -> float:
    """Frobenius norm of W_V W_O of one head: the largest map from an attended token to the output."""
    from oattn_hub.pruning.projections import head_rows

    output = head_rows(site)[site.features([head])].float()
    value = _value_weight(site, head)
    if value is None:
        return float(output.norm())
    if value.shape[0] != output.shape[0]:  # parameters with an axis of their own for heads
        return float(output.norm() * value.norm())
    return float((value.T @ output).norm())


def _value_weight(site: AttentionSite, head: int) -> torch.Tensor | None:
    """(head width, model width) the value projection of one head."""
    from oattn_hub.adapters.site import weight_axis
    from oattn_hub.pruning.projections import axis_values

    kv_head = head * site.n_kv_heads // site.n_heads
    for axis in site.layout.projections:
        found = site.find(axis.path)
        if found is None or not {"v", "qkv"} & set(axis.blocks):
            continue
        weight = axis_values(site, axis).float()
        rows = weight.movedim(weight_axis(found, axis.axis), 0).flatten(1) if weight.dim() > 1 else weight[:, None]
        places = site.ranges(axis, rows.shape[0], [head], [kv_head])
        start, stop = places[-1]  # values come last, in fused blocks as in the slice of one head
        if "qkv" in axis.blocks:
            start = stop - (stop - start) // 3
        return rows[start:stop]
    return None


def _gradient(subject: Subject) -> Values:
    """Mean over inputs of |d loss / d gate|, the gate multiplying the head's output (Michel et al., eq. 7)."""
    total = np.zeros(len(subject.heads))
    for number, batch in enumerate(subject.inputs):
        losses = partial(subject.task.losses, subject.loaded, batch, seed=subject.seed + number)
        slopes = gate_gradients(subject.loaded, subject.sites, losses)
        total += np.sqrt(np.mean(slopes[:, 0] ** 2, axis=0))
    return total / len(subject.inputs)


def gate_gradients(
    loaded: LoadedModel, sites: Sequence[AttentionSite], scalars: Callable[[], list[torch.Tensor]], n_inputs: int = 1
) -> Values:
    """(scalars, inputs, heads) gradients with respect to gates that multiply each head's output on each input.

    Args:
        loaded: the model; heads that are masked meanwhile have gradient zero.
        sites: its attention layers.
        scalars: runs the model on the stacked inputs and returns what to take gradients of.
        n_inputs: how many inputs are stacked; 1 where an output projection is read as a parameter.
    """
    import torch

    from oattn_hub.models.offloaded import refuse_gradients
    from oattn_hub.pruning.masks import watched_outputs

    refuse_gradients(loaded.model)
    gates = {site.layer: torch.ones(n_inputs, site.n_heads, requires_grad=True) for site in sites}
    weights = []
    with ExitStack() as stack, torch.enable_grad():
        for site in sites:
            if site.output_module is None:
                weights.append(site.find(site.layout.output.path))
            else:
                stack.enter_context(watched_outputs(loaded.model, site, _gated(site, gates[site.layer])))
        found = []
        for scalar in scalars():
            slopes = torch.autograd.grad(scalar, [*gates.values(), *weights], retain_graph=True, allow_unused=True)
            by_layer = dict(zip(gates, slopes, strict=False))
            found.append(_by_head(sites, n_inputs, by_layer, weights, slopes[len(gates) :]))
    return np.stack(found)


def _gated(site: AttentionSite, gate: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    import torch

    heads = torch.zeros(site.output_weight.shape[0], dtype=torch.long)
    for head in range(site.n_heads):
        heads[site.features([head])] = head

    def multiply(features: torch.Tensor) -> torch.Tensor:
        # (rows, features); an input may be several rows of the projection (windows)
        factors = gate.to(features)[:, heads.to(features.device)]
        factors = factors.repeat_interleave(len(features) // len(gate), dim=0)
        if isinstance(site.output_module, torch.nn.Conv2d):
            return features * factors[:, :, None, None]
        between = (1,) * (features.dim() - 2)
        return features * factors.reshape(len(features), *between, -1)

    return multiply


def _by_head(
    sites: Sequence[AttentionSite], n_inputs: int, gates: dict[int, Any], weights: list[Any], gradients: Any
) -> Values:
    """(inputs, heads) gradients in model order; where the output is a parameter, W . dL/dW of the head's part."""
    values, position = [], 0
    for site in sites:
        if site.output_module is not None:
            found = gates[site.layer]
            values.append(np.zeros((n_inputs, site.n_heads)) if found is None else found.double().numpy())
            continue
        weight, gradient = weights[position], gradients[position]
        position += 1
        product = (weight * gradient).detach().movedim(int(site.layout.output.axis), 0).flatten(1).sum(1)
        own = [float(product[site.features([head])].sum()) for head in range(site.n_heads)]
        values.append(np.array([own]))
    return np.concatenate(values, axis=1)


def _ablations(subject: Subject) -> Values:
    return subject.alone


def _ablation(subject: Subject) -> Values:
    return np.asarray(_ablations(subject).mean(axis=1))


def _random(subject: Subject) -> Values:
    return np.random.default_rng(subject.seed).random(len(subject.heads))


WEIGHT = Score("weight", "weight magnitude of W_V W_O", "Han et al. 2015, per head", "no input at all", _weight)
GRADIENT = Score(
    "gradient",
    "gradient importance",
    "Michel, Levy, Neubig 2019, arXiv 1905.10650",
    "one forward and backward pass per input",
    _gradient,
)
ABLATION = Score(
    "ablation",
    "single-head ablation",
    "Michel, Levy, Neubig 2019, section 3.2; label-free: divergence from the unpruned model",
    "one forward pass per input and head",
    _ablation,
    _ablations,
)
RANDOM = Score("random", "random", "", "nothing", _random)
