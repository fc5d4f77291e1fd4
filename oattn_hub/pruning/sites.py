"""Questions to the attention sites of a model: what masking, surgery and scores all start from."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING

from oattn_hub.adapters import Adapter, AttentionSite, adapt
from oattn_hub.errors import AdapterError, InvalidInput
from oattn_hub.files import fingerprint
from oattn_hub.pruning.heads import structure_of
from oattn_hub.pruning.plain import check_plain
from oattn_hub.pruning.projections import head_rows
from oattn_hub.records import Head as Head

if TYPE_CHECKING:
    from torch import nn

    from oattn_hub.report import Report


def head_sites(model: nn.Module, adapter: Adapter | str | None = None) -> list[AttentionSite]:
    """Every attention layer of ``model`` in model order."""
    return adapter_of(model, adapter).sites


def adapter_of(model: nn.Module, adapter: Adapter | str | None = None) -> Adapter:
    """The adapter bound to ``model``, which finds attention in it; one that is bound to it is taken as it is."""
    bound = adapt(model, adapter)
    if not bound.sites:
        raise AdapterError(
            f"Adapter {bound.name!r} finds no attention in {type(model).__qualname__}. Capture the model once, so that "
            "its attention can be seen (with oattn_hub.capture(model): model(...)), or describe it in an adapter."
        )
    return bound


def all_heads(sites: Iterable[AttentionSite]) -> list[Head]:
    """(layer, head) of every head, in model order."""
    return [(site.layer, head) for site in sites for head in range(site.n_heads)]


def check_heads(sites: Sequence[AttentionSite], heads: Iterable[Head]) -> list[Head]:
    """The heads, sorted and without repeats, after making sure the model has them."""
    counts = {site.layer: site.n_heads for site in sites}
    chosen = sorted({(int(layer), int(head)) for layer, head in heads})
    for layer, head in chosen:
        if layer not in counts:
            raise InvalidInput(f"There is no layer {layer}; the model has attention layers 0 to {max(counts)}.")
        if not 0 <= head < counts[layer]:
            raise InvalidInput(f"Layer {layer} has heads 0 to {counts[layer] - 1}; there is no head {head}.")
    return chosen


def check_report(sites: Sequence[AttentionSite], report: Report) -> None:
    """Refuse a model whose heads are not those of the report."""
    known = {(record.layer, record.head) for record in report.heads}
    if known != set(all_heads(sites)):
        counts = len({layer for layer, _ in known}), len(sites), sum(site.n_heads for site in sites)
        raise InvalidInput(
            f"The report has {len(known)} heads in {counts[0]} layers, this model {counts[2]} in {counts[1]}; it was "
            "made for another one. Give the report's own model, or analyse this one."
        )


def heads_of(layer: int, heads: Collection[Head]) -> list[int]:
    """The heads of one layer, sorted."""
    return sorted(head for where, head in heads if where == layer)


def structure_fingerprint(sites: Sequence[AttentionSite]) -> str:
    """SHA-256 of the number of heads of every layer, the same as a report's."""
    return structure_of({site.layer: site.n_heads for site in sites})


def shared_layers(sites: Sequence[AttentionSite]) -> list[list[int]]:
    """Layers that share their weights: passes through one module (ALBERT), modules with tied weights (Zamba)."""
    groups: dict[int, list[int]] = {}
    for site in sites:
        shared = site.module if site.described is None else site.output_tensor[0]
        groups.setdefault(id(shared), []).append(site.layer)
    return [layers for layers in groups.values() if len(layers) > 1]


def weights_fingerprint(sites: Sequence[AttentionSite]) -> str:
    """SHA-256 of the first and last known output projections, which distinguishes two models of one shape."""
    check_plain(sites)
    known = [site for site in sites if site.described] or sites
    ends = [head_rows(site) for site in (known[0], known[-1])]
    return fingerprint(*(end.float().cpu().numpy() for end in ends))
