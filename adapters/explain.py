"""What an adapter knows about a model, layer by layer, and where it knows it from."""

from __future__ import annotations

from oattn_hub.adapters.base import Adapter
from oattn_hub.adapters.site import AttentionSite


def explain(adapter: Adapter) -> list[dict[str, object]]:
    """One record for every attention layer of the model that ``adapter`` is bound to.

    >>> import torch
    >>> from oattn_hub.adapters import adapt
    >>> [record["output"] for record in explain(adapt(torch.nn.TransformerEncoderLayer(16, nhead=2)))]
    ['out_proj.weight']
    """
    return [_record(adapter, site) for site in adapter.sites]


def _record(adapter: Adapter, site: AttentionSite) -> dict[str, object]:
    layout = site.described
    found = {"watched": "seen in a forward call", "guessed": "by its name"}.get(site.kind, "described by a family")
    if site.kind == "self" and adapter.name == "generic":
        found = "by its name"
    return {
        "layer": site.layer,
        "name": site.name,
        "class": type(site.module).__qualname__,
        "group": site.group,
        "heads": site.n_heads,
        "kv_heads": site.n_kv_heads,
        "found": found,
        "output": layout.output.path if layout is not None else None,
        "projections": ", ".join(_present(site)) if layout is not None else "",
        "refusal": (layout.refusal or None) if layout is not None else "its output projection is not known",
    }


def _present(site: AttentionSite) -> list[str]:
    axes = site.layout.projections
    return [f"{axis.path} ({'+'.join(axis.blocks)})" for axis in axes if site.find(axis.path) is not None]
