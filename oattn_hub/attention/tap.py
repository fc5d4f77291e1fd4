"""Seeing attention where it is computed, with the model left as it is.

A ``TorchFunctionMode`` is on while the model runs. Forward hooks say which attention layer is at work; a fused kernel
or a softmax met there is an attention call, handed over with its inputs. What the model computes is not touched, so
its output is bit-identical.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch.overrides import TorchFunctionMode, _pop_mode, _push_mode

from oattn_hub.attention import native
from oattn_hub.attention.calls import AttentionCall, DotProductCall, Heads, SoftmaxCall, UnexpectedShape
from oattn_hub.attention.folded import FOLDS, Folds
from oattn_hub.attention.masks import MASKED_BELOW, TRACED, MaskTrace
from oattn_hub.attention.passes import SitePass
from oattn_hub.attention.written import STEPS, WrittenSoftmax, dimension
from oattn_hub.types import Args, Function, Kwargs

if TYPE_CHECKING:
    from oattn_hub.adapters import AttentionSite

Seen = TypeVar("Seen", bound=AttentionCall)
#: frame of the call, shape (…, head, query, key), number of key/value heads
Unclaimed = Callable[[FrameType, Sequence[int], int], "SitePass | None"]

_SOFTMAX = {"softmax", "_softmax", "softmax1"}
_FUSED = "scaled_dot_product_attention"
_FUNCTION_OF_TORCH = "multi_head_attention_forward"
_UNDER_VMAP = {*_SOFTMAX, _FUSED}  # there tensors show a part of their axes only
_HIDDEN = {"flex_attention", "flash_attn_func", "flash_attn_varlen_func"}
_KERNELS = "_scaled_dot_product"  # how the names of torch.ops.aten begin for the kernels behind the fused function
# What mixes the weights of several heads before they meet the values.
_LAYERS = {"linear", "conv2d", "layer_norm", "batch_norm"}
# Where weights are multiplied with values, and what may happen to them before.
_PRODUCTS = {"matmul", "bmm", "__matmul__", "einsum", "baddbmm", "mm"}
_ON_THE_WAY = {
    *("dropout", "to", "type", "type_as", "float", "half", "bfloat16", "contiguous", "clone", "nan_to_num"),
    *("view", "reshape", "transpose", "permute", "flatten", "unflatten", "squeeze", "unsqueeze", "expand", "movedim"),
    *("mul", "__mul__", "__rmul__", "masked_fill", "where", "__getitem__", "narrow", "cat", "pad", "swapaxes"),
    *("dropout_", "alpha_dropout", "masked_fill_", "div", "__truediv__", "add", "__add__", "view_as", "detach"),
    *("__get__", "split", "chunk", "sub", "__sub__", "div_", "__itruediv__"),  # the first is .mT
}
_DIVISIONS = {"div", "__truediv__", "div_", "__itruediv__"}
_SCATTERED = {"scatter", "scatter_", "scatter_add", "scatter_add_"}
# What else may happen to products of queries and keys that no softmax turns into weights.
_OF_SCORES = _ON_THE_WAY | {
    *("exp", "exp_", "sigmoid", "relu", "square", "pow", "__pow__", "tanh", "softplus", "clamp", "elu", "gelu", "silu"),
    *("__rsub__", "neg", "__neg__", "mul_", "__imul__", "tril", "triu"),
    *("__rtruediv__", "add_", "__iadd__", "__radd__"),
}


@dataclass
class _Weights:
    """The result of a softmax on its way to the values, and the call that it is the result of, if it looks like one."""

    tensor: torch.Tensor  # kept alive, so that its id stays its own
    call: SoftmaxCall | None
    problem: str
    owner: SitePass
    mixed: bool = False  # with other weights on the way: what meets the values is no longer the softmax's result
    times: bool = False  # multiplied entry by entry with something that may be values
    columns: tuple[int, int] | None = None  # which keys these are, if they lie along the last axis
    of_products: bool = True  # whether the scores are products of queries and keys


class Tap(TorchFunctionMode):
    """Adds every attention call to the pass that is open.

    Args:
        needs_scores: Whether masks must be distinguished from position terms (costs one more look at the scores).
        unclaimed: Gives a pass for a call made while none is open, from the frame and the shapes of the call; None if
            the call cannot be placed.
        unweighted: Takes the frame and the shape of products of queries and keys that meet values without a softmax.
    """

    def __init__(
        self, needs_scores: bool, unclaimed: Unclaimed, unweighted: Callable[[FrameType, Sequence[int]], None]
    ) -> None:
        super().__init__()
        self._needs_scores = needs_scores
        self._unclaimed = unclaimed
        self._passes: list[SitePass] = []
        self._unweighted = unweighted
        self._eager: Any = None  # what keeps compiled functions from hiding their attention
        self._weights: dict[int, _Weights] = {}
        self._scores: dict[int, weakref.ref[torch.Tensor]] = {}  # products of two things that the model computed
        self._read: dict[int, weakref.ref[torch.Tensor]] = {}  # values read with weights that are made of no products
        self._written = WrittenSoftmax()
        self._folds = Folds()
        self._between = MaskTrace(MASKED_BELOW)  # masks put on while no pass is open
        self.outside: list[str] = []  # attention that could not be placed
        self.hidden: list[str] = []  # what the model does that keeps attention from being seen

    def open(self) -> None:
        """Watch from now on; functions that were compiled run as they were written."""
        if "torch._dynamo" in sys.modules and self._eager is None:
            self._eager = torch.compiler.set_stance("force_eager")
            self._eager.__enter__()
        self.outside.clear()
        self.hidden.clear()
        self._forget()
        _push_mode(self)

    def close(self) -> None:
        """Watch no more, wherever other modes have put themselves since."""
        if self._eager is not None:
            self._eager.__exit__(None, None, None)
            self._eager = None
        self._passes.clear()
        self._forget()
        _STEPPED_ASIDE.taps = [tap for tap in _STEPPED_ASIDE.taps if tap is not self]
        above = []
        while torch._C._len_torch_function_stack():
            mode = _pop_mode()
            if mode is self:
                break
            above.append(mode)
        for mode in reversed(above):
            _push_mode(mode)

    def enter(self, opened: SitePass) -> None:
        """Attention met from now on belongs to this pass."""
        self._passes.append(opened)

    def leave(self) -> SitePass:
        """The pass that ends."""
        ended = self._passes.pop()
        ended.without_sinks()
        self._weights = {key: weights for key, weights in self._weights.items() if weights.owner is not ended}
        return ended

    def __torch_function__(
        self, func: Function, types: Collection[type], args: Args = (), kwargs: Kwargs | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "").partition(".")[0]  # torch.ops names the overload, too
        if self._needs_scores and name in TRACED:
            result = self._trace.run(name, func, args, kwargs)
        else:
            result = func(*args, **kwargs)
        if self._passes and self._passes[-1].idle and isinstance(result, torch.Tensor) and result.is_floating_point():
            self._passes[-1].idle = False
        if name in FOLDS:
            self._folds.note(name, args, kwargs, result)
        if name in _UNDER_VMAP and _is_batched(result):
            self.hidden.append("computes attention under vmap")
        elif name == _FUSED:
            self._fused(args, kwargs)
        elif name in _SOFTMAX:
            self._softmax(result, args, kwargs)
        elif name == _FUNCTION_OF_TORCH:
            self._function_of_torch(args, kwargs)
        elif name in _HIDDEN or name.startswith(_KERNELS):
            self.hidden.append(f"calls {name}")
        elif name in STEPS and (ended := self._written.ended_by(name, args, kwargs, result)) is not None:
            self._softmax(result, ended, {})
        elif name in _PRODUCTS:
            self._product(args, result)
        elif self._weights and name == "sum":
            self._confirm_sum(args)
        elif self._weights and (name in _ON_THE_WAY or name in _LAYERS):
            # what is divided by its sum once more is another distribution (slots)
            scaled = name in _DIVISIONS and len(args) > 1 and isinstance(args[1], torch.Tensor) and args[1].ndim > 2
            self._follow(args, result, mixing=name in _LAYERS, other=scaled)
        elif self._weights and name in _SCATTERED:
            self._put_back([*args, *kwargs.values()], result)
        if self._scores and name in _OF_SCORES and any(_among(self._scores, arg) for arg in args):
            self._remember(self._scores, result)
        return result

    def _remember(self, known: dict[int, weakref.ref[torch.Tensor]], result: object) -> None:
        if isinstance(result, torch.Tensor) and result.ndim > 1 and id(result) not in self._weights:
            if len(known) > _REMEMBERED:
                known.clear()
            known[id(result)] = weakref.ref(result)

    def _product(self, args: Args, result: torch.Tensor) -> None:
        """A product that may be of queries and keys, or of weights and values."""
        operands = [*args, *(args[1] if len(args) > 1 and isinstance(args[1], list | tuple) else ())]
        found = next((self._weights[id(arg)] for arg in operands if id(arg) in self._weights), None)
        if found is not None:
            self._confirm(found, operands, result)
            return
        computed = [arg for arg in operands if isinstance(arg, torch.Tensor) and arg.ndim > 1]
        if len(computed) < 2 or result.ndim < 3 or any(_is_given(arg) for arg in computed):
            return
        scores = next((arg for arg in computed if _among(self._scores, arg)), None)
        if scores is not None and not self._passes:
            self._unweighted(sys._getframe(2), scores.shape)
        self._remember(self._scores, result)

    def _function_of_torch(self, args: Args, kwargs: Kwargs) -> None:
        """``functional.multi_head_attention_forward`` without the module around it, as CLIP's pooling calls it."""
        given = native.arguments(torch.nn.functional.multi_head_attention_forward, args, kwargs)
        query, key, n_heads = given["query"], given["key"], given["num_heads"]
        contexts = query.shape[1] if query.ndim == 3 else 1
        owner = self._pass_for((contexts, n_heads, query.shape[0], key.shape[0]), n_heads)
        if owner is None:
            self.outside.append(f"queries {tuple(query.shape)}")
            return
        with torch.no_grad(), torch._C.DisableTorchFunction():
            owner.calls.append(native.call_of_function(given))

    @property
    def _trace(self) -> MaskTrace:
        return self._passes[-1].trace if self._passes else self._between

    def _forget(self) -> None:
        self._weights.clear()
        self._scores.clear()
        self._read.clear()
        self._written.clear()
        self._folds.clear()
        self._between.clear()

    def _pass_for(self, shape: Sequence[int], n_kv_heads: int) -> SitePass | None:
        if self._passes:
            return self._passes[-1]
        return self._unclaimed(sys._getframe(2), shape, n_kv_heads)

    def _fused(self, args: Args, kwargs: Kwargs) -> None:
        given = dict(zip(("query", "key", "value", "attn_mask", "dropout_p", "is_causal"), args, strict=False))
        query, key = ({**given, **kwargs}[name] for name in ("query", "key"))
        owner = self._pass_for((*query.shape[:-1], key.shape[-2]), key.shape[-3] if key.ndim > 3 else 0)
        if owner is None:
            self.outside.append(f"queries {tuple(query.shape)}")
            return
        with torch.no_grad(), torch._C.DisableTorchFunction():
            try:
                options = {**given, **kwargs}
                self._note_order(owner, query)
                call = DotProductCall.from_sdpa(**options, heads=owner.all_heads(), trace=self._trace)
                owner.calls.append(_distinct(call, owner.site))
            except UnexpectedShape as error:
                owner.unrecognised.append(str(error))
        self._trace.clear()

    def _note_order(self, owner: SitePass, tensor: torch.Tensor) -> None:
        """Whether heads come before contexts on the first of three axes."""
        if tensor.ndim == 3:
            owner.heads_first = self._folds.heads_first(tensor.shape[0], owner.all_heads().count)

    def _softmax(self, result: torch.Tensor, args: Args, kwargs: Kwargs) -> None:
        dim = dimension(args, kwargs)
        if result.ndim == 2 and dim % 2 == 1 and _among(self._scores, args[0] if args else kwargs["input"]):
            self._softmax_of_one_query(result, args[0] if args else kwargs["input"])
        if result.ndim < 3 or (dim % result.ndim != result.ndim - 1 and result.shape[-1] == 1):
            return  # not between tokens: classes, or the kernel of a convolution (ConvBERT)
        keys_last = dim % result.ndim == result.ndim - 1
        shape = [*result.shape[: dim % result.ndim], *result.shape[dim % result.ndim + 1 :], result.shape[dim]]
        owner = self._pass_for(shape, shape[-3] if result.ndim > 3 and keys_last else 0)
        if owner is None:
            return
        logits = args[0] if args else kwargs["input"]
        call, problem = None, ""
        with torch.no_grad(), torch._C.DisableTorchFunction():
            try:
                trace = self._trace if self._needs_scores else None
                self._note_order(owner, result)
                seen = SoftmaxCall.from_softmax(logits, result.detach(), dim, owner.heads(result), trace)
                call = _distinct(seen, owner.site)
                owner.pending.append(call)
            except UnexpectedShape as error:
                problem = str(error)
        self._trace.clear()
        columns = (0, result.shape[-1]) if keys_last else None
        self._weights[id(result)] = _Weights(
            result, call, problem, owner, columns=columns, of_products=_among(self._scores, logits)
        )

    def _softmax_of_one_query(self, result: torch.Tensor, logits: torch.Tensor) -> None:
        """(context, key): a decoder that asks once in every step, with no axis for its queries or heads."""
        owner = self._pass_for((len(result), 1, 1, result.shape[1]), 1)
        if owner is None:
            return
        with torch.no_grad(), torch._C.DisableTorchFunction():
            scores, probs = (tensor.detach()[:, None, None] for tensor in (logits, result))
            trace = self._trace if self._needs_scores else None
            call = SoftmaxCall.from_softmax(scores, probs, -1, Heads(1), trace)
        owner.pending.append(call)
        self._trace.clear()
        self._weights[id(result)] = _Weights(result, call, "", owner, columns=(0, result.shape[1]))

    def _follow(self, args: Args, result: object, mixing: bool = False, other: bool = False) -> None:
        if isinstance(result, list | tuple):
            for part in result:
                self._follow(args, part, mixing)
            return
        operands = [*args, *(args[0] if args and isinstance(args[0], list | tuple) else ())]
        found = [self._weights[id(arg)] for arg in operands if id(arg) in self._weights]
        if not found or not isinstance(result, torch.Tensor) or result.ndim < 2:
            return
        if mixing and result.shape[-2:] != found[0].tensor.shape[-2:] and result.ndim < 4:
            return  # a layer that reads the weights as features
        others = [arg for arg in args if isinstance(arg, torch.Tensor) and id(arg) not in self._weights]
        self._weights[id(result)] = replace(
            found[0],
            tensor=result,
            mixed=mixing or other or any(one.mixed or one.call is not found[0].call for one in found),
            columns=_columns(found[0], result),
            times=found[0].times or (result.ndim > 4 and any(other.ndim == result.ndim for other in others)),
        )

    def _put_back(self, operands: Sequence[Any], result: object) -> None:
        """Weights of a few chosen keys are put in their places among all keys."""
        found = next((self._weights[id(arg)] for arg in operands if id(arg) in self._weights), None)
        if found is not None and isinstance(result, torch.Tensor) and result.shape[:-1] == found.tensor.shape[:-1]:
            self._weights[id(result)] = replace(found, tensor=result, mixed=True, columns=(0, result.shape[-1]))

    def _confirm(self, found: _Weights, operands: Sequence[Any], result: torch.Tensor) -> None:
        """Weights that are multiplied with values are attention; a product with a parameter is a layer."""
        if any(isinstance(arg, torch.nn.Parameter) for arg in operands):
            if result.shape == found.tensor.shape and result.ndim > 3:  # heads that talk to each other
                self._weights[id(result)] = replace(found, tensor=result, mixed=True)
        elif not found.of_products and any(_is_of_tokens(found.tensor, arg) for arg in operands):
            return  # experts of each token: it mixes what was made of itself
        elif found.call is None:
            found.owner.unrecognised.append(found.problem)
        elif not found.of_products and any(_among(self._read, arg) for arg in operands):
            found.owner.unrecognised.append("a softmax of queries and one of keys: linear attention")
        else:
            found.owner.confirm(found.call, self._as_mixed(found), found.columns)
            if not found.of_products:
                self._remember(self._read, result)

    def _confirm_sum(self, args: Args) -> None:
        """A product that is written as entry by entry, then summed."""
        found = self._weights.get(id(args[0])) if args else None
        if found is not None and found.times and found.call is not None:
            found.owner.confirm(found.call, found.call, found.columns)

    def _as_mixed(self, found: _Weights) -> SoftmaxCall:
        """Weights that are a mean of several softmaxes (ConViT) are read where they meet the values."""
        assert found.call is not None
        weights = found.tensor.detach()
        with torch.no_grad(), torch._C.DisableTorchFunction():
            if not found.mixed or bool(((weights.sum(-1) - 1).abs() > 1e-3).any()) or bool((weights < 0).any()):
                return found.call
            try:
                heads = found.owner.all_heads()
                call = SoftmaxCall.from_softmax(weights.log(), weights, -1, heads, MaskTrace(MASKED_BELOW))
                call = _distinct(call, found.owner.site)
                same = call.shape == found.call.shape and torch.allclose(call.probs, found.call.probs, atol=1e-6)
                return found.call if same else call
            except UnexpectedShape:
                return found.call


