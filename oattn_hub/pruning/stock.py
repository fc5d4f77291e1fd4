"""Cuts that the original class can express: the same number of heads in every layer is only another config."""

from __future__ import annotations

import copy

import torch
from torch import nn

from oattn_hub.models.describe import pretrained
from oattn_hub.models.load import LoadedModel
from oattn_hub.models.offloaded import is_offloaded
from oattn_hub.pruning import proof
from oattn_hub.pruning.pruned import PrunedModel
from oattn_hub.records import PRUNING_KEY

# What configs call the number of heads, of key/value heads, and the width of a head.
_HEADS = ("num_attention_heads", "num_heads", "n_head", "n_heads")
_KV_HEADS = ("num_key_value_heads", "num_kv_heads", "n_kv_heads")
_HEAD_DIM = ("head_dim", "d_kv")


def stock_model(pruned: PrunedModel) -> tuple[nn.Module | None, str]:
    """The pruned model as a plain instance of its own class, if its config can say it; or None and why not."""
    if pruned.loaded.library != "transformers":
        return None, "only configs of transformers can say how many heads a layer has"
    if is_offloaded(pruned.model):
        return None, "its weights are offloaded, so it was not built a second time to be compared"
    if pruned.cuts["bias"]:
        return None, "its output projections got a bias that the original class does not have"
    counts = _even_counts(pruned)
    if counts is None:
        return None, "its layers keep different numbers of heads"
    unable = f"the config of {type(pruned.model).__name__} cannot say that every layer has {counts[0]} heads"
    if pruned.probe is None:
        return None, f"{unable}, as far as could be tried without inputs"
    try:
        model = _build(pruned, *counts)
        found = LoadedModel(model, None, pruned.loaded.info)
        proof.compare(
            proof.outputs_of(pruned.loaded, pruned.probe), proof.outputs_of(found, pruned.probe), "the original class"
        )
    except Exception:  # classes and configs refuse what they cannot be in a dozen ways
        return None, unable
    return model, ""


def _even_counts(pruned: PrunedModel) -> tuple[int, int, int] | None:
    """Heads, key/value heads and head width, where all layers agree and every group of queries has the same size."""
    sites, sizes = pruned.cuts["sites"], {cut["tensor"]: cut["size"] for cut in pruned.cuts["keep"]}
    counts = {
        (len(site["kept"]), site["kv_heads"], sizes[site["output"]] // site["n_heads"])
        for site in sites
        if site["kept"]
    }
    whole = sum(site["n_heads"] for site in sites) == pruned.plan.n_heads and all(site["kept"] for site in sites)
    filled = any(change["behaviour"] == "even_groups" for change in pruned.cuts["behave"])
    return counts.pop() if whole and len(counts) == 1 and not filled else None


def _build(pruned: PrunedModel, heads: int, kv_heads: int, head_dim: int) -> nn.Module:
    model = pretrained(pruned.model)
    config = copy.deepcopy(model.config)
    config.__dict__.pop(PRUNING_KEY, None)
    inner = config.get_text_config() if not any(hasattr(config, name) for name in _HEADS) else config
    for names, value in ((_HEADS, heads), (_KV_HEADS, kv_heads)):
        for name in names:
            if hasattr(inner, name):
                setattr(inner, name, value)
    if not any(getattr(inner, name, None) == head_dim for name in _HEAD_DIM):
        inner.head_dim = head_dim  # many classes ask for it, also where their config has no such field
    config._attn_implementation = model.config._attn_implementation
    type(config).from_dict(config.to_dict())  # some configs are checked only when they are read
    with torch.device("meta"):
        shapes = {name: value.shape for name, value in type(model)(config).state_dict().items()}
    if shapes != {name: value.shape for name, value in model.state_dict().items()}:
        raise ValueError("the class has other shapes")
    fresh: nn.Module = type(model)(config)
    fresh.to(model.dtype).load_state_dict(model.state_dict())
    return fresh.eval()
