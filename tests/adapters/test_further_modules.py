"""Attention as other people write it: heads outside of contexts, keys before heads, projections without names.

Every style says itself what its weights are (``shown``) and what it gives without its last head (``head_off``);
neither goes through the code that is tested.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import oattn_hub as oh
from oattn_hub.adapters.guess import guess_layout
from oattn_hub.pruning.masks import masked

WIDTH, HEADS, TOKENS, CONTEXTS = 32, 4, 9, 3
SIZE = WIDTH // HEADS
SHOWN: list[torch.Tensor] = []  # (context, head, query, key) of every call
OFF: list[nn.Module] = []  # modules whose last head gives nothing


def shown(weights: torch.Tensor, change: Callable[[torch.Tensor], torch.Tensor] = torch.Tensor.clone) -> torch.Tensor:
    with torch._C.DisableTorchFunction():
        SHOWN.append(change(weights.detach()).clone())
    return weights


def head_off(module: nn.Module, output: torch.Tensor, axis: int = 1) -> torch.Tensor:
    if module not in OFF:
        return output
    output = output.clone()
    output.movedim(axis, 0)[-1] = 0
    return output


def split(x, heads):
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)


def join(y):
    return y.transpose(1, 2).flatten(2)


def heads_outside(weights: torch.Tensor) -> torch.Tensor:
    return weights.unflatten(0, (-1, CONTEXTS)).transpose(0, 1)


class SetTransformer(nn.Module):
    """Slices of the features one after another on the first axis: all contexts of a head, then those of the next."""

    def __init__(self) -> None:
        super().__init__()
        self.dim_V, self.num_heads = WIDTH, HEADS
        self.fc_q, self.fc_k, self.fc_v, self.fc_o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x):
        size = self.dim_V // self.num_heads
        q, k, v = (torch.cat(part(x).split(size, 2), 0) for part in (self.fc_q, self.fc_k, self.fc_v))
        weights = shown(torch.softmax(q.bmm(k.transpose(1, 2)) / math.sqrt(self.dim_V), 2), heads_outside)
        y = weights.bmm(v)
        if self in OFF:
            y = torch.cat([y[: -len(x)], 0 * y[-len(x) :]])
        return self.fc_o(torch.cat(y.split(len(x), 0), 2))


class HeadsBeforeContexts(nn.Module):
    """The same with an axis that is moved, and projections called w_qs, w_ks, w_vs."""

    def __init__(self) -> None:
        super().__init__()
        self.n_head, self.d_k = HEADS, SIZE
        self.w_qs, self.w_ks, self.w_vs, self.fc = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x):
        contexts, tokens, _ = x.shape
        parts = (part(x).view(contexts, tokens, self.n_head, self.d_k) for part in (self.w_qs, self.w_ks, self.w_vs))
        q, k, v = (part.permute(2, 0, 1, 3).contiguous().view(-1, tokens, self.d_k) for part in parts)
        weights = shown(torch.bmm(q, k.transpose(1, 2)).div(self.d_k**0.5).softmax(2), heads_outside)
        y = head_off(self, torch.bmm(weights, v).view(self.n_head, contexts, tokens, self.d_k), 0)
        return self.fc(y.permute(1, 2, 0, 3).contiguous().view(contexts, tokens, -1))


class FusedHeadsBeforeContexts(HeadsBeforeContexts):
    def forward(self, x):
        contexts, tokens, _ = x.shape
        parts = (part(x).view(contexts, tokens, self.n_head, self.d_k) for part in (self.w_qs, self.w_ks, self.w_vs))
        q, k, v = (part.permute(2, 0, 1, 3).contiguous().view(-1, tokens, self.d_k) for part in parts)
        shown((q.detach() @ k.detach().mT * SIZE**-0.5).softmax(-1), heads_outside)
        y = functional.scaled_dot_product_attention(q, k, v).view(self.n_head, contexts, tokens, self.d_k)
        return self.fc(head_off(self, y, 0).permute(1, 2, 0, 3).contiguous().view(contexts, tokens, -1))


class HeadsLast(nn.Module):
    """(context, query, key, head), with the softmax over the keys before the last axis."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = HEADS
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (self.num_heads, -1)) for f in (self.q_proj, self.k_proj, self.v_proj))
        weights = torch.einsum("bqhd,bkhd->bqkh", q, k).mul(SIZE**-0.5).softmax(2)
        shown(weights, lambda known: known.permute(0, 3, 1, 2))
        return self.out_proj(head_off(self, torch.einsum("bqkh,bkhd->bqhd", weights, v), 2).flatten(2))


