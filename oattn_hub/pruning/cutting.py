"""Apply a list of cuts to a model whose weights may lie outside of it: those are cut whenever they come in."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from oattn_hub.models.offloaded import is_offloaded, replace_weight
from oattn_hub.pruning.portable import apply_cuts, take
from oattn_hub.pruning.surgery import CutList


def cut_model(model: nn.Module, cuts: CutList) -> nn.Module:
    """:func:`~oattn_hub.pruning.portable.apply_cuts`, also where accelerate keeps the weights; in place."""
    if not is_offloaded(model):
        return apply_cuts(model, cuts)
    classes = {module: type(module) for module in model.modules()}
    apply_cuts(model, cuts)
    for cut in cuts["keep"]:
        _change(model, cut["tensor"], partial(take, axis=cut["axis"], ranges=cut["ranges"]))
    for tensor in cuts["zero"]:
        _change(model, tensor, torch.zeros_like)
    for module, before in classes.items():
        if type(module) is not before:
            _use_own_forward(module)
    return model


def _change(model: nn.Module, tensor: str, change: Callable[[torch.Tensor], torch.Tensor]) -> None:
    path, _, name = tensor.rpartition(".")
    owner = model.get_submodule(path)
    if getattr(owner, name).is_meta:  # what was in memory has been cut there
        replace_weight(owner, name, change)


def _use_own_forward(module: nn.Module) -> None:
    """A behaviour gave the module another class; accelerate's forward would go on to call that of the first one."""
    if "_old_forward" in vars(module):
        module._old_forward = type(module).forward.__get__(module)
