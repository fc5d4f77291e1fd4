"""Let the heads that stay make up for those that go: a closed-form refit of every pruned layer's output projection.

A layer wrote y = z W + b, with z the outputs of all its heads. Without some heads, and behind layers that were pruned
too, the outputs of those that stay are x. The refit is the ridge regression of the old y on x,

    minimise  sum_t w_t | x_t V + c - y_t |^2  +  lambda | V - W_kept |^2 ,   lambda = strength * mean diag(sum w x x'),

which has a closed form in the sums of x x' and x z', so the calibration inputs stream through and only such sums are
kept; those of half the inputs too, because the strength is what does best from one half to the other. Tokens count by
w_t = 1 / |residual stream|^2, because what follows the stream divides by its size; the ridge pulls towards the old
weights, not towards zero. With kind ``"bias"`` only c moves (An et al. 2024, FLAP, arXiv 2312.11983); with ``"scale"``
every kept head is multiplied by one number (the mask tuning of Kwon et al. 2022, arXiv 2204.09656). Both have fewer
unknowns than a refit and serve to compare with; of them, ``"bias"`` is tried where the choice is left to measurement.

All layers are solved at once, in sweeps. The first sweep takes the heads' outputs of the unpruned model for x: one pass
over the inputs, and then the refit for any set of heads is free. Every further sweep takes x from the model as refitted
so far; after k sweeps the first k layers are exactly what going layer by layer, each behind refitted ones, gives. On
MiniLM and SmolLM2 one sweep was as good as two or three in a trial by hand, so it is the default.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import nn

from oattn_hub.adapters import AttentionSite
from oattn_hub.errors import InvalidInput
from oattn_hub.models.offloaded import is_offloaded, replaced_weight, zeros_aside
from oattn_hub.pruning.masks import masked_sites
from oattn_hub.pruning.projections import (
    bias_owner,
    is_matrix,
    matrix,
    output_owner,
    places,
    projection,
    rewritten,
)
from oattn_hub.pruning.sites import Head, heads_of
from oattn_hub.pruning.stacks import SIZE, stacks
from oattn_hub.pruning.tasks import without_labels
from oattn_hub.pruning.watching import watched_projections

if TYPE_CHECKING:
    from oattn_hub.models.load import LoadedModel

Kind = Literal["refit", "bias", "scale", "none"]
KINDS: tuple[Kind, ...] = ("refit", "bias", "scale", "none")
# What is measured where nobody names a kind.
TRIED: tuple[Kind, ...] = ("refit", "bias", "none")
# Where there is only one stack of inputs to fit to; else what does best on inputs that were not fitted to.
STRENGTH = 0.1
STRENGTHS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)
# Heads of a layer whose removal decides about its strength; of wide layers, where solving takes time, one.
_TRIED, _WIDE = 3, 512
SWEEPS = 1
Batch = Mapping[str, torch.Tensor]
# makes the matrices of a layer: in memory, and for a model that does not fit there, outside
Zeros = Callable[[int, int], torch.Tensor]


def zeros_in_memory(*shape: int) -> torch.Tensor:
    """In double precision."""
    return torch.zeros(*shape, dtype=torch.float64)


@dataclass(frozen=True, eq=False)
class Refit:
    """The new output projection of one module.

    Attributes:
        weight: (features of all heads, width); zero for the heads that go.
        shift: (width,) what is added to the bias; None where the module can carry none.
    """

    weight: torch.Tensor
    shift: torch.Tensor | None = None


# name of the attention module -> its new output projection
Refits = Mapping[str, Refit]


class Moments:
    """Weighted sums over tokens of what enters an output projection, now (x) and in the unpruned model (z).

    ``half`` holds the sums of every other stack of inputs, so that a solution for one half can be tried on the other.
    """

    def __init__(self, features: int, halved: bool = True, zeros: Zeros = zeros_in_memory) -> None:
        self.total, self.count = 0.0, 0
        self.x, self.z = (torch.zeros(features, dtype=torch.float64) for _ in range(2))
        self.xx, self.xz = (zeros(features, features) for _ in range(2))
        self.half = Moments(features, False, zeros) if halved else None
        self.stacks = 0

    def add(self, x: torch.Tensor, z: torch.Tensor, weights: torch.Tensor) -> None:
        """Count (tokens, features) rows with (tokens,) weights."""
        exact = torch.float64 if x.dtype == torch.float64 else torch.float32  # one stack is short enough for this
        now, then, weights = x.to("cpu", exact), z.to("cpu", exact), weights.to("cpu", exact)
        weighted = now * weights[:, None]
        xx = weighted.T @ now
        xz = xx if z is x else weighted.T @ then
        self._count(float(weights.sum()), int((weights > 0).sum()), weighted.sum(0), weights @ then, xx, xz)
        if self.half is not None and self.stacks % 2:
            self.half._count(float(weights.sum()), int((weights > 0).sum()), weighted.sum(0), weights @ then, xx, xz)

    def _count(
        self, total: float, count: int, x: torch.Tensor, z: torch.Tensor, xx: torch.Tensor, xz: torch.Tensor
    ) -> None:
        self.total, self.count, self.stacks = self.total + total, self.count + count, self.stacks + 1
        for mine, more in ((self.x, x), (self.z, z), (self.xx, xx), (self.xz, xz)):
            mine += more

    def halves(self) -> tuple[Moments, Moments] | None:
        """Both halves; None where there was only one stack."""
        if self.half is None or not self.half.stacks or self.half.stacks == self.stacks:
            return None
        rest = Moments(len(self.x), halved=False)
        rest.total, rest.count, rest.stacks = (
            getattr(self, name) - getattr(self.half, name) for name in ("total", "count", "stacks")
        )
        for name in ("x", "z", "xx", "xz"):
            setattr(rest, name, getattr(self, name) - getattr(self.half, name))
        return rest, self.half

    def error(self, old: torch.Tensor, refit: Refit) -> float:
        """sum_t w_t | x_t V + c - z_t W |^2, but for a part that no V and no c changes."""
        weight, wanted = refit.weight, self.z @ old
        shift = torch.zeros_like(wanted) if refit.shift is None else refit.shift
        quadratic = (weight * (self.xx @ weight)).sum() - 2 * (weight * (self.xz @ old)).sum()
        return float(quadratic + 2 * shift @ (self.x @ weight - wanted) + self.total * shift @ shift)


def fitting_strength(moments: Moments, old: torch.Tensor, kept: Sequence[Sequence[int]], with_shift: bool) -> float:
    """The strength whose solutions for either half of the inputs do best on the other half.

    A head's output may hardly differ between the tokens of one text (an embedder's last layer pools); then the
    regression has as many samples as texts, fits them all and is wrong on the next one, unless the ridge is strong.
    """
    halves = moments.halves()
    if halves is None:
        return STRENGTH
    old = old.double().cpu()

    def error(strength: float) -> float:
        return sum(
            tried.error(old, ridge(fitted, old, features, strength, with_shift))
            for features in kept
            for fitted, tried in (halves, halves[::-1])
        )

    return min(STRENGTHS, key=error)


def ridge(
    moments: Moments, old: torch.Tensor, kept: Sequence[int], strength: float = STRENGTH, with_shift: bool = True
) -> Refit:
    """The closed form; ``old`` is (features of all heads, width), ``kept`` the features that stay."""
    old = old.double().cpu()
    index = torch.tensor(list(kept), dtype=torch.long)
    xx, xz, x, z = moments.xx[index][:, index], moments.xz[index], moments.x[index], moments.z
    if with_shift:
        xx, xz = xx - torch.outer(x, x) / moments.total, xz - torch.outer(x, z) / moments.total
    penalty = damping(xx, strength)
    weight = torch.zeros_like(old)
    if len(index):
        damped = xx + penalty * torch.eye(len(index), dtype=torch.float64)
        weight[index] = torch.linalg.solve(damped, xz @ old + penalty * old[index])
    return Refit(weight, _shift(moments, old, weight) if with_shift else None)


def bias_only(moments: Moments, old: torch.Tensor, kept: Sequence[int], with_shift: bool = True) -> Refit:
    """The old weights of the heads that stay, and their mean made good in the bias."""
    old = old.double().cpu()
    weight = torch.zeros_like(old)
    weight[list(kept)] = old[list(kept)]
    return Refit(weight, _shift(moments, old, weight) if with_shift else None)


def scaled(moments: Moments, old: torch.Tensor, heads: Sequence[Sequence[int]], strength: float = STRENGTH) -> Refit:
    """The old weights of each kept head times one number, by least squares; the ridge pulls the numbers towards 1.

    ``heads`` names the features of each head that stays.
    """
    old = old.double().cpu()
    weight = torch.zeros_like(old)
    if not heads:
        return Refit(weight)
    written = [moments.xx[:, list(rows)] @ old[list(rows)] for rows in heads]  # x' times what one head writes
    products = torch.stack([_by_head(old, one, heads) for one in written], dim=1)
    wanted = _by_head(old, moments.xz @ old, heads)
    penalty = damping(products, strength)
    factors = torch.linalg.solve(products + penalty * torch.eye(len(heads), dtype=torch.float64), wanted + penalty)
    for rows, factor in zip(heads, factors, strict=True):
        weight[list(rows)] = factor * old[list(rows)]
    return Refit(weight)


def _by_head(old: torch.Tensor, other: torch.Tensor, heads: Sequence[Sequence[int]]) -> torch.Tensor:
    """(heads,) inner products of the rows of each head."""
    return torch.stack([(old[list(rows)] * other[list(rows)]).sum() for rows in heads])


def _shift(moments: Moments, old: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    return (moments.z @ old - moments.x @ new) / moments.total


@dataclass(frozen=True, eq=False)
class Compensator:
    """Refits of one model on one set of calibration inputs.

    Attributes:
        kind: ``"refit"``, ``"bias"``, ``"scale"`` or ``"none"``.
        strength: of the ridge, in parts of the mean diagonal; None takes for every layer what does best across halves
            of the inputs.
        sweeps: how often all layers are solved; the first sweep needs no pass of its own once the unpruned model ran.
        new_biases: whether projections without a bias may be given one; stock loaders of most families know none.
    """

    loaded: LoadedModel
    sites: Sequence[AttentionSite]
    inputs: Sequence[Batch]
    kind: Kind = "refit"
    strength: float | None = None
    sweeps: int = SWEEPS
    new_biases: bool = True

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise InvalidInput(f"compensate is {self.kind!r}; choose from {', '.join(KINDS)}.")
        object.__setattr__(self, "_unpruned", None)
        object.__setattr__(self, "_strengths", {})

    @property
    def unpruned(self) -> dict[str, Moments]:
        """Sums of the unpruned model, made once."""
        if self._unpruned is None:  # type: ignore[attr-defined]
            object.__setattr__(self, "_unpruned", collect(self.loaded, self.sites, self.inputs))
        found: dict[str, Moments] = self._unpruned  # type: ignore[attr-defined]
        return found

    def of_kind(self, kind: Kind) -> Compensator:
        """The same inputs and sums for another kind."""
        other = replace(self, kind=kind)
        object.__setattr__(other, "_unpruned", self.unpruned)
        object.__setattr__(other, "_strengths", self._strengths)  # type: ignore[attr-defined]
        return other

    def strength_of(self, site: AttentionSite) -> float:
        """The ridge's strength in one layer."""
        if self.strength is not None:
            return self.strength
        found: dict[str, float] = self._strengths  # type: ignore[attr-defined]
        if site.module_name not in found:
            old = matrix(site)
            count = min(_TRIED if len(old) <= _WIDE else 1, site.n_heads)
            tried = {round(place) for place in torch.linspace(0, site.n_heads - 1, count).tolist()}
            kept = [places(site, set(range(site.n_heads)) - {head}) for head in sorted(tried)]
            moments = self.unpruned[site.module_name]
            found[site.module_name] = fitting_strength(moments, old, kept, self.shifts(site))
        return found[site.module_name]

    def refits(self, heads: Collection[Head], sweeps: int | None = None) -> dict[str, Refit]:
        """New output projections for the layers that lose heads; none where nothing is compensated."""
        if self.kind == "none" or not heads:
            return {}
        found = self.solve(self.unpruned, heads)
        for _ in range((self.sweeps if sweeps is None else sweeps) - 1):
            found = self.solve(collect(self.loaded, self.sites, self.inputs, heads, found), heads)
        return found

    def strengths(self, names: Collection[str]) -> list[float]:
        """The strengths of these modules, in model order."""
        return [self.strength_of(site) for site in self.sites if site.module_name in names and not site.turn]

    def shifts(self, site: AttentionSite) -> bool:
        """Whether a bias makes good for the mean of what is removed from this layer."""
        owner = bias_owner(site)
        return self.kind in ("refit", "bias") and owner is not None and (self.new_biases or owner.bias is not None)

    def inverse(self, site: AttentionSite, moments: Moments, kept: torch.Tensor) -> torch.Tensor | None:
        """H^-1 of the layer's ridge regression on the kept features; None where no weight is refitted."""
        if self.kind != "refit":
            return None
        xx = moments.xx[kept][:, kept]
        if self.shifts(site):
            xx = xx - torch.outer(moments.x[kept], moments.x[kept]) / moments.total
        ridge_part = damping(xx, self.strength_of(site)) * torch.eye(len(kept), dtype=torch.float64)
        inverse: torch.Tensor = torch.linalg.inv(xx + ridge_part)
        return inverse

    def solve(self, moments: Mapping[str, Moments], heads: Collection[Head]) -> dict[str, Refit]:
        """One solution a layer that loses heads, from sums that were taken before."""
        found, zeros = {}, zeros_for(self.loaded)
        for site in self.sites:
            removed = heads_of(site.layer, heads)
            if not removed or site.turn or site.module_name not in moments:
                continue
            refit = self._solution(site, moments[site.module_name], removed)
            found[site.module_name] = replace(refit, weight=zeros(*refit.weight.shape).copy_(refit.weight))
        return found

    def _solution(self, site: AttentionSite, moments: Moments, removed: Collection[int]) -> Refit:
        kept = sorted(set(range(site.n_heads)) - set(removed))
        if self.kind == "scale":
            return scaled(moments, matrix(site), [places(site, [head]) for head in kept], self.strength_of(site))
        solve = bias_only if self.kind == "bias" else partial(ridge, strength=self.strength_of(site))
        return solve(moments, matrix(site), places(site, kept), with_shift=self.shifts(site))


