"""What the source code of a module says of how its heads lie: in which order it splits, views and rearranges.

Only what is read; nothing of it is run. A cut that it leads to is compared with the masked model like any other.
"""

from __future__ import annotations

import inspect
import re
from functools import lru_cache
from typing import TYPE_CHECKING

from oattn_hub.adapters.layout import Block

if TYPE_CHECKING:
    from torch import nn


_AXES = r"(?:view|reshape)\(((?:[^()\n]|\([^()\n]*\))*)\)"
_NAMED_AXES = r"rearrange\([^\n]*?[\"'][^\"'\n]*\((\w+ \w+ \w+)\)[^\"'\n]*->"


def written_order(module: nn.Module, apart: tuple[Block, ...]) -> tuple[Block, ...] | None:
    """What lies along a fused projection, where the source code gives it three axes: parts, heads and features."""
    orders = (_order_in(_code_after_init(owner), apart) for owner in type(module).__mro__[:-2])
    return next((order for order in orders if order), None)


def _order_in(code: str, apart: tuple[Block, ...]) -> tuple[Block, ...] | None:
    parts = str(len(apart))
    found = [[axis.strip() for axis in axes.split(",")][-3:] for axes in re.findall(_AXES, code)]
    named = [name for name, size in re.findall(r"\b(\w+) ?= ?(\d)\b", code) if size == parts]
    found += [[parts if axis in named else axis for axis in axes.split()] for axes in re.findall(_NAMED_AXES, code)]
    for axes in found:
        heads = [bool(re.search(r"head|(^|\.)n?h$|\.n$", axis)) and "dim" not in axis for axis in axes]
        if len(axes) == 3 and axes.count(parts) == 1 and sum(heads) == 1:
            if heads[0]:
                return ("qkv",)
            if heads[2]:
                woven: tuple[Block, ...] = ("woven",)
                return woven * len(apart) if axes[0] == parts else woven
            return apart if axes[0] == parts else None
    return None


_THREE_OF_A_HEAD = (
    r"heads?\)?,\s*3\b|3 \* (self\.)?(head_dim|head_size|attention_head_size)\b(?! \*)|"
    r"heads?, ?self\.\w+ ?\* ?self\.head_dim"
)
# view(…, heads, -1), perhaps permuted, and only then q, k, v = ….split(…)
_SPLIT_AFTER_HEADS = r"heads?, ?-1[^()]*\)+(\s*\.\w+\([^()]*\))*(\s+q, ?k, ?v = \w+)?\s*\.(split|chunk)\("


def interleaves(module: nn.Module, path: str, even: bool) -> bool:
    """Whether the source code splits query, key and value after the heads, as Megatron's models do.

    ``even`` says whether the three are as wide as the heads' outputs; where they are not, only code that gives the
    heads an axis before it splits them is believed (LeViT).
    """
    for owner in type(module).__mro__[:-2]:
        code = _source(owner)
        if not code:
            continue
        if re.search(_SPLIT_AFTER_HEADS, code):
            return True
        if not even:
            return False
        if re.search(_THREE_OF_A_HEAD, code):
            return True
        if re.search(r"\b3,\s*(-1|(self\.)?\w*heads?)|chunk\(3|\.split\(|\.chunk\(", code):
            return False
    return even and path.rpartition(".")[2] == "query_key_value"


def viewed_by_heads(module: nn.Module, path: str) -> Block | None:
    """Whether the source code gives what this projection computes an axis of heads, and on which side of the rest."""
    given = re.search(rf"(\w+) = self\.{re.escape(path)}\(", code := own_code(module))
    if given is None:
        return None
    shapes = re.findall(rf"\b{given[1]}\.(?:view|reshape)\(\s*([^\n]*)", code[given.end() :])
    if any(re.search(r"heads, ?(-1|(self\.)?\w*dim)\)", shape) for shape in shapes):
        return "q"
    return "woven" if any(re.search(r", ?(self\.)?\w*heads\)", shape) for shape in shapes) else None


def split_by(module: nn.Module) -> set[str]:
    """Attributes by whose values the source code splits a fused projection, or that it divides by the heads."""
    code = own_code(module)
    splits = re.findall(r"\.split\((\([^()]*\)|[^()]*)", code)
    divided = re.findall(r"self\.(\w+) // self\.\w*heads?\b", code)
    return {*divided, *(name for split in splits for name in re.findall(r"self\.(\w+)", split))}


def shapes_of(module: nn.Module) -> set[str]:
    """Attributes that the source code gives axes by, whatever they are called: ``x.view(b, t, self.n, -1)``."""
    code = _all_code(module)
    shapes = re.findall(r"(?:view|reshape|unflatten|rearrange|expand|range|repeat\w*)\(([^\n]*)", code)
    names = {name for shape in shapes for name in re.findall(r"\b\w+\.(\w+)\b(?!\()", shape)}
    return {name for name in names if not re.search(r"dim|size|width|len|window|embd?|chann|feat|ratio|patch", name)}


def is_rooted(module: nn.Module, attribute: str) -> bool:
    """Whether the source code scales scores by the root of this number, which must then stay what it is."""
    return bool(re.search(rf"sqrt\((float\()?self\.{attribute}\b|self\.{attribute} ?\*\* ?[-(]*[01]", own_code(module)))


def _all_code(module: nn.Module) -> str:
    return "\n".join(_code_after_init(owner) for owner in type(module).__mro__[:-2])


def own_code(module: nn.Module) -> str:
    return _code_after_init(type(module).__mro__[0])


@lru_cache(maxsize=64)
def _code_after_init(cls: type) -> str:
    """The source of a class's own methods without its constructor; empty where there is none to read."""
    methods = [method for name, method in vars(cls).items() if inspect.isfunction(method) and name != "__init__"]
    try:
        return "\n".join(inspect.getsource(method) for method in methods)
    except OSError:
        return ""


# every layer of a model asks for the same few classes, and reading one means parsing its whole file
@lru_cache(maxsize=64)
def _source(cls: type) -> str:
    """The source of a class; empty where there is none to read."""
    try:
        return inspect.getsource(cls)
    except (OSError, TypeError):
        return ""
