"""Attention that people write themselves, in fifteen styles: captured as it is, and most of it cut."""

from __future__ import annotations

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import oattn_hub as oh
from oattn_hub.pruning.masks import masked
from oattn_hub.pruning.surgery import cut

WIDTH, HEADS, TOKENS = 32, 4, 9


class Att(nn.Module):
    """Named like nothing we know, calling the fused kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.h = HEADS

    def forward(self, x):
        q, k, v = (f(x).view(*x.shape[:2], self.h, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        return self.o(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class EinsumMixer(nn.Module):
    """Einsum and a softmax, heads in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.to_q, self.to_k, self.to_v = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.to_out = nn.Linear(WIDTH, WIDTH)
        self.heads = HEADS

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)) for f in (self.to_q, self.to_k, self.to_v))
        weights = torch.einsum("bqhd,bkhd->bhqk", q, k).div(math.sqrt(q.shape[-1])).softmax(dim=-1)
        return self.to_out(torch.einsum("bhqk,bkhd->bqhd", weights, v).flatten(2))


class VitPytorch(nn.Module):
    """lucidrains' vit-pytorch: a norm inside, a module for the softmax, an output in a Sequential."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.scale = HEADS, (WIDTH // HEADS) ** -0.5
        self.norm = nn.LayerNorm(WIDTH)
        self.attend, self.dropout = nn.Softmax(dim=-1), nn.Dropout(0.1)
        self.to_qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.to_out = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.1))

    def forward(self, x):
        q, k, v = (
            t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.to_qkv(self.norm(x)).chunk(3, dim=-1)
        )
        weights = self.dropout(self.attend(torch.matmul(q, k.transpose(-1, -2)) * self.scale))
        return self.to_out(torch.matmul(weights, v).transpose(1, 2).flatten(2))


class NanoGPT(nn.Module):
    """Karpathy's CausalSelfAttention, by hand, with a mask buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.c_attn, self.c_proj = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.attn_dropout, self.n_head, self.n_embd = nn.Dropout(0.1), HEADS, WIDTH
        self.register_buffer("bias", torch.tril(torch.ones(16, 16)).view(1, 1, 16, 16))

    def forward(self, x):
        B, T, C = x.size()
        q, k, v = self.c_attn(x).split(self.n_embd, dim=2)
        q, k, v = (t.view(B, T, self.n_head, C // self.n_head).transpose(1, 2) for t in (q, k, v))
        att = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        att = att.masked_fill(self.bias[:, :, :T, :T] == 0, float("-inf"))
        y = self.attn_dropout(functional.softmax(att, dim=-1)) @ v
        return self.c_proj(y.transpose(1, 2).contiguous().view(B, T, C))


class Attend(nn.Module):
    """x-transformers' inner module: no weights of its own."""

    def forward(self, q, k, v):
        sim = torch.einsum("bhid,bhjd->bhij", q, k) * q.shape[-1] ** -0.5
        return torch.einsum("bhij,bhjd->bhid", functional.softmax(sim, dim=-1, dtype=torch.float32), v)


class XTransformers(nn.Module):
    """Projections outside, attention in a helper module."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.attend = HEADS, Attend()
        self.to_q, self.to_k, self.to_v = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.to_out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.to_q, self.to_k, self.to_v))
        return self.to_out(self.attend(q, k, v).transpose(1, 2).flatten(2))


class LlamaByHand(nn.Module):
    """Grouped queries as in Meta's llama: wq, wk, wv, wo, repeated keys."""

    def __init__(self) -> None:
        super().__init__()
        self.n_heads, self.n_kv_heads, self.n_rep, self.head_dim = HEADS, 2, 2, 8
        self.wq, self.wo = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.wk, self.wv = nn.Linear(WIDTH, 16, bias=False), nn.Linear(WIDTH, 16, bias=False)

    def forward(self, x):
        b, t, _ = x.shape
        q = self.wq(x).view(b, t, self.n_heads, self.head_dim).transpose(1, 2)
        k, v = (f(x).view(b, t, self.n_kv_heads, self.head_dim).transpose(1, 2) for f in (self.wk, self.wv))
        k, v = k.repeat_interleave(self.n_rep, 1), v.repeat_interleave(self.n_rep, 1)
        weights = functional.softmax(q @ k.transpose(2, 3) / math.sqrt(self.head_dim), dim=-1)
        return self.wo((weights @ v).transpose(1, 2).contiguous().view(b, t, -1))


class FoldedHeads(nn.Module):
    """Heads folded into the batch, bmm, as in fairseq and the annotated transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.head_dim = HEADS, WIDTH // HEADS
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def fold(self, x):
        return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2).flatten(0, 1)

    def forward(self, x):
        q, k, v = self.fold(self.q_proj(x)), self.fold(self.k_proj(x)), self.fold(self.v_proj(x))
        weights = functional.softmax(torch.bmm(q, k.transpose(1, 2)) * self.head_dim**-0.5, dim=-1)
        mixed = torch.bmm(weights, v).unflatten(0, (-1, self.num_heads)).transpose(1, 2).flatten(2)
        return self.out_proj(mixed)


class ConvAttention(nn.Module):
    """Feature maps: 1x1 convolutions, tokens are pixels."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = HEADS
        self.qkv, self.proj = nn.Conv2d(WIDTH, 3 * WIDTH, 1), nn.Conv2d(WIDTH, WIDTH, 1)

    def forward(self, x):
        image = x.transpose(1, 2).unflatten(2, (3, 3))
        q, k, v = self.qkv(image).flatten(2).reshape(len(x), 3, self.num_heads, -1, TOKENS).unbind(1)
        weights = (q.transpose(-1, -2) @ k * q.shape[-2] ** -0.5).softmax(-1)
        return self.proj((v @ weights.transpose(-1, -2)).reshape(len(x), -1, 3, 3)).flatten(2).transpose(1, 2)


class TorchInside(nn.Module):
    """A wrapper around torch's own module."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

    def forward(self, x):
        return self.inner(x, x, x, need_weights=False)[0]


class Megatron(nn.Module):
    """Query, key and value of one head side by side."""

    def __init__(self) -> None:
        super().__init__()
        self.num_attention_heads, self.head_size = HEADS, WIDTH // HEADS
        self.query_key_value, self.dense = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        mixed = self.query_key_value(x).view(*x.shape[:2], self.num_attention_heads, 3 * self.head_size)
        q, k, v = mixed.transpose(1, 2).chunk(3, dim=-1)
        return self.dense(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class TokensThenHeads(nn.Module):
    """Weights that lie as (context, query, head, key), and a head count that is called like nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x):
        q, k, v = (f(x).unflatten(-1, (-1, WIDTH // HEADS)) for f in (self.q, self.k, self.v))
        weights = (torch.einsum("bihd,bjhd->bihj", q, k) / math.sqrt(q.shape[-1])).softmax(-1)
        return self.o(torch.einsum("bihj,bjhd->bihd", weights, v).flatten(2))


class Baddbmm(nn.Module):
    """Heads among the contexts, scaled in the product, as diffusion models had it."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = HEADS
        self.to_q, self.to_k, self.to_v = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(3))
        self.to_out = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Dropout(0.0))

    def forward(self, x):
        parts = (f(x).unflatten(-1, (self.heads, -1)).transpose(1, 2).flatten(0, 1) for f in self.projections())
        q, k, v = parts
        empty = torch.empty(q.shape[0], q.shape[1], k.shape[1])
        weights = torch.baddbmm(empty, q, k.mT, beta=0, alpha=q.shape[-1] ** -0.5).softmax(-1)
        return self.to_out(torch.bmm(weights, v).unflatten(0, (-1, self.heads)).transpose(1, 2).flatten(2))

    def projections(self):
        return self.to_q, self.to_k, self.to_v


class RepeatedKeys(nn.Module):
    """Grouped queries by repeat_interleave, softmax in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.n_heads, self.n_kv_heads = HEADS, HEADS // 2
        self.wq, self.wo = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.wk, self.wv = nn.Linear(WIDTH, WIDTH // 2, bias=False), nn.Linear(WIDTH, WIDTH // 2, bias=False)

    def forward(self, x):
        q = self.wq(x).unflatten(-1, (self.n_heads, -1)).transpose(1, 2)
        k, v = (f(x).unflatten(-1, (self.n_kv_heads, -1)).transpose(1, 2) for f in (self.wk, self.wv))
        k, v = (each.repeat_interleave(self.n_heads // self.n_kv_heads, 1) for each in (k, v))
        weights = functional.softmax((q @ k.mT * q.shape[-1] ** -0.5).float(), dim=-1).type_as(q)
        return self.wo((weights @ v).transpose(1, 2).flatten(2))


class OtherOrder(nn.Module):
    """One projection that gives values, keys and queries in this order, and a position bias for every head."""

    def __init__(self) -> None:
        super().__init__()
        self.nh, self.vkq, self.proj = HEADS, nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.bias = nn.Parameter(torch.randn(HEADS, TOKENS, TOKENS))

    def forward(self, x):
        v, k, q = (part.unflatten(-1, (self.nh, -1)).transpose(1, 2) for part in self.vkq(x).chunk(3, -1))
        attended = functional.scaled_dot_product_attention(q, k, v, attn_mask=self.bias[None])
        return self.proj(attended.transpose(1, 2).flatten(2))


class OtherWidth(nn.Module):
    """Cross attention to a memory of another width, as many entries as there are tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.memory = HEADS, nn.Parameter(torch.randn(1, TOKENS, 20))
        self.to_q, self.to_out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.to_k, self.to_v = nn.Linear(20, WIDTH), nn.Linear(20, WIDTH)

    def forward(self, x):
        memory = self.memory.expand(len(x), -1, -1)
        projected = (self.to_q(x), self.to_k(memory), self.to_v(memory))
        q, k, v = (each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in projected)
        return self.to_out(functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class WrittenOut(Att):
    """A softmax written out, the largest score taken off first."""

    def weights(self, scores):
        powers = (scores - scores.amax(-1, keepdim=True)).exp()
        return powers / powers.sum(-1, keepdim=True)

    def forward(self, x):
        q, k, v = (f(x).view(*x.shape[:2], self.h, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        return self.o((self.weights(q @ k.mT / math.sqrt(q.shape[-1])) @ v).transpose(1, 2).flatten(2))


class Logarithms(WrittenOut):
    """Weights as powers of a logarithm."""

    def weights(self, scores):
        return functional.log_softmax(scores, dim=-1).exp()


class EntryByEntry(Att):
    """Products as sums over one more axis, no matmul anywhere."""

    def forward(self, x):
        q, k, v = (f(x).view(*x.shape[:2], self.h, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        weights = (q.unsqueeze(3) * k.unsqueeze(2)).sum(-1).softmax(-1)
        return self.o((weights.unsqueeze(-1) * v.unsqueeze(2)).sum(3).transpose(1, 2).flatten(2))


class OneKeyHead(nn.Module):
    """Multi-query attention: keys and values of one head, fused, without a head axis."""

    def __init__(self) -> None:
        super().__init__()
        self.heads, self.to_q, self.to_out = HEADS, nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.to_kv = nn.Linear(WIDTH, 2 * WIDTH // HEADS)

    def forward(self, x):
        q, (k, v) = self.to_q(x).unflatten(-1, (self.heads, -1)).transpose(1, 2), self.to_kv(x).chunk(2, -1)
        weights = torch.einsum("bhid,bjd->bhij", q, k).softmax(-1)
        return self.to_out(torch.einsum("bhij,bjd->bhid", weights, v).transpose(1, 2).flatten(2))


class TalkingHeads(WrittenOut):
    """Heads whose weights are mixed by a learned matrix: captured as the softmax gives them, and never cut."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Parameter(torch.eye(HEADS) + 0.3 * torch.randn(HEADS, HEADS))

    def weights(self, scores):
        return torch.einsum("bhij,hg->bgij", scores.softmax(-1), self.mix)


class MeanOfTwo(WrittenOut):
    """Weights that are a mean of two softmaxes, as in ConViT: what meets the values is captured."""

    def weights(self, scores):
        return 0.25 * scores.softmax(-1) + 0.75 * (scores * scores).softmax(-1)


class FunctionOfTorch(Att):
    """torch's function without its module, as CLIP's pooling calls it."""

    def __init__(self) -> None:
        super().__init__()
        self.in_weight, self.in_bias = nn.Parameter(torch.randn(3 * WIDTH, WIDTH)), nn.Parameter(torch.zeros(3 * WIDTH))

    def forward(self, x):
        x, out = x.transpose(0, 1), self.o
        given = (x, x, x, WIDTH, HEADS, self.in_weight, self.in_bias, None, None, False, 0.0, out.weight, out.bias)
        return functional.multi_head_attention_forward(*given, need_weights=False)[0].transpose(0, 1)


STYLES = [
    *(WrittenOut, Logarithms, EntryByEntry, OneKeyHead),
    *(Att, EinsumMixer, VitPytorch, NanoGPT, XTransformers, LlamaByHand),
    *(FoldedHeads, ConvAttention, TorchInside, Megatron),
    *(TokensThenHeads, Baddbmm, RepeatedKeys, OtherOrder, OtherWidth),
]


class Net(nn.Module):
    """Two blocks and a head, as anyone would write them."""

    def __init__(self, style: type[nn.Module]) -> None:
        super().__init__()
        self.first, self.second = style(), style()
        self.mlp = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        x = x + self.first(x)
        x = x + self.mlp(x).relu()
        return x + self.second(x)


def built(style: type[nn.Module]) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return Net(style).eval(), torch.randn(2, TOKENS, WIDTH)


def ablated(model: nn.Module, x: torch.Tensor, layer: int, head: int) -> torch.Tensor:
    """The output when one head's weights are zero in the attention itself."""

    class Ablation(torch.overrides.TorchFunctionMode):
        calls = 0

        def __torch_function__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            ends = ("exp",) if isinstance(model.first, Logarithms) else ("__truediv__", "div")
            ends = ends if isinstance(model.first, WrittenOut) else ("softmax", "scaled_dot_product_attention")
            if func.__name__ in ends and result.ndim >= 3 and result.shape[-1] == TOKENS:
                if isinstance(model.first, WrittenOut) and float((result.sum(-1) - 1).abs().max()) > 1e-3:
                    return result  # the scores divided by a root
                if self.calls == layer:
                    result = result.clone()
                    planes = result if result.ndim == 4 else result.unflatten(0, (-1, HEADS))
                    planes.movedim(2 if planes.shape[1] == TOKENS else 1, 1)[:, head] = 0
                self.calls += 1
            return result

    with torch.no_grad(), Ablation():
        return model(x)


@pytest.mark.parametrize("style", [*STYLES, TalkingHeads, MeanOfTwo, FunctionOfTorch])
def test_attention_of_ones_own_is_captured(style: type[nn.Module]) -> None:
    model, x = built(style)
    with torch.no_grad():
        plain = model(x)
        with oh.capture(model, ("scores", "probs")) as store:
            watched = model(x)
            model(x)
    assert torch.equal(plain, watched)
    assert store.shape(0) == (TOKENS, TOKENS, 2 * HEADS)
    assert [head.layer for head in store.heads()] == [0] * HEADS + [1] * HEADS
    probs = np.asarray(store.tensor(0, "probs"))
    assert np.allclose(probs.sum(axis=1), 1, atol=1e-5)
    assert np.array_equal(probs, store.tensor(1, "probs"))  # found by watching, then by hooks: the same


@pytest.mark.parametrize("style", STYLES)
def test_attention_of_ones_own_is_cut(style: type[nn.Module]) -> None:
    model, x = built(style)
    with torch.no_grad(), oh.capture(model):
        model(x)
    heads = [(0, 2), (1, 0), (1, 3)]
    smaller = copy.deepcopy(model)
    before = sum(parameter.numel() for parameter in smaller.parameters())
    cut(smaller, heads)
    assert sum(parameter.numel() for parameter in smaller.parameters()) < before
    with torch.no_grad():
        plain = model(x)
        with masked(model, heads):
            expected = model(x)
        torch.testing.assert_close(smaller(x), expected, atol=1e-5, rtol=0)
        assert not torch.allclose(plain, expected, atol=1e-3)
        if style is not TorchInside:  # on its fast path nobody can reach into it
            with masked(model, [(1, 3)]):
                torch.testing.assert_close(model(x), ablated(model, x, 1, 3), atol=1e-5, rtol=0)


def test_weights_that_are_a_mean_are_those_that_meet_the_values() -> None:
    model, x = built(MeanOfTwo)
    first = model.first
    with torch.no_grad(), oh.capture(model, "probs") as store:
        model(x)
        q, k = (f(x).view(*x.shape[:2], HEADS, -1).transpose(1, 2) for f in (first.q, first.k))
        expected = first.weights(q @ k.mT / math.sqrt(q.shape[-1])).mean(0)
    found = np.moveaxis(np.asarray(store.tensor(0, "probs")), 2, 0)[:HEADS]
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-6)


def test_heads_that_talk_are_not_cut() -> None:
    model, x = built(TalkingHeads)
    with torch.no_grad(), oh.capture(model):
        model(x)
    with pytest.raises(oh.OattnError, match="cannot be cut: mix mixes its heads"):
        oh.PruningPlan.from_heads(model, [(0, 1)]).apply(model, inputs=[{"x": x}], measure=False)


@pytest.mark.filterwarnings("ignore:.torch.jit:FutureWarning")
@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
def test_attention_that_nobody_can_see_is_named() -> None:
    class Core(nn.Module):
        def forward(self, q, k, v):
            return torch.matmul(torch.softmax(torch.matmul(q, k.transpose(-1, -2)), -1), v)

    class Scripted(Att):
        def __init__(self) -> None:
            super().__init__()
            self.core = torch.jit.trace(Core(), (torch.randn(1, 4, 9, 8),) * 3)

        def forward(self, x):
            q, k, v = (f(x).view(*x.shape[:2], self.h, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
            return self.o(self.core(q, k, v).transpose(1, 2).flatten(2))

    model, x = built(Scripted)
    with pytest.raises(oh.OattnError, match=r"first\.core is TorchScript"), oh.capture(model):
        model(x)