class Fused(nn.Module):
    """One projection for three."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.qkv, self.proj = HEADS, nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def parts(self, x):
        return self.qkv(x).view(*x.shape[:2], 3, self.num_heads, -1).permute(2, 0, 3, 1, 4)

    def weights(self, q, k):
        return (q @ k.mT * SIZE**-0.5).softmax(-1)

    def forward(self, x):
        q, k, v = self.parts(x)
        return self.proj(join(head_off(self, shown(self.weights(q, k)) @ v)))


class PartsLast(Fused):
    def parts(self, x):
        return self.qkv(x).view(*x.shape[:2], self.num_heads, -1, 3).permute(4, 0, 2, 1, 3)


class HeadsAfterFeatures(Fused):
    def parts(self, x):
        return self.qkv(x).view(*x.shape[:2], 3, -1, self.num_heads).permute(2, 0, 4, 1, 3)


class PartsBeforeHeads(Fused):
    def parts(self, x):
        return self.qkv(x).view(*x.shape[:2], -1, 3, self.num_heads).permute(3, 0, 4, 1, 2)


class SplitByNumbers(Fused):
    """The code names no attribute that counts what is split."""

    def parts(self, x):
        return (split(part, self.num_heads) for part in self.qkv(x).split([WIDTH, WIDTH, WIDTH], -1))


class SplitByOneNumber(Fused):
    def parts(self, x):
        return (split(part, self.num_heads) for part in self.qkv(x).split(WIDTH, dim=2))


class ChosenKeys(Fused):
    """A softmax over the largest scores, put back among all keys."""

    def weights(self, q, k):
        scores = q @ k.mT * SIZE**-0.5
        largest, places = scores.topk(TOKENS - 2, -1)
        return torch.zeros_like(scores).scatter(-1, places, largest.softmax(-1))


class LogarithmOfSum(Fused):
    def weights(self, q, k):
        scores = q @ k.mT
        return torch.exp(scores - torch.logsumexp(scores, -1, keepdim=True))


class NormAfterwards(Fused):
    """Every head's output is normalised for itself, with weights for the features of all."""

    def __init__(self) -> None:
        super().__init__()
        self.gn = nn.GroupNorm(HEADS, WIDTH)
        nn.init.normal_(self.gn.weight)

    def forward(self, x):
        q, k, v = self.parts(x)
        y = join(head_off(self, shown((q @ k.mT * SIZE**-0.5).softmax(-1)) @ v))
        y = self.gn(y.flatten(0, 1)).view_as(y)
        return self.proj(head_off(self, y.unflatten(-1, (HEADS, -1)), 2).flatten(2) if self in OFF else y)


class RowOfHead(nn.Module):
    """A norm of a head's features with a row of weights for every head."""

    def __init__(self) -> None:
        super().__init__()
        self.normalized_shape, self.weight = (SIZE,), nn.Parameter(torch.rand(HEADS, SIZE) + 0.5)

    def forward(self, x):
        return functional.layer_norm(x, self.normalized_shape) * self.weight


RowOfHead.__name__ = "RowLayerNorm"


class NormsWithRows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.num_local_attention_heads, self.q_norm, self.k_norm = HEADS, RowOfHead(), RowOfHead()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x):
        parts = (self.q_proj(x), self.k_proj(x), self.v_proj(x))
        q, k, v = (part.unflatten(-1, (self.num_local_attention_heads, -1)) for part in parts)
        q, k, v = (part.transpose(1, 2) for part in (self.q_norm(q), self.k_norm(k), v))
        return self.o_proj(join(head_off(self, shown((q @ k.mT * SIZE**-0.5).softmax(-1)) @ v)))