def damping(xx: torch.Tensor, strength: float) -> float:
    """The ridge's lambda: parts of the mean diagonal."""
    mean = float(xx.diagonal().mean()) if len(xx) else 0.0
    return max(strength * mean, torch.finfo(torch.float64).tiny)


def collect(
    loaded: LoadedModel,
    sites: Sequence[AttentionSite],
    inputs: Sequence[Batch],
    heads: Collection[Head] = (),
    refits: Refits | None = None,
) -> dict[str, Moments]:
    """Sums over the inputs for every module: x without ``heads`` and with ``refits``, z of the model as it is."""
    found: dict[str, Moments] = {}
    zeros = zeros_for(loaded)

    def add(stack: Batch, site: AttentionSite, then: _Seen, now: _Seen | None = None) -> None:
        if is_matrix(site):
            rows = then.rows
            if site.module_name not in found:
                found[site.module_name] = Moments(rows.shape[-1], zeros=zeros)
            found[site.module_name].add(rows if now is None else now.rows, rows, then.weights(stack))

    for stack, _ in stacks(loaded, inputs, max(1, min(SIZE, len(inputs) // 4))):  # at least 4, for two halves
        if not heads:  # layer by layer, while the model runs
            _watch(loaded, sites, stack, partial(add, stack))
            continue
        then = _run(loaded, sites, stack)
        with refitted(sites, refits or {}), masked_sites(loaded.model, sites, heads):
            now = _run(loaded, sites, stack)
        for site in sites:
            if site.layer in now and site.layer in then:
                add(stack, site, then[site.layer], now[site.layer])
    return found


def zeros_for(loaded: LoadedModel) -> Zeros:
    """Where the sums and the refits of a model's layers are kept."""
    return zeros_aside if is_offloaded(loaded.model) else zeros_in_memory


@dataclass(eq=False)
class _Seen:
    """Outputs of one layer's heads, what its projection made of them, and the stream they were added to, if found."""

    features: torch.Tensor
    output: torch.Tensor
    stream: torch.Tensor | None

    @property
    def rows(self) -> torch.Tensor:
        return self.features.flatten(0, -2)

    def weights(self, batch: Batch) -> torch.Tensor:
        """(tokens,) 1 / |stream|^2 where the stream's tokens are known to be the features', else 1; padding 0."""
        weights = torch.ones(self.features.shape[:-1], device=self.features.device)
        if self.stream is not None and self.stream.shape[:-1] == weights.shape:
            weights = 1 / self.stream.float().norm(dim=-1).clamp_min(1e-12) ** 2
        mask = batch.get("attention_mask")
        if mask is not None and mask.shape == weights.shape:
            weights = weights * (mask != 0)
        return weights.flatten()


def _run(loaded: LoadedModel, sites: Sequence[AttentionSite], batch: Batch) -> dict[int, _Seen]:
    """One forward call: the heads' outputs of every layer."""
    seen: dict[int, _Seen] = {}
    _watch(loaded, sites, batch, lambda site, one: seen.update({site.layer: one}))
    return seen


def _watch(
    loaded: LoadedModel, sites: Sequence[AttentionSite], batch: Batch, take: Callable[[AttentionSite, _Seen], None]
) -> None:
    """One forward call: hand over the heads' outputs of every layer when it has run."""
    streams: dict[int, torch.Tensor] = {}

    def see(site: AttentionSite, features: torch.Tensor, output: torch.Tensor) -> None:
        # Torch's own attention has tokens first and contexts second: its rows are not the stream's.
        stream = streams.get(id(_block(loaded.model, site))) if site.output_module is not None else None
        take(site, _Seen(features.detach(), output.detach(), stream))

    with ExitStack() as stack, torch.no_grad():
        stack.enter_context(watched_projections(loaded.model, sites, see))
        for block, width in {
            _block(loaded.model, site): projection(site).shape[-1] for site in sites if is_matrix(site)
        }.items():
            stack.enter_context(_watched_stream(block, width, streams))
        loaded.forward(without_labels(batch))


def streams_around(
    loaded: LoadedModel, sites: Sequence[AttentionSite], batch: Batch
) -> dict[int, tuple[torch.Tensor, torch.Tensor]]:
    """For each layer whose stream is found: the residual stream before it, and what its attention adds."""
    seen = _run(loaded, sites, batch)
    return {
        layer: (one.stream, one.output)
        for layer, one in seen.items()
        if one.stream is not None and one.stream.shape == one.output.shape
    }


def _block(model: nn.Module, site: AttentionSite) -> nn.Module:
    """The module around the attention, which is handed the residual stream."""
    return model.get_submodule(site.module_name.rpartition(".")[0])


@contextmanager
def _watched_stream(block: nn.Module, width: int, streams: dict[int, torch.Tensor]) -> Iterator[None]:
    """Note the residual stream that enters a block."""

    def hook(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.Tensor) and value.is_floating_point() and value.shape[-1:] == (width,):
                streams[id(block)] = value.detach()
                return

    handle = block.register_forward_pre_hook(hook, with_kwargs=True)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def refitted(sites: Sequence[AttentionSite], refits: Refits) -> Iterator[None]:
    """Run the uncut model with other output projections; the model is as before when the block ends."""
    with ExitStack() as stack:
        for site in sites:
            if not site.turn and site.module_name in refits:
                stack.enter_context(_refitted_module(site, refits[site.module_name]))
        yield


@contextmanager
def _refitted_module(site: AttentionSite, refit: Refit) -> Iterator[None]:
    owner, shift = bias_owner(site), refit.shift
    with ExitStack() as stack:
        stack.enter_context(replaced_weight(*output_owner(site), rewritten(site, refit.weight)))
        if shift is not None and owner is not None:
            if getattr(owner, "bias", None) is not None:
                stack.enter_context(replaced_weight(owner, "bias", lambda bias: bias + shift.to(bias)))
            else:
                stack.callback(owner.register_forward_hook(partial(_add_shift, shift)).remove)
        yield


def _add_shift(shift: torch.Tensor, module: nn.Module, _: Any, output: torch.Tensor) -> torch.Tensor:
    own = shift.to(output)
    return output + (
        own.view(-1, *(1 for _ in module.kernel_size)) if isinstance(module, nn.Conv1d | nn.Conv2d) else own
    )
