"""Turn a freshly built model into its pruned shape, by a list of cuts.

This file needs torch and nothing else. It is the engine of oattn_hub's surgery, and a copy of it travels with every
pruned checkpoint, so that the checkpoint loads where oattn_hub is not installed. The list of cuts is plain JSON:

    keep    parameter or buffer, axis, size before the cut, half-open index ranges: what is left of it
    zero    parameters that are set to zero (the one head that stays in a layer that lost all of them)
    bias    linear modules without a bias that get one, zero until weights are loaded: ``cuts["bias"].append(path)``
            lets a checkpoint carry the bias of a refitted output projection (:func:`add_bias` makes it in place)
    set     module, attribute, value: the counts that the module's forward reads
    config  module, attributes: counts that it reads from its config, which it then owns a copy of
    behave  module, behaviour, arguments: what a cut module must do that a smaller tensor cannot express
    sites   layer, number of heads before, kept heads, kept key/value heads, output projection: what it was all about

Model paths are those of the class that was pruned; ``prefix`` is cut off them for its base model.
"""

from __future__ import annotations

import copy
import inspect
import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

# What modules are called with, of any kind; and the lists of cuts, by what they do.
Args = tuple[Any, ...]
Kwargs = dict[str, Any]
Cuts = dict[str, Any]


def apply_cuts(model: nn.Module, cuts: Cuts, prefix: str = "") -> nn.Module:
    """Apply a list of cuts to ``model`` in place and return it."""
    if cuts.get("version") not in (1, 2):
        raise ValueError(f"The list of cuts has version {cuts.get('version')!r}; this file reads versions 1 and 2.")

    home = _home(model, cuts, prefix)

    def find(path: str) -> Any:
        return home.get_submodule(path.removeprefix(prefix))

    done: _Done = {}
    for cut in cuts["keep"]:
        owner, _, name = cut["tensor"].rpartition(".")
        _keep(find(owner), name, cut["axis"], cut["ranges"], done)
        _forget_cached(find(owner))
    for tensor in cuts["zero"]:
        owner, _, name = tensor.rpartition(".")
        with torch.no_grad():
            getattr(find(owner), name).zero_()
    for path in cuts.get("bias", ()):
        add_bias(find(path))
    for change in cuts["set"]:
        setattr(find(change["module"]), change["attribute"], change["value"])
    for change in cuts["config"]:
        module = find(change["module"])
        module.config = copy.copy(module.config)
        for name, value in change["attributes"].items():
            setattr(module.config, name, value)
    for change in cuts["behave"]:
        BEHAVIOURS[change["behaviour"]](find(change["module"]), **change["arguments"])
    return model


def _home(model: Any, cuts: Cuts, prefix: str) -> nn.Module:
    """Where the paths of the cuts begin: at the model, or at its base model if they were made on one without a head."""
    base = getattr(model, getattr(model, "base_model_prefix", "") or "-", None)
    for cut in cuts["keep"][:1]:
        path = cut["tensor"].removeprefix(prefix)
        if isinstance(base, nn.Module) and not _leads_somewhere(model, path) and _leads_somewhere(base, path):
            return base
    found: nn.Module = model
    return found


def _leads_somewhere(model: nn.Module, path: str) -> bool:
    try:
        return hasattr(model.get_submodule(path.rpartition(".")[0]), path.rpartition(".")[2])
    except AttributeError:
        return False


def add_bias(module: Any) -> None:
    """Give a linear module without a bias one that is zero."""
    if module.bias is None:
        module.bias = nn.Parameter(module.weight.detach().new_zeros(module.weight.shape[0]))


def indices(ranges: Iterable[Sequence[int]]) -> list[int]:
    """The single indices of half-open ranges, in order."""
    return [index for start, stop in ranges for index in range(start, stop)]


# Tensor and what became of it, for modules that share their weights: they go on sharing.
_Done = dict[int, tuple[torch.Tensor, torch.Tensor]]