class InAList(nn.Module):
    """Four projections without names, as in The Annotated Transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.h, self.d_k = HEADS, SIZE
        self.linears = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x):
        parts = zip(self.linears, (x, x, x), strict=False)
        q, k, v = [linear(one).view(len(x), -1, self.h, self.d_k).transpose(1, 2) for linear, one in parts]
        y = head_off(self, shown((q @ k.mT / self.d_k**0.5).softmax(-1)) @ v)
        return self.linears[-1](y.transpose(1, 2).contiguous().view(len(x), -1, self.h * self.d_k))


class Letters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.A, self.B, self.C, self.D = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.k = HEADS

    def forward(self, x):
        q, k, v = (split(part(x), self.k) for part in (self.A, self.B, self.C))
        return self.D(join(head_off(self, shown((q @ k.mT * SIZE**-0.5).softmax(-1)) @ v)))


class Parameters(nn.Module):
    """(head, width, feature) for every projection."""

    def __init__(self) -> None:
        super().__init__()
        self.W_Q, self.W_K, self.W_V = (nn.Parameter(torch.randn(HEADS, WIDTH, SIZE) * 0.2) for _ in range(3))
        self.W_O, self.n_heads = nn.Parameter(torch.randn(HEADS, SIZE, WIDTH) * 0.2), HEADS

    def forward(self, x):
        q, k, v = (torch.einsum("btm,hmd->bthd", x, part) for part in (self.W_Q, self.W_K, self.W_V))
        weights = shown((torch.einsum("bqhd,bkhd->bhqk", q, k) * SIZE**-0.5).softmax(-1))
        return torch.einsum("bqhd,hdm->bqm", head_off(self, torch.einsum("bkhd,bhqk->bqhd", v, weights), 2), self.W_O)


class MoreKeys(nn.Module):
    """Keys and values that are parameters of all features."""

    def __init__(self) -> None:
        super().__init__()
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.mem_k, self.mem_v = (nn.Parameter(torch.randn(1, 3, WIDTH)) for _ in range(2))
        self.heads = HEADS

    def forward(self, x):
        k = torch.cat([self.mem_k.expand(len(x), -1, -1), self.to_k(x)], 1)
        v = torch.cat([self.mem_v.expand(len(x), -1, -1), self.to_v(x)], 1)
        q, k, v = (split(part, self.heads) for part in (self.to_q(x), k, v))
        return self.to_out(join(head_off(self, shown((q @ k.mT * SIZE**-0.5).softmax(-1)) @ v)))


class Neighbours(nn.Module):
    """Every token looks at itself and two before it; keys are unfolded."""

    def __init__(self) -> None:
        super().__init__()
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.heads = HEADS

    def forward(self, x):
        q, k, v = (split(part(x), self.heads) for part in (self.to_q, self.to_k, self.to_v))
        k, v = (functional.pad(part, (0, 0, 2, 0)).unfold(2, 3, 1) for part in (k, v))
        weights = shown((torch.einsum("bhtd,bhtdw->bhtw", q, k) * SIZE**-0.5).softmax(-1))
        return self.to_out(join(head_off(self, torch.einsum("bhtw,bhtdw->bhtd", weights, v))))


class Skewed(nn.Module):
    """Relative positions by skewing, with a table for every head."""

    def __init__(self) -> None:
        super().__init__()
        self.Wq, self.Wk, self.Wv, self.fc = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.h, self.E = HEADS, nn.Parameter(torch.randn(HEADS, TOKENS, SIZE))

    def forward(self, x):
        q, k, v = (split(part(x), self.h) for part in (self.Wq, self.Wk, self.Wv))
        placed = functional.pad(torch.einsum("bhld,hmd->bhlm", q, self.E), (1, 0))
        placed = placed.reshape(*placed.shape[:2], placed.shape[3], placed.shape[2])[:, :, 1:]
        later = torch.ones(TOKENS, TOKENS, dtype=torch.bool).triu(1)
        weights = shown(((q @ k.mT + placed) / SIZE**0.5).masked_fill(later, -1e9).softmax(-1))
        return self.fc(join(head_off(self, weights @ v)))


class FewerKeys(nn.Module):
    """Keys and values of all tokens are projected to a few (Linformer)."""

    def __init__(self) -> None:
        super().__init__()
        self.to_q, self.to_k, self.to_v, self.to_out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.proj_k, self.proj_v = (nn.Parameter(torch.randn(TOKENS, 5) * 0.3) for _ in range(2))
        self.heads = HEADS

    def forward(self, x):
        k, v = (torch.einsum("bnd,nk->bkd", f(x), p) for f, p in ((self.to_k, self.proj_k), (self.to_v, self.proj_v)))
        q, k, v = (split(part, self.heads) for part in (self.to_q(x), k, v))
        return self.to_out(join(head_off(self, shown((q @ k.mT * SIZE**-0.5).softmax(-1)) @ v)))


class Unified(nn.Module):
    """queries, keys, values, unify; heads after tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.queries, self.keys, self.values, self.unify = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.nheads = HEADS

    def forward(self, x):
        q, k, v = (part(x).reshape(*x.shape[:2], self.nheads, -1) for part in (self.queries, self.keys, self.values))
        weights = shown((torch.einsum("nqhd,nkhd->nhqk", [q, k]) / SIZE**0.5).softmax(dim=3))
        return self.unify(head_off(self, torch.einsum("nhql,nlhd->nqhd", [weights, v]), 2).reshape(*x.shape[:2], -1))


