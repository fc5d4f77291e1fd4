"""Which of a model's modules are running, seen from the frames of Python's stack, and what they were given."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from types import FrameType

import torch
from torch import nn

from oattn_hub.attention.passes import Given
from oattn_hub.types import Args, Kwargs


def running_modules(frame: FrameType | None, names: Mapping[nn.Module, str]) -> list[tuple[nn.Module, FrameType]]:
    """The model's modules with weights that run, from the inside out, each with the frame of its call."""
    found = []
    while frame is not None:
        if frame.f_code is nn.Module._call_impl.__code__:
            module = frame.f_locals["self"]
            if module in names and next(module.parameters(), None) is not None:
                found.append((module, frame))
        frame = frame.f_back
    return found


def calling_frame() -> FrameType:
    """The frame of torch that runs the hooks of the module, alive as long as the module's call is."""
    frame = sys._getframe()
    while frame.f_back is not None and frame.f_globals.get("__name__") != nn.Module.__module__:
        frame = frame.f_back
    return frame


def _rows(args: Args, kwargs: Kwargs) -> tuple[int, ...]:
    """How many tokens a module is given, of each kind (text and image), with the features last or second."""
    given = [value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor)]
    hidden = [value for value in given if value.is_floating_point() and value.ndim > 1 and value.numel()]
    counts = [value.numel() // value.shape[axis] for value in hidden for axis in (-1, 1)]
    return tuple(dict.fromkeys(counts))


def arguments_of(call: FrameType) -> tuple[Args, Kwargs]:
    """What a module is called with, from the frame of the call."""
    return call.f_locals.get("args", ()), call.f_locals.get("kwargs", {})


def given_to(args: Args, kwargs: Kwargs) -> Given:
    """What a module's arguments say of its tokens; all but the rows from those that can be sequences or maps only."""
    given = [each for each in (*args, *kwargs.values()) if isinstance(each, torch.Tensor) and each.numel()]
    hidden = [each for each in given if each.is_floating_point() and each.ndim in (3, 4)]
    widths = [each.shape[-1 if each.ndim == 3 else 1] for each in hidden]
    counts = [each.numel() // width for each, width in zip(hidden, widths, strict=True)]
    # contexts of the first alone: vectors between tokens have as many "contexts" as there are tokens
    facts = (counts, widths, [each.shape[0] for each in hidden[:1]])
    return Given(_rows(args, kwargs), *(tuple(dict.fromkeys(found)) for found in facts))