def _keep(module: Any, name: str, axis: int, ranges: Sequence[Sequence[int]], done: _Done) -> None:
    tensor = getattr(module, name)
    size = tensor.shape[axis]
    if any(not 0 <= start < stop <= size for start, stop in ranges) or sum(b - a for a, b in ranges) > 64 * size:
        raise ValueError(
            f"the cuts keep {str(ranges)[:60]} of {name}, which has {size} there"
        )  # before it takes memory
    if id(tensor) not in done:
        done[id(tensor)] = (tensor, _kept(tensor, axis, indices(ranges)))
    data = done[id(tensor)][1]
    if isinstance(tensor, nn.Parameter):
        setattr(module, name, data)
    else:
        module._buffers[name] = data
    if name == "weight" and hasattr(module, "in_features"):
        module.out_features, module.in_features = data.shape
    elif name == "weight" and hasattr(module, "nf"):  # transformers' Conv1D keeps its weight transposed
        module.nx, module.nf = data.shape
    elif name == "weight" and axis == 0 and getattr(module, "groups", 1) == size > 1:  # a convolution of each feature
        module.groups = module.in_channels = module.out_channels = len(data)


def _forget_cached(module: nn.Module) -> None:
    """Empty what a module remembers by device or size (position biases of all heads): forward fills it anew."""
    for name, value in vars(module).items():
        if isinstance(value, dict) and not name.startswith("_") and "cache" in name:
            setattr(module, name, {})