class OneWithItself(nn.MultiheadAttention):
    """torch's module with a forward of other arguments."""

    def __init__(self) -> None:
        super().__init__(WIDTH, HEADS, batch_first=True)

    def known(self, x):
        with torch._C.DisableTorchFunction(), torch.no_grad():
            q, k, _ = functional.linear(x, self.in_proj_weight, self.in_proj_bias).chunk(3, -1)
            SHOWN.append((split(q, HEADS) @ split(k, HEADS).mT * SIZE**-0.5).softmax(-1))

    def forward(self, x):
        if self.num_heads == HEADS:
            self.known(x)
        return super().forward(x, x, x, need_weights=False)[0]


class AnyArguments(OneWithItself):
    def forward(self, *args, **kwargs):
        return super().forward(args[0])


class OwnWithPackedWeights(OneWithItself):
    def forward(self, x):
        parts = functional.linear(x, self.in_proj_weight, self.in_proj_bias).chunk(3, -1)
        q, k, v = (split(part, self.num_heads) for part in parts)
        return self.out_proj(join(head_off(self, shown((q @ k.mT * SIZE**-0.5).softmax(-1)) @ v)))


class Inner(Fused):
    pass


class Compiled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.compile(Inner(), backend="eager")

    def forward(self, x):
        return self.inner(x)


class FeatureMaps(nn.Module):
    """A 1-d convolution gives the output: tokens come last."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.qkv, self.proj_out = HEADS, nn.Conv1d(WIDTH, 3 * WIDTH, 1), nn.Conv1d(WIDTH, WIDTH, 1)

    def forward(self, x):
        x = x.transpose(1, 2)
        q, k, v = (part.unflatten(1, (self.num_heads, -1)) for part in self.qkv(x).chunk(3, 1))
        weights = shown((q.mT @ k * SIZE**-0.5).softmax(-1))
        return self.proj_out(head_off(self, v @ weights.mT).flatten(1, 2)).transpose(1, 2)


class StepByStep(nn.Module):
    """A decoder asks once in every step: weights (context, key), and no axis for queries or heads."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        keys, found, steps = self.asked(x), [], []
        for step in range(x.shape[1]):
            steps.append(torch.softmax(torch.bmm(keys, x[:, step, :, None]).squeeze(2), dim=1))
            found.append(torch.bmm(steps[-1].unsqueeze(1), x).squeeze(1))
        shown(torch.stack(steps, 1)[:, None])
        return torch.stack(found, 1)


