"""Layouts of modules that nobody described, from the names and shapes of their projections.

A guess is only a guess: a cut that it leads to is compared with the masked model, and masking with an ablation of the
attention itself, before anyone gets to see the result.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from oattn_hub.adapters.layout import MULTIHEAD, Block, Count, HeadAxis, HeadLayout
from oattn_hub.adapters.source import (
    interleaves,
    is_rooted,
    own_code,
    shapes_of,
    split_by,
    viewed_by_heads,
    written_order,
)

if TYPE_CHECKING:
    from torch import nn


def _called(letter: str, word: str) -> str:
    after = r"(proj|projs|projection|lin|linear|layer|net|fc|attn|(b|up|gate)_proj|s?conv(1d)?|map|head)"
    short = rf"({letter}s?|{word}|{word}s|{word[:-1]}ies)"
    # keys of the image, of the text, of global tokens; of what a token says and of where it is
    of_a_part = rf"{word}_(?!key|value|norm|ln)\w+|{letter}_(content|text|image|(ref_)?pos(ition)?(_sine)?|rel)_proj"
    before = r"(to|lin|linear|proj|project|projection|in_proj|fc|conv|w|c)"
    return rf"w?_?{short}|{before}_?{short}|{short}_?{after}|{of_a_part}"


# what a projection is for -> what it is usually called
_ROLES = {
    "q": _called("q", "query"),
    "k": _called("k", "key"),
    "v": _called("v", "value"),
    "kv_of_head": r"kv_(b|up)(_proj)?",
    "qkv": r"w?qkv|w_qkv|to_qkv|qkv_?(proj|projection|linear|layer|net)|query_key_value|c_attn|in_proj|att_proj|"
    r"attn_qkv|mixed_qkv|proj_qkv|qkv_conv|.*_qkv|queries_keys_values|q_k_v|(kqv|vkq|kvq|qvk|vqk)(_?proj)?",
    "kv": r"to_kv|kv|kv_?(proj|linear|net)|wkv|key_value|c_kv|proj_kv|keys_values|k_v",
    "qk": r"to_qk|qk|qk_?(proj|linear|net)|wqk",
    "out": r"w?_?o|out|output|dense|proj|wo|[oc]_?proj|out_?proj|to_out|out_?lin(ear)?|o_net|linear_out|fc_out|fc|"
    r"final_linear|output_?(proj|projection|dense|linear|layer)|projection|projection_?layer|proj_out|out_projection|attn_out|attn_out_proj|out_layer|"
    r"att(entio)?n_out(put)?|[oc]_linear|lin_out|unify_?heads|post_?proj|linear_o|fc_o|out_net|o_lin|post|resid_proj|to_o|conv_o|c_o|proj_o|merge|merge_?heads|unify",
}
_WRAPPERS = {"linear", "conv", "proj", "dense", "weight", "base_layer", "c", "ln", "fn"}
_POSITION_ARGUMENTS = (
    "attention_mask",
    "position_bias",
    "alibi",
    "rel_pos_bias",
    "shared_rel_pos_bias",
    "relative_position_bias",
    "rel_pos",
    "rel_2d_pos",
)
_HEADS = r"(num|n)_?(local_)?(attention_|attn_|query_|q_)?heads?|nhead|heads|n?_?h"
_KV_HEADS = r"(num|n)_?(local_)?(key_value|kv|k_v)_heads|(num|n)_query_groups"
_GROUPS = r"(num|n)_?(key_value|kv|query)_groups|n_rep|num_queries_per_kv"
_KV_WIDTHS = r"kv_(dim|width|size)"
_MORE_KEYS = r"(^|[._])((mem|memory|null|bias|extra|persistent)_(k|v|keys?|values?)|[km]em_?[kv]|[kv]_(mem|null))$"
_WIDTHS = (
    r"all_head_size|hidden_size_output|n_embd|inner_dim|attn_dim|dim|split_size|attention_width|d_attn|"
    r"total_head_dim|qkv_dim"
)


def projections(module: nn.Module) -> dict[str, Any]:
    """Path -> every part that multiplies its input with a matrix."""
    found = {}
    for path, part in module.named_modules():
        weight = getattr(part, "weight", None)
        sizes = tuple(getattr(weight, "shape", ()))
        # a convolution of single features over the tokens has a slice for every head as well
        single = len(sizes) == 3 and sizes[1] == 1 and not hasattr(part, "groups")
        pointwise = len(sizes) > 2 and getattr(part, "kernel_size", None) in ((1,), (1, 1))
        matrix = len(sizes) == 2 or pointwise or single
        if path and matrix and not hasattr(part, "num_embeddings") and "norm" not in type(part).__name__.lower():
            found[path] = part
    return found


def widths(part: Any) -> tuple[int, int]:
    """(input features, output features) of a projection."""
    first, second = part.weight.shape[:2]
    return (first, second) if hasattr(part, "nf") else (second, first)


def role(path: str) -> str | None:
    """What the projection at ``path`` is for, by its name.

    >>> [role(path) for path in ("self.query", "to_out.0", "Wqkv", "q_proj.linear", "gate")]
    ['q', 'out', 'qkv', 'q', None]
    """
    parts = _named_parts([part.lower() for part in path.split(".") if not part.isdigit()])
    return _by_name(parts[-1]) if parts else None


def roles(module: nn.Module) -> dict[str, str | None]:
    """Path -> what every projection of a module is for: by its name, or by its place where no name says anything.

    >>> import torch
    >>> roles(torch.nn.ModuleList(torch.nn.Linear(8, 8) for _ in range(4)))
    {'0': 'q', '1': 'k', '2': 'v', '3': 'out'}
    """
    parts = projections(module)
    found = {path: role(path) for path in parts}
    sizes = [widths(part) for part in parts.values()]
    if not any(found.values()):
        if len(sizes) == 4 and sizes[0][1] == sizes[1][1] and sizes[2][1] == sizes[3][0]:
            return dict(zip(parts, ("q", "k", "v", "out"), strict=True))
        if len(sizes) == 2 and sizes[0][1] == 3 * sizes[1][0]:
            return dict(zip(parts, ("qkv", "out"), strict=True))
    return found


def _named_parts(parts: list[str]) -> list[str]:
    """The parts of a path up to the one that says what it is for: ``q_proj`` of ``q_proj.linear``."""
    for end in range(len(parts), 1, -1):
        if parts[end - 1].lower() not in _WRAPPERS:
            break
        if _by_name(parts[end - 2].lower()):
            return _named_parts(parts[: end - 1])
    return parts


def _by_name(name: str) -> str | None:
    return next((role for role, pattern in _ROLES.items() if re.fullmatch(pattern, name)), None)


def guess_output(module: nn.Module, n_heads: int) -> str | None:
    """The path of the output projection: the one called so that takes all heads, outermost first."""
    known = roles(module)
    found = [
        path for path, part in projections(module).items() if known[path] == "out" and widths(part)[0] % n_heads == 0
    ]
    return min(found, key=lambda path: path.count("."), default=None)


def guess_layout(module: nn.Module, n_heads: int) -> HeadLayout | None:
    """The layout of an undescribed module, or None where not even its output projection is found."""
    if _is_torch_attention(module):
        return MULTIHEAD
    output = guess_output(module, n_heads)
    if output is None:
        return _of_parameters(module, n_heads)
    selectors = _selectors(module)

    def mine(path: str) -> bool:
        return not path.startswith(selectors)

    parts = {path: part for path, part in projections(module).items() if mine(path)}
    width = widths(parts[output])[0]
    axes = [axis for path in parts if path != output for axis in _axes(module, path, parts[path], n_heads, width)]
    blocks = {block for axis in axes for block in axis.blocks}
    if "q" not in blocks and {"k", "v"} <= blocks:  # learned queries, as poolers have them
        axes += list(_learned_queries(module, parts, width))
        blocks |= {block for axis in axes for block in axis.blocks}
    norms = [norm for axis in axes for norm in _batch_norms(module, axis, parts)]
    norms += _own_convolutions(module, axes, parts, n_heads)
    normed = list(_norms_of_heads(module, n_heads, width))
    said = roles(module)
    known = {"q", "k", "v"} <= blocks or blocks & {"qkv", "woven"} or "kv_of_head" in {said[a.path] for a in axes}
    return HeadLayout(
        output=HeadAxis(output, "in"),
        projections=(
            *axes,
            *norms,
            *normed,
            *filter(lambda axis: mine(axis.path), _tables(module, parts, n_heads, width)),
        ),
        counts={path: count for path, count in _counts(module, n_heads, width) if mine(path)}
        | {f"{axis.path.rpartition('.')[0]}.num_groups": "heads" for axis in normed}
        | {f"{axis.path.rpartition('.')[0]}.num_channels": "width" for axis in normed},
        config_counts=dict(_config_counts(module, n_heads)),
        behaviours=("fixed_width",),
        head_arguments=tuple(name for name in _POSITION_ARGUMENTS if _has_planes(module, name)),
        joint_norms=tuple(filter(mine, _joint_norms(module))),
        refusal=_refusal(module, parts, n_heads, width, bool(known)),
    )


def _of_parameters(module: nn.Module, n_heads: int) -> HeadLayout | None:
    """The layout of a module whose projections are parameters with an axis of heads: (head, width, feature)."""
    own = {path: value for path, value in module.named_parameters(recurse=False) if value.ndim == 3}
    axes = {path: [axis for axis, size in enumerate(value.shape) if size == n_heads] for path, value in own.items()}
    roles = {role(path): path for path, found in axes.items() if len(found) == 1}
    if not {"q", "k", "v", "out"} <= set(roles):
        return None
    output = HeadAxis(roles["out"], axes[roles["out"]][0], ("h",))
    width = own[roles["q"]].numel() // max(own[roles["q"]].shape)
    tables = [axis for axis in _tables(module, {}, n_heads, width) if axis.path != output.path]
    return HeadLayout(output, tuple(tables), counts=dict(_counts(module, n_heads, width)), behaviours=("fixed_width",))


def _refusal(module: nn.Module, parts: dict[str, Any], n_heads: int, width: int, known: bool) -> str:
    """Why heads of such a module cannot be cut; empty if they can."""
    of_a_head = (width // n_heads, width // n_heads)
    if n_heads > 1 and {role(path) for path, part in parts.items() if widths(part) == of_a_head} >= {"q", "k", "v"}:
        return "its projections serve every head alike, each with a slice of the layer's input"
    mixing = r"(?:talk|mix|heads?_proj)\w*"
    for path, value in module.named_parameters():
        if n_heads > 1 and tuple(value.shape[:2]) == (n_heads, n_heads) and re.search(mixing, path.lower()):
            return f"{path} mixes its heads"
    return "" if known else "its query, key and value projections have names that are not known"


def _selectors(module: nn.Module) -> tuple[str, ...]:
    """Parts with keys but no values of their own: they choose keys for the heads (DeepSeek's indexer)."""
    parts = projections(module)
    if not {role(path) for path in parts} & {"v", "kv_of_head"}:
        return ()
    roles: dict[str, set[str | None]] = {}
    for path in parts:
        owner = ".".join(_named_parts(path.split("."))[:-1])
        roles.setdefault(owner, set()).add(role(path))
    own = {owner for owner, found in roles.items() if owner and "k" in found}
    return tuple(f"{owner}." for owner in own if not roles[owner] & {"v", "kv", "qkv", "out", "kv_of_head"})


def named_heads(module: nn.Module, sizes: Sequence[int]) -> int | None:
    """A head count that the module keeps under one of the usual names and that is one of ``sizes``."""
    found = [value for name, value in vars(module).items() if re.fullmatch(_HEADS, name) and value in sizes]
    return found[0] if found else None


def named_axes(module: nn.Module, size: int) -> list[int]:
    """Numbers that the module keeps, whatever it calls them, that its code gives axes by and that divide ``size``."""
    found = (getattr(module, name, None) for name in sorted(shapes_of(module)))
    numbers = {value for value in found if isinstance(value, int) and not isinstance(value, bool)}
    return sorted(value for value in numbers if 1 < value <= size and size % value == 0)


def guess_kv_heads(module: nn.Module, layout: HeadLayout | None, n_heads: int) -> int | None:
    """Key/value heads from the widths of the projections; None if they do not say."""
    if layout is None or isinstance(layout.output.axis, int):
        return None
    parts = projections(module)
    if layout.output.path not in parts:
        return None
    head_dim = widths(parts[layout.output.path])[0] // n_heads
    for axis in layout.projections:
        slices = widths(parts[axis.path])[1] / head_dim if axis.path in parts else 0
        beside = n_heads if len(axis.blocks) == 3 else 0  # slices of queries
        if beside or axis.blocks in (("v",), ("k", "v")):
            found = (slices - beside) / (1 if axis.blocks == ("v",) else 2)
            if found in range(1, n_heads + 1) and n_heads % found == 0:  # wider: an MLP lies beside them
                return int(found)
    return None


def _axes(module: nn.Module, path: str, part: Any, n_heads: int, width: int) -> Iterator[HeadAxis]:
    size, known = widths(part)[1], roles(module)[path]
    alone: dict[str, tuple[Block, ...]] = {
        "q": ("q",),
        "k": ("k",),
        "v": ("v",),
        "qk": ("q", "k"),
        "kv_of_head": ("q",),
    }
    if known in ("kv", "qkv"):
        apart: tuple[Block, ...] = ("k", "v") if known == "kv" else _order(path)
        yield HeadAxis(path, "out", written_order(module, apart) or _together(module, path, apart, size, width))
    elif known in alone:
        yield HeadAxis(path, "out", alone[known])
    elif size in (width, n_heads) and known != "out" and not _is_inside_a_network(module, path, size):
        yield HeadAxis(path, "out", ("q",))  # position terms and gates have a slice for every head too
    elif known is None and size % n_heads == 0 and (block := viewed_by_heads(module, path)):
        yield HeadAxis(path, "out", (block,))


def _together(module: nn.Module, path: str, apart: tuple[Block, ...], size: int, width: int) -> tuple[Block, ...]:
    return ("qkv",) if interleaves(module, path, even=len(apart) == 3 and size == 3 * width) else apart


def _is_inside_a_network(module: nn.Module, path: str, size: int) -> bool:
    """Whether what this part gives goes into another part of a small network beside it: a hidden layer."""
    owner, _, name = path.rpartition(".")
    beside = projections(module.get_submodule(owner)) if owner else {}
    return any(widths(part)[0] == size for other, part in beside.items() if other != name)


def _batch_norms(module: nn.Module, axis: HeadAxis, parts: dict[str, Any]) -> Iterator[HeadAxis]:
    """What normalises every feature of a projection for itself, in one module with it, has the same slices."""
    owner = axis.path.rpartition(".")[0]
    if axis.axis != "out" or not owner or axis.path not in parts:
        return
    for name, part in module.get_submodule(owner).named_children():
        if "batchnorm" in type(part).__name__.lower() and part.num_features == widths(parts[axis.path])[1]:
            for tensor in ("weight", "bias", "running_mean", "running_var"):
                if getattr(part, tensor, None) is not None:
                    yield HeadAxis(f"{owner}.{name}.{tensor}", 0, axis.blocks)


def _norms_of_heads(module: nn.Module, n_heads: int, width: int) -> Iterator[HeadAxis]:
    """What normalises every head for itself and says so by its groups has weights for the features of all of them."""
    attended = re.search(r"softmax|scaled_dot_product|matmul|bmm|einsum| @ ", code := own_code(module))
    for path, part in module.named_modules():
        after = attended is not None and f"self.{path}(" in code[attended.end() :]
        if after and getattr(part, "num_groups", None) == n_heads and getattr(part, "num_channels", None) == width:
            for tensor in ("weight", "bias"):
                if getattr(part, tensor, None) is not None:
                    yield HeadAxis(f"{path}.{tensor}", 0, ("q",))


def _own_convolutions(
    module: nn.Module, axes: Sequence[HeadAxis], parts: dict[str, Any], n_heads: int
) -> Iterator[HeadAxis]:
    """Convolutions of every feature, or every head, for itself: they have a slice of what they follow."""
    known: dict[int, tuple[Block, ...]] = {n_heads: ("h",)}
    known |= {widths(parts[axis.path])[1]: axis.blocks for axis in axes if axis.axis == "out" and axis.path in parts}
    for path, part in module.named_modules():
        channels = getattr(part, "groups", 1)  # of other modules something else may be called so
        alone = channels > 1 and getattr(part, "in_channels", 0) == getattr(part, "out_channels", 0) == channels
        if alone and channels in known:
            for tensor in ("weight", "bias"):
                if getattr(part, tensor, None) is not None:
                    yield HeadAxis(f"{path}.{tensor}", 0, known[channels])


def _order(path: str) -> tuple[Block, ...]:
    """The order in which a fused projection gives its three parts: as in its name, if that has one of its own."""
    own = re.search(r"kqv|vkq|kvq|qvk|vqk", path.rpartition(".")[2].lower())
    letters: dict[str, Block] = {"q": "q", "k": "k", "v": "v"}
    return tuple(letters[letter] for letter in (own[0] if own else "qkv"))


def _tables(module: nn.Module, parts: dict[str, Any], n_heads: int, width: int) -> Iterator[HeadAxis]:
    """Parameters of their own with an entry for every head: position tables, sinks, scales."""
    convolutions = [path for path, part in module.named_modules() if hasattr(part, "kernel_size")]
    of_parts = {f"{path}.{name}" for path in (*parts, *convolutions) for name in ("weight", "bias")}
    for path, value in [*module.named_parameters(), *module.named_buffers()]:
        # a vector of a norm has a number for every feature; a matrix of one can have a row for every head
        of_features = r"(^|\.)bn\.|inv_freq|rotary" + (r"|norm" if value.ndim == 1 else "")
        numbers = value.is_floating_point() and not re.search(of_features, path, re.IGNORECASE)
        if path in of_parts or not numbers:
            continue
        axes = [axis for axis, size in enumerate(value.shape) if size == n_heads]
        if tuple(value.shape[-2:]) == (n_heads, width // n_heads):  # also where a head is as wide as there are heads
            axes = [value.ndim - 2]
        if len(axes) == 2 and re.search(rf"self\.{re.escape(path)}\[:", own_code(module)):
            axes = axes[:1]  # as many entries as there are heads, and the code looks them up on the other axis
        if len(axes) == 1:
            yield HeadAxis(path, axes[0], ("h",))
        elif value.ndim == 1 and value.shape[0] == width and re.search(r"(^|[._])[qv]_bias$", path):
            yield HeadAxis(path, 0, ("q",))
        elif value.ndim > 1 and value.shape[-1] == width and re.search(_MORE_KEYS, path):
            yield HeadAxis(path, value.ndim - 1, ("q",))


def _learned_queries(module: nn.Module, parts: dict[str, Any], width: int) -> Iterator[HeadAxis]:
    of_parts = {f"{path}.{name}" for path in parts for name in ("weight", "bias")}
    for path, value in module.named_parameters():
        if path not in of_parts and value.ndim > 1 and value.shape[-1] == width and "norm" not in path.lower():
            yield HeadAxis(path, value.ndim - 1, ("q",))


def _counts(module: nn.Module, n_heads: int, width: int) -> Iterator[tuple[str, Count]]:
    """Attributes that forward may read, by their names and values."""
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if not isinstance(value, int) or isinstance(value, bool):
                continue
            where = f"{path}.{name}" if path else name
            if re.fullmatch(_KV_HEADS, name):
                yield where, "kv_heads"
            elif re.fullmatch(_GROUPS, name):
                yield where, "group"
            elif value == n_heads and (re.fullmatch(_HEADS, name) or name in shapes_of(part) or _is_short(part, name)):
                yield where, "heads"
            elif value == width and (re.fullmatch(_WIDTHS, name) or name in split_by(part)):
                if not is_rooted(part, name):
                    yield where, "width"
            elif re.fullmatch(_KV_WIDTHS, name) and value % (width // n_heads) == 0:
                yield where, "kv_width"


def _is_short(module: nn.Module, name: str) -> bool:
    """Whether this is one letter or two, which says nothing, and forward reads it."""
    return len(name) < 3 and bool(re.search(rf"self\.{name}\b", own_code(module)))


def _config_counts(module: nn.Module, n_heads: int) -> Iterator[tuple[str, Count]]:
    """What forward reads from the module's config instead of from the module (Phi-3)."""
    config = getattr(module, "config", None)
    for name in sorted(set(re.findall(r"self\.config\.(\w+)", own_code(module)))):
        if re.fullmatch(_KV_HEADS, name):
            yield name, "kv_heads"
        elif re.fullmatch(_HEADS, name) and getattr(config, name, None) == n_heads:
            yield name, "heads"


def _joint_norms(module: nn.Module) -> Iterator[str]:
    for path, part in module.named_modules():
        if "norm" in type(part).__name__.lower() and re.fullmatch(
            r"(q|k|query|key)_?(layer_?)?(norm|ln)|(layer_?)?(norm|ln)_?(q|k|query|key)|.*sub_?norm|.*inner_attn_ln",
            path.rpartition(".")[2],
        ):
            yield path


def _has_planes(module: nn.Module, argument: str) -> bool:
    """Whether forward takes this argument and adds it; what it multiplies with queries are vectors of no head."""
    taken = argument in inspect.signature(module.forward).parameters
    return taken and not re.search(rf"(matmul|bmm|einsum)\([^\n]*\b{argument}\b", own_code(module))


def _is_torch_attention(module: nn.Module) -> bool:
    return any(
        f"{cls.__module__}.{cls.__qualname__}" == "torch.nn.modules.activation.MultiheadAttention"
        for cls in type(module).__mro__
    )