_REMEMBERED = 1000  # products; they are not kept alive


def _is_batched(result: object) -> bool:
    return isinstance(result, torch.Tensor) and torch._C._functorch.is_batchedtensor(result)


def _among(known: dict[int, weakref.ref[torch.Tensor]], arg: Any) -> bool:
    """Whether this very tensor is among some that may no longer exist."""
    reference = known.get(id(arg))
    return reference is not None and reference() is arg


def _is_of_tokens(weights: torch.Tensor, arg: Any) -> bool:
    """Whether this has, with one more axis, values for every row of the weights."""
    more = isinstance(arg, torch.Tensor) and arg.ndim == weights.ndim + 1
    return more and arg.shape[:-1] == weights.shape


def _is_given(tensor: torch.Tensor) -> bool:
    """Whether a tensor is part of the model and not computed: a parameter, or a view of one."""
    return isinstance(tensor, torch.nn.Parameter) or isinstance(tensor._base, torch.nn.Parameter)


def _columns(found: _Weights, result: torch.Tensor) -> tuple[int, int] | None:
    """Which keys are left when some are sliced off, as far as memory says."""
    whole = found.tensor
    if found.columns is None or result.shape[-1] >= whole.shape[-1] != found.columns[1] - found.columns[0]:
        return found.columns
    if result.shape[-1] == whole.shape[-1]:
        return found.columns
    shared = result.untyped_storage().data_ptr() == whole.untyped_storage().data_ptr()
    if not shared or whole.stride(-1) != 1 or whole.stride(-2) < whole.shape[-1]:
        return found.columns
    start = found.columns[0] + int(result.storage_offset() - whole.storage_offset()) % int(whole.stride(-2))
    return start, start + int(result.shape[-1])


def _distinct(call: Seen, site: AttentionSite) -> Seen:
    """Without the copies of heads that a cut layer computes to keep its groups even."""
    return call if site.copies is None else call.only(site.copies["places"])


@dataclass
class _Aside:
    depth: int = 0
    taps: list[Tap] = field(default_factory=list)


_STEPPED_ASIDE = _Aside()


def step_aside() -> None:
    """Take all taps away for a module that leaves its fast path when it is watched; blocks nest."""
    _STEPPED_ASIDE.depth += 1
    while length := torch._C._len_torch_function_stack():
        if not isinstance(torch._C._get_function_stack_at(length - 1), Tap):
            break
        _STEPPED_ASIDE.taps.append(_pop_mode())


def come_back() -> None:
    """Put the taps back when the last of the nested blocks ends."""
    _STEPPED_ASIDE.depth -= 1
    while _STEPPED_ASIDE.depth == 0 and _STEPPED_ASIDE.taps:
        _push_mode(_STEPPED_ASIDE.taps.pop())