class Experts(Fused):
    """Weights of every token over experts are no attention, beside attention that is."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(WIDTH, 3), nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x):
        x = x + super().forward(x)
        return torch.einsum("bte,bted->btd", self.gate(x).softmax(-1), torch.stack([e(x) for e in self.experts], 2))


CUT = [
    *(SetTransformer, HeadsBeforeContexts, FusedHeadsBeforeContexts, HeadsLast, PartsLast, HeadsAfterFeatures),
    *(PartsBeforeHeads, SplitByNumbers, SplitByOneNumber, ChosenKeys, LogarithmOfSum, NormAfterwards, NormsWithRows),
    *(InAList, Letters, Parameters, MoreKeys, Neighbours, Skewed, FewerKeys, Unified, FeatureMaps),
    *(OneWithItself, AnyArguments, OwnWithPackedWeights, Compiled, Experts),
]


class Net(nn.Module):
    def __init__(self, style: type[nn.Module]) -> None:
        super().__init__()
        self.first, self.second, self.mlp = style(), style(), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        x = x + self.first(x)
        return x + self.second(x + self.mlp(x).relu())


def built(style: type[nn.Module]) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return Net(style).eval(), torch.randn(CONTEXTS, TOKENS, WIDTH)


def planes(store: oh.AttentionStore, batch: int) -> list[np.ndarray]:
    groups = (np.moveaxis(np.asarray(store.tensor(batch, "probs", group)), 2, 0) for group in store.groups)
    return [plane for group in groups for plane in group]


def same(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    def among(plane: np.ndarray, some: list[np.ndarray]) -> bool:
        return any(plane.shape == each.shape and np.abs(plane - each).max() < 1e-5 for each in some)

    return len(one) == len(other) and all(among(plane, other) for plane in one) and all(among(p, one) for p in other)


@pytest.mark.parametrize("style", [*CUT, StepByStep])
def test_attention_of_others_is_captured(style: type[nn.Module]) -> None:
    model, x = built(style)
    with torch.no_grad():
        plain = model(x)
        SHOWN.clear()
        with oh.capture(model, ("scores", "probs")) as store:
            watched = model(x)
            expected = [head for call in SHOWN for head in call.mean(0).numpy()]
            model(x)
    assert torch.equal(plain, watched)
    assert same(planes(store, 0), expected)
    assert same(planes(store, 1), expected)  # by watching, then by hooks


@pytest.mark.parametrize("style", CUT)
@pytest.mark.parametrize("head", [0, HEADS - 1])
def test_attention_of_others_is_cut(style: type[nn.Module], head: int) -> None:
    model, x = built(style)
    with torch.no_grad(), oh.capture(model, ("probs",)):
        model(x)
    heads = [(site.layer, head) for site in oh.adapt(model).sites]
    plan = oh.PruningPlan.from_heads(model, heads)
    smaller = plan.apply(model, inputs=[{"x": x}], compensate=False, measure=False).model
    assert sum(p.numel() for p in smaller.parameters()) < sum(p.numel() for p in model.parameters())
    with torch.no_grad():
        plain = model(x)
        with masked(model, heads):
            expected = model(x)
        assert not torch.allclose(plain, expected, atol=1e-3)
        torch.testing.assert_close(smaller(x), expected, atol=1e-5, rtol=0)
        OFF.extend(module for module in model.modules() if isinstance(module, style | Inner))
        try:
            without = model(x)
        finally:
            OFF.clear()
        if head == HEADS - 1 and not torch.equal(without, plain):
            torch.testing.assert_close(expected, without, atol=1e-5, rtol=0)


def test_torchs_classes_are_as_they_were_after_a_capture() -> None:
    forward = nn.MultiheadAttention.forward
    model, x = built(OneWithItself)
    with torch.no_grad(), oh.capture(model):
        assert nn.MultiheadAttention.forward is not forward
        model(x)
    assert nn.MultiheadAttention.forward is forward


class OwnLayer(nn.TransformerEncoderLayer):
    def __init__(self) -> None:
        super().__init__(WIDTH, HEADS, 48, batch_first=True)

    def forward(self, x):
        return super().forward(x)


def test_an_encoder_layer_with_other_arguments_is_captured_as_torchs_own() -> None:
    torch.manual_seed(0)
    own, x = nn.Sequential(OwnLayer(), OwnLayer()).eval(), torch.randn(CONTEXTS, TOKENS, WIDTH)
    torchs = nn.Sequential(*(nn.TransformerEncoderLayer(WIDTH, HEADS, 48, batch_first=True) for _ in range(2))).eval()
    torchs.load_state_dict(own.state_dict())
    with torch.no_grad(), oh.capture(own) as one, oh.capture(torchs) as other:
        assert torch.equal(own(x), torchs(x))
    assert same(planes(one, 0), planes(other, 0))


def test_heads_that_share_their_projections_are_refused_by_name() -> None:
    class EachHead(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.values, self.keys, self.queries = (nn.Linear(SIZE, SIZE, bias=False) for _ in range(3))
            self.heads, self.fc_out = HEADS, nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            x = x.reshape(*x.shape[:2], self.heads, SIZE)
            weights = torch.einsum("nqhd,nkhd->nhqk", self.queries(x), self.keys(x)).softmax(3)
            return self.fc_out(torch.einsum("nhql,nlhd->nqhd", weights, self.values(x)).flatten(2))

    model, x = built(EachHead)
    with torch.no_grad(), oh.capture(model):
        model(x)
    with pytest.raises(oh.OattnError, match="its projections serve every head alike"):
        oh.PruningPlan.from_heads(model, [(0, 1)]).apply(model, inputs=[{"x": x}], measure=False)


def rearrange(x, pattern, **sizes):
    raise NotImplementedError


class Rearranged(Fused):
    """einops' way to say it, which is read and not run."""

    def parts(self, x):
        return rearrange(self.qkv(x), "b t (h k d) -> k b h t d", h=self.num_heads, k=3)


class RearrangedPartsFirst(Fused):
    def parts(self, x):
        return rearrange(self.qkv(x), "b n (qkv h d) -> qkv b h n d", qkv=3, h=self.num_heads)


class RearrangedHeadsLast(Fused):
    def parts(self, x):
        return rearrange(self.qkv(x), "b n (d k h) -> k b h n d", k=3, h=self.num_heads)


@pytest.mark.parametrize(
    ("style", "blocks"),
    [(Rearranged, ("qkv",)), (RearrangedPartsFirst, ("q", "k", "v")), (RearrangedHeadsLast, ("woven",))],
)
def test_the_order_of_a_fused_projection_is_read_from_einops(style: type[nn.Module], blocks: tuple[str, ...]) -> None:
    layout = guess_layout(style(), HEADS)
    assert layout is not None
    assert {axis.path: axis.blocks for axis in layout.projections}["qkv"] == blocks