def _kept(tensor: torch.Tensor, axis: int, kept: list[int]) -> torch.Tensor:
    if tensor.is_meta:  # while transformers loads, parameters have no data yet
        data = tensor.new_empty((*tensor.shape[:axis], len(kept), *tensor.shape[axis + 1 :]))
    else:
        data = tensor.detach().index_select(axis, torch.tensor(kept, device=tensor.device))
    return nn.Parameter(data, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else data


def take(tensor: torch.Tensor, axis: int, ranges: Sequence[Sequence[int]]) -> torch.Tensor:
    """Half-open ranges along an axis, side by side; slices and no index, which every exporter understands."""
    parts = [tensor.narrow(axis, start, stop - start) for start, stop in ranges]
    return parts[0] if len(parts) == 1 else torch.cat(parts, axis)


def runs(positions: Iterable[int]) -> list[list[int]]:
    """Positions as half-open ranges, neighbours joined."""
    return joined((position, position + 1) for position in positions)


def joined(ranges: Iterable[Sequence[int]]) -> list[list[int]]:
    """Neighbouring ranges as one."""
    found: list[list[int]] = []
    for start, stop in ranges:
        if found and found[-1][1] == start:
            found[-1][1] = stop
        else:
            found.append([start, stop])
    return found


def repeat_features(module: nn.Module, ranges: Sequence[Sequence[int]]) -> None:
    """Let a projection hand out a feature several times (lists of cuts of version 1)."""
    module.register_forward_hook(_RepeatFeatures(ranges))


def even_groups(module: nn.Module, repeat: dict[str, Any], select: dict[str, Any]) -> None:
    """Fill up groups of queries that a cut left uneven with copies of their own queries, and drop what these give.

    Attention functions and caches only know even groups. ``repeat`` names projections and the features they hand out,
    ``select`` the output projection and the features that it reads.
    """
    hook = _EvenGroups(repeat, select)
    hook(module, ())
    module.register_forward_pre_hook(hook)


class _EvenGroups:
    """Keeps the hooks on the projections, also when a tool wraps or replaces these (LoRA, int8)."""

    def __init__(self, repeat: dict[str, Any], select: dict[str, Any]) -> None:
        self.repeat, self.select = repeat, select

    def __call__(self, module: nn.Module, args: Args) -> None:
        for path, ranges in self.repeat.items():
            projection = module.get_submodule(path)
            if not _has(projection._forward_hooks, _RepeatFeatures):
                _forget(projection)
                projection.register_forward_hook(_RepeatFeatures(ranges))
        for path, ranges in self.select.items():
            projection = module.get_submodule(path)
            if not _has(projection._forward_pre_hooks, _SelectInputs):
                _forget(projection)
                projection.register_forward_pre_hook(_SelectInputs(ranges))


def _has(hooks: dict[int, Any], kind: type) -> bool:
    return any(isinstance(hook, kind) for hook in hooks.values())


def _forget(projection: nn.Module) -> None:
    """Take the hooks off modules inside a wrapper: what they compute is put together by the wrapper first."""
    for inner in projection.modules():
        for hooks in (inner._forward_hooks, inner._forward_pre_hooks):
            for key in [key for key, hook in hooks.items() if isinstance(hook, _RepeatFeatures | _SelectInputs)]:
                del hooks[key]


class _RepeatFeatures:
    def __init__(self, ranges: Sequence[Sequence[int]]) -> None:
        self.ranges = ranges

    def __call__(self, module: nn.Module, args: Args, output: torch.Tensor) -> torch.Tensor:
        return take(output, output.dim() - 1, self.ranges)


class _SelectInputs:
    def __init__(self, ranges: Sequence[Sequence[int]]) -> None:
        self.ranges = ranges

    def __call__(self, module: nn.Module, args: Args) -> Args:
        return (take(args[0], args[0].dim() - 1, self.ranges), *args[1:])


def select_head_argument(module: nn.Module, argument: str, kept: Sequence[int], n_heads: int) -> None:
    """Pick the kept heads of a forward argument that comes with a plane for every head of the uncut layer."""
    position = list(inspect.signature(module.forward).parameters).index(argument)
    hook = _SelectArgument(argument, position, runs(kept), n_heads)
    module.register_forward_pre_hook(hook, with_kwargs=True)


class _SelectArgument:
    def __init__(self, argument: str, position: int, kept: list[list[int]], n_heads: int) -> None:
        self.argument, self.position, self.kept, self.n_heads = argument, position, kept, n_heads

    def __call__(self, module: nn.Module, args: Args, kwargs: Kwargs) -> Any:
        if self.argument in kwargs:
            kwargs = {**kwargs, self.argument: self.chosen(kwargs[self.argument])}
        elif self.position < len(args):
            args = (*args[: self.position], self.chosen(args[self.position]), *args[self.position + 1 :])
        return args, kwargs

    def chosen(self, planes: torch.Tensor | None) -> torch.Tensor | None:
        if not isinstance(planes, torch.Tensor) or self.n_heads == 1:
            return planes
        if planes.dim() == 4:  # (batch, head, query, key); one plane serves all heads
            return take(planes, 1, self.kept) if planes.shape[1] == self.n_heads else planes
        if planes.dim() > 4 and planes.shape[2] == self.n_heads:  # (batch, block, head, query, key): local attention
            return take(planes, 2, self.kept)
        # (batch, key) or (batch, query, key): for all heads
        if self.argument == "attention_mask" or planes.dim() != 3 or planes.shape[0] % self.n_heads:
            return planes
        return take(planes.unflatten(0, (-1, self.n_heads)), 1, self.kept).flatten(0, 1)  # (batch * head, query, key)


def _specialise(module: Any, torchs: Any = None, **members: Any) -> Any:
    """Give one module a subclass of its own class; a deep copy of the module keeps it.

    Where its class has a forward with other arguments than that of ``torchs``, which it calls, it is the latter's that
    is replaced: it then stands between the two.
    """
    own = type(module)
    above = torchs is not None and not _takes_the_same(own.forward, torchs.forward)
    base = torchs if above else own
    said = {"__module__": own.__module__}
    special = type(own.__name__, (base,), {**said, **members})
    module.__class__ = type(own.__name__, (own, special), said) if above else special
    return base


def _takes_the_same(one: Any, other: Any) -> bool:
    return set(list(inspect.signature(other).parameters)[:2]) <= set(inspect.signature(one).parameters)


def share_position_bias(module: nn.Module, kept: Sequence[int]) -> None:
    """Use the kept heads of a position bias that the layers pass on to each other, and pass on the whole (T5)."""
    heads = runs(kept)

    def compute_bias(self: Any, *args: Any, **kwargs: Any) -> torch.Tensor:
        self.full_position_bias = base.compute_bias(self, *args, **kwargs)
        return take(self.full_position_bias, 1, heads)

    def forward(self: Any, *args: Any, position_bias: torch.Tensor | None = None, **kwargs: Any) -> Any:
        self.full_position_bias = position_bias
        own = None if position_bias is None else take(position_bias, 1, heads)
        output, _, *rest = base.forward(self, *args, position_bias=own, **kwargs)
        full, self.full_position_bias = self.full_position_bias, None
        return (output, full, *rest)

    base = _specialise(module, compute_bias=compute_bias, forward=forward)


def narrow_reshapes(module: nn.Module, widths: dict[str, int], n_heads: int, head_dim: int) -> None:
    """Correct reshapes and splits to the module's input width, where forward takes it for the width of all heads."""
    changes = {int(wide): narrow for wide, narrow in widths.items()}

    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _NarrowReshapes(changes, n_heads, head_dim):
            return base.forward(self, *args, **kwargs)

    base = _specialise(module, forward=forward)


class _NarrowReshapes(TorchFunctionMode):
    """Touches only what would fail, and reshapes that leave one size open and so would go wrong in silence."""

    def __init__(self, changes: dict[int, int], n_heads: int, head_dim: int) -> None:
        super().__init__()
        self.changes, self.n_heads, self.head_dim = changes, n_heads, head_dim

    def __torch_function__(self, func: Any, types: object, args: Args = (), kwargs: Kwargs | None = None) -> object:
        if func in (torch.Tensor.reshape, torch.Tensor.view) and not kwargs and len(args) > 1:
            shape = args[1:] if isinstance(args[1], int) else tuple(args[1])
            if all(isinstance(size, int) for size in shape):
                args = (args[0], *self.corrected(tuple(args[0].shape), shape))
        elif func in (torch.Tensor.split, torch.split) and len(args) > 1:
            axis = (kwargs or {}).get("dim", args[2] if len(args) > 2 else 0)
            args = (args[0], self.corrected_parts(args[0].shape[axis], args[1]), *args[2:])
        return func(*args, **(kwargs or {}))

    def corrected_parts(self, given: int, sizes: Any) -> Any:
        """Sizes to split ``given`` features by: one for all parts, or one for each."""
        if isinstance(sizes, int):
            narrow = self.changes.get(sizes, sizes)
            return sizes if given % sizes == 0 or given % narrow else narrow
        parts = [self.changes.get(size, size) for size in sizes]
        return sizes if sum(sizes) == given or sum(parts) != given else parts

    def corrected(self, given: tuple[int, ...], shape: tuple[int, ...]) -> tuple[int, ...]:
        numel, width = math.prod(given), self.n_heads * self.head_dim
        of_a_head = self.changes.get(shape[-1]) == self.head_dim  # (..., heads, width // heads)
        if -1 in shape[:-1] and shape[-2] == self.n_heads and of_a_head:
            return (*shape[:-1], self.head_dim)
        if -1 in shape[:-1] and given[-2:] == (self.n_heads, self.head_dim) and self.changes.get(shape[-1]) == width:
            return (*shape[:-1], width)
        if _fits(numel, shape):
            return shape
        wide = [axis for axis in reversed(range(len(shape))) if shape[axis] in self.changes]
        for count in range(1, len(wide) + 1):
            for axes in itertools.combinations(wide, count):
                narrow = tuple(self.changes[size] if axis in axes else size for axis, size in enumerate(shape))
                if _fits(numel, narrow):
                    return narrow
        return shape


def _fits(numel: int, shape: tuple[int, ...]) -> bool:
    known = math.prod(size for size in shape if size != -1)
    return known == numel if -1 not in shape else known > 0 and numel % known == 0


def cut_multihead(module: Any, n_heads: int, head_dim: int, kept: Sequence[int] = (), before: int = 0) -> None:
    """Run ``nn.MultiheadAttention`` with fewer heads than its width gives: those ``kept`` of so many ``before``."""
    # The encoder layer's fast path reads these and would not see the cut.
    module._qkv_same_embed_dim, module.packed = False, module._qkv_same_embed_dim

    def reset(self: Any) -> None:
        self._qkv_same_embed_dim = self.packed
        base._reset_parameters(self)
        self._qkv_same_embed_dim = False

    def forward(
        self: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        key_padding_mask: torch.Tensor | None = None,
        need_weights: bool = True,
        attn_mask: torch.Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        batched = query.dim() == 3
        if not batched:
            query, key, value = query.unsqueeze(0), key.unsqueeze(0), value.unsqueeze(0)
        elif not self.batch_first:
            query, key, value = query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1)
        heads = [x.unflatten(-1, (n_heads, head_dim)).transpose(1, 2) for x in _project(self, query, key, value)]
        bias = _merge_masks(_mask_of(attn_mask, len(query), kept, before), key_padding_mask, heads[0])
        scores = heads[0] @ heads[1].transpose(-1, -2) * head_dim**-0.5
        weights = (scores if bias is None else scores + bias).softmax(-1)
        dropped = nn.functional.dropout(weights, self.dropout, self.training)
        output = self.out_proj((dropped @ heads[2]).transpose(1, 2).flatten(-2))
        if average_attn_weights:
            weights = weights.mean(1)
        if not batched:
            output, weights = output.squeeze(0), weights.squeeze(0)
        elif not self.batch_first:
            output = output.transpose(0, 1)
        return output, weights if need_weights else None

    base = _specialise(module, nn.MultiheadAttention, forward=forward, _reset_parameters=reset)


def _project(module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> list[torch.Tensor]:
    linear = nn.functional.linear
    biases = module.in_proj_bias.chunk(3) if module.in_proj_bias is not None else (None, None, None)
    if module.packed:
        weights = module.in_proj_weight.chunk(3)
    else:
        weights = module.q_proj_weight, module.k_proj_weight, module.v_proj_weight
    return [linear(x, w, b) for x, w, b in zip((query, key, value), weights, biases)]  # noqa: B905


def _mask_of(mask: torch.Tensor | None, batch: int, kept: Sequence[int], before: int) -> torch.Tensor | None:
    """The planes of the kept heads, where a mask has one for every head of the uncut module."""
    if mask is None or mask.dim() != 3 or not before or mask.shape[0] != batch * before:
        return mask
    return take(mask.unflatten(0, (batch, before)), 1, runs(kept)).flatten(0, 1)


def _merge_masks(
    attn_mask: torch.Tensor | None, key_padding_mask: torch.Tensor | None, query: torch.Tensor
) -> torch.Tensor | None:
    """What is added to the scores (batch, head, query, key)."""
    merged = None
    if attn_mask is not None:
        merged = _additive(attn_mask, query)
        if merged.dim() == 3:  # (batch * head, query, key)
            merged = merged.unflatten(0, (query.shape[0], -1))
            if merged.shape[1] not in (1, query.shape[1]):
                raise ValueError("A mask with one plane per head does not fit a module whose heads were cut.")
    if key_padding_mask is not None:
        padding = _additive(key_padding_mask, query)[:, None, None, :]
        merged = padding if merged is None else merged + padding
    return merged


def _additive(mask: torch.Tensor, query: torch.Tensor) -> torch.Tensor:
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=query.dtype).masked_fill(mask, -math.inf)


BEHAVIOURS: dict[str, Any] = {
    "repeat_features": repeat_features,
    "even_groups": even_groups,
    "select_head_argument": select_head_argument,
    "share_position_bias": share_position_bias,
    "narrow_reshapes": narrow_reshapes,
    "cut_multihead": cut_multihead,
}
