"""Attention in styles that are in no list: captured as it is, or refused in one sentence, and never another way.

Every style says itself what its weights are (``shown``), and every one whose heads are removed says what it then gives
(``head_off``); neither goes through the code that is tested.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import oattn_hub as oh
from oattn_hub.pruning.masks import masked

WIDTH, HEADS, TOKENS = 32, 4, 9
SIZE = WIDTH // HEADS
SHOWN: list[torch.Tensor] = []  # (context, head, query, key) of every call
OFF: list[nn.Module] = []  # the module whose last head gives nothing


def shown(weights: torch.Tensor) -> torch.Tensor:
    with torch._C.DisableTorchFunction():
        SHOWN.append(weights.detach().clone())
    return weights


def shown_dot_product(q: torch.Tensor, k: torch.Tensor) -> None:
    with torch._C.DisableTorchFunction(), torch.no_grad():
        SHOWN.append((q @ k.mT * q.shape[-1] ** -0.5).softmax(-1))


def head_off(module: nn.Module, output: torch.Tensor, axis: int = 1) -> torch.Tensor:
    if module not in OFF:
        return output
    output = output.clone()
    output.movedim(axis, 0)[-1] = 0
    return output


class Own(nn.Module):
    """Four projections, and a head count that is called like nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.wq, self.wk, self.wv, self.wo = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.n = HEADS

    def split(self, x):
        return [part(x).view(*x.shape[:2], self.n, -1).transpose(1, 2) for part in (self.wq, self.wk, self.wv)]

    def join(self, y):
        return self.wo(head_off(self, y).transpose(1, 2).flatten(2))

    def scores(self, q, k):
        return q @ k.mT * SIZE**-0.5


class Dots(Own):
    def forward(self, x):
        q, k, v = self.split(x)
        weights = shown(torch.einsum("...id,...jd->...ij", q, k).mul(SIZE**-0.5).softmax(-1))
        return self.join(torch.einsum("...ij,...jd->...id", weights, v))


class RawOperations(Own):
    def forward(self, x):
        q, k, v = self.split(x)
        return self.join(shown(torch.ops.aten._softmax.default(self.scores(q, k), -1, False)) @ v)


class FusedFolded(Own):
    """The fused kernel, heads among the contexts."""

    def forward(self, x):
        q, k, v = self.split(x)
        shown_dot_product(q, k)
        q, k, v = (part.flatten(0, 1) for part in (q, k, v))
        return self.join(functional.scaled_dot_product_attention(q, k, v).unflatten(0, (-1, self.n)))


class TokensFirst(Own):
    """(token, context, width), as fairseq has it."""

    def forward(self, x):
        x = x.transpose(0, 1)
        tokens, contexts = x.shape[:2]
        q, k, v = (f(x).view(tokens, contexts * self.n, -1).transpose(0, 1) for f in (self.wq, self.wk, self.wv))
        weights = torch.bmm(q * SIZE**-0.5, k.transpose(1, 2)).softmax(-1)
        shown(weights.view(contexts, self.n, tokens, -1))
        y = head_off(self, torch.bmm(weights, v).view(contexts, self.n, tokens, -1))
        return self.wo(y.permute(2, 0, 1, 3).flatten(2)).transpose(0, 1)


class Groups(nn.Module):
    """Five axes: groups of queries beside the heads of each group."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.o = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.k, self.v = nn.Linear(WIDTH, WIDTH // 2), nn.Linear(WIDTH, WIDTH // 2)
        self.n_heads, self.n_kv_heads = HEADS, HEADS // 2

    def forward(self, x):
        q = self.q(x).view(*x.shape[:2], self.n_kv_heads, self.n_heads // self.n_kv_heads, -1)
        k, v = (part(x).view(*x.shape[:2], self.n_kv_heads, -1) for part in (self.k, self.v))
        weights = torch.einsum("btgrd,bsgd->bgrts", q, k).div(SIZE**0.5).softmax(-1)
        shown(weights.flatten(1, 2))
        return self.o(torch.einsum("bgrts,bsgd->btgrd", weights, v).flatten(2))


class LinearBias(Own):
    """ALiBi written out, with its slopes in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("slopes", torch.tensor([2.0**-i for i in range(1, HEADS + 1)]))

    def forward(self, x):
        q, k, v = self.split(x)
        distance = torch.arange(TOKENS)[None] - torch.arange(TOKENS)[:, None]
        scores = self.scores(q, k) + self.slopes.view(1, -1, 1, 1) * distance
        return self.join(shown(scores.masked_fill(distance > 0, float("-inf")).softmax(-1)) @ v)


class KeysFirst(Own):
    """Scores as (key, query), and a softmax over the last axis but one."""

    def forward(self, x):
        q, k, v = self.split(x)
        weights = self.scores(k, q).softmax(-2)
        shown(weights.mT)
        return self.join(weights.mT @ v)


class Bmm(Own):
    """baddbmm with a causal bias, heads among the contexts."""

    def forward(self, x):
        q, k, v = (part.flatten(0, 1) for part in self.split(x))
        bias = torch.full((TOKENS, TOKENS), -1e9).triu(1)
        weights = torch.baddbmm(bias.expand(len(q), -1, -1), q, k.mT, alpha=SIZE**-0.5).softmax(-1)
        shown(weights.unflatten(0, (-1, self.n)))
        return self.join(torch.bmm(weights, v).unflatten(0, (-1, self.n)))


class BlocksOfQueries(Own):
    """Some queries at a time over all keys, to save memory."""

    def forward(self, x):
        q, k, v = self.split(x)
        weights = [self.scores(part, k).softmax(-1) for part in q.split(4, dim=2)]
        shown(torch.cat(weights, 2))
        return self.join(torch.cat([part @ v for part in weights], 2))


class Windows(Own):
    """Blocks of three tokens that look at themselves; blocks lie between heads and tokens."""

    def forward(self, x):
        q, k, v = (part.unflatten(2, (3, 3)) for part in self.split(x))
        weights = self.scores(q, k).softmax(-1)
        shown(weights.transpose(1, 2).flatten(0, 1))
        return self.join((weights @ v).flatten(2, 3))


class ContextsInALoop(Own):
    def forward(self, x):
        found, weights = [], []
        for one in x:
            q, k, v = (part(one).view(len(one), self.n, -1).transpose(0, 1) for part in (self.wq, self.wk, self.wv))
            weights.append(self.scores(q, k).softmax(-1))
            found.append(self.wo(head_off(self, weights[-1] @ v, 0).transpose(0, 1).flatten(1)))
        shown(torch.stack(weights))
        return torch.stack(found)


class HeadsInALoop(Own):
    """One head after another: every head is a stream of its own."""

    def forward(self, x):
        q, k, v = self.split(x)
        weights = [self.scores(q[:, head], k[:, head]).softmax(-1) for head in range(self.n)]
        shown(torch.stack(weights, 1))
        return self.join(torch.stack([weights[head] @ v[:, head] for head in range(self.n)], 1))


class Cascade(HeadsInALoop):
    """The same in a class that says what it is and how many heads it has, for which reason it is one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.num_heads = HEADS


Cascade.__name__ = Cascade.__qualname__ = "CascadedAttention"


class Memory(nn.Module):
    """Cross attention to a memory, with projections of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(size, WIDTH) for size in (WIDTH, 20, 20, WIDTH))
        self.memory, self.h = nn.Parameter(torch.randn(1, 5, 20)), HEADS

    def forward(self, x):
        memory = self.memory.expand(len(x), -1, -1)
        parts = (self.q(x), self.k(memory), self.v(memory))
        q, k, v = (part.unflatten(-1, (self.h, -1)).transpose(1, 2) for part in parts)
        weights = shown((q @ k.mT * SIZE**-0.5).softmax(-1))
        return self.o(head_off(self, weights @ v).transpose(1, 2).flatten(2))


class SelfThenCross(nn.Module):
    """Two attentions in one forward."""

    def __init__(self) -> None:
        super().__init__()
        self.q1, self.k1, self.v1, self.o1 = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.q2, self.k2, self.v2, self.o2 = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.memory, self.h = nn.Parameter(torch.randn(1, 5, WIDTH)), HEADS

    def attend(self, *parts):
        q, k, v = (part.unflatten(-1, (self.h, -1)).transpose(1, 2) for part in parts)
        return (shown((q @ k.mT * SIZE**-0.5).softmax(-1)) @ v).transpose(1, 2).flatten(2)

    def forward(self, x):
        x = x + self.o1(self.attend(self.q1(x), self.k1(x), self.v1(x)))
        memory = self.memory.expand(len(x), -1, -1)
        return self.o2(self.attend(self.q2(x), self.k2(memory), self.v2(memory)))


class Twice(nn.Module):
    """One module that runs twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Dots()

    def forward(self, x):
        return self.inner(x + self.inner(x))


class Registers(Own):
    """Keys and values of the layer's own before those of the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.more_keys, self.more_values = (nn.Parameter(torch.randn(HEADS, 2, SIZE)) for _ in range(2))

    def forward(self, x):
        q, k, v = self.split(x)
        k = torch.cat([self.more_keys.expand(len(x), -1, -1, -1), k], 2)
        v = torch.cat([self.more_values.expand(len(x), -1, -1, -1), v], 2)
        return self.join(shown(self.scores(q, k).softmax(-1)) @ v)


class GateOfHeads(Own):
    def __init__(self) -> None:
        super().__init__()
        self.g = nn.Linear(WIDTH, HEADS)

    def forward(self, x):
        q, k, v = self.split(x)
        shown_dot_product(q, k)
        y = functional.scaled_dot_product_attention(q, k, v)
        return self.join(y * self.g(x).sigmoid().transpose(1, 2)[..., None])


class Cosine(Own):
    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.randn(HEADS, 1, 1))

    def forward(self, x):
        q, k, v = self.split(x)
        scores = functional.normalize(q, dim=-1) @ functional.normalize(k, dim=-1).mT
        return self.join(shown((scores * self.temperature.exp()).softmax(-1)) @ v)


class Sink(Own):
    """A column that takes weight and gives nothing, before the keys."""

    def __init__(self) -> None:
        super().__init__()
        self.sinks = nn.Parameter(torch.randn(HEADS))

    def columns(self, scores, sinks):
        return torch.cat([sinks, scores], -1).softmax(-1)[..., 1:]

    def forward(self, x):
        q, k, v = self.split(x)
        sinks = self.sinks.view(1, -1, 1, 1).expand(len(x), -1, x.shape[1], 1)
        return self.join(shown(self.columns(self.scores(q, k), sinks)) @ v)


class SinkAtTheEnd(Sink):
    def columns(self, scores, sinks):
        return torch.cat([scores, sinks], -1).softmax(-1)[..., :-1]


class Slots(Own):
    """Tokens compete, then weights are normalised once more: these meet the values."""

    def forward(self, x):
        q, k, v = self.split(x)
        won = self.scores(q, k).softmax(-2) + 1e-8
        return self.join(shown(won / won.sum(-1, keepdim=True)) @ v)


class RememberedBias(nn.Module):
    """Position biases of all heads, remembered from the first forward call on, and projections with a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.proj, self.num_heads = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH), HEADS
        self.biases, self.bias_cache = nn.Parameter(torch.randn(HEADS, TOKENS)), {}

    def forward(self, x):
        places = torch.arange(TOKENS)
        if TOKENS not in self.bias_cache:
            self.bias_cache[TOKENS] = self.biases[:, (places[None] - places[:, None]).abs()]
        q, k, v = self.qkv(x).view(*x.shape[:2], self.num_heads, -1).transpose(1, 2).chunk(3, -1)
        weights = shown((q @ k.mT * SIZE**-0.5 + self.bias_cache[TOKENS]).softmax(-1))
        return self.proj(head_off(self, weights @ v).transpose(1, 2).flatten(2))


class WideValues(nn.Module):
    """Values twice as wide as the model, queries and keys half as wide, all from one projection, each with a norm."""

    class Normed(nn.Module):
        def __init__(self, size: int, wide: int) -> None:
            super().__init__()
            self.linear, self.bn = nn.Linear(size, wide), nn.BatchNorm1d(wide)
            self.bn.running_mean.copy_(torch.randn(wide) * 0.1)

        def forward(self, x):
            return self.bn(self.linear(x).flatten(0, 1)).view(*x.shape[:2], -1)

    def __init__(self) -> None:
        super().__init__()
        self.num_heads, self.key_dim, self.val_dim = HEADS, 4, 16
        self.qkv, self.proj = self.Normed(WIDTH, HEADS * 24), self.Normed(HEADS * 16, WIDTH)

    def forward(self, x):
        qkv = self.qkv(x).view(*x.shape[:2], self.num_heads, -1)
        q, k, v = qkv.split([self.key_dim, self.key_dim, self.val_dim], dim=3)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        weights = shown((q @ k.mT * 0.5).softmax(-1))
        return self.proj(head_off(self, weights @ v).transpose(1, 2).flatten(2))


class Latent(nn.Module):
    """Keys and values of all heads from a few features, as DeepSeek's."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.o_proj = nn.Linear(WIDTH, HEADS * 12), nn.Linear(HEADS * 8, WIDTH)
        self.kv_a, self.kv_b, self.num_heads = nn.Linear(WIDTH, 20), nn.Linear(16, HEADS * 16), HEADS

    def forward(self, x):
        q = self.q_proj(x).view(*x.shape[:2], self.num_heads, 12).transpose(1, 2)
        few, rotary = self.kv_a(x).split([16, 4], -1)
        k, v = self.kv_b(few).view(*x.shape[:2], self.num_heads, 16).transpose(1, 2).split([8, 8], -1)
        k = torch.cat([k, rotary[:, None].expand(-1, self.num_heads, -1, -1)], -1)
        weights = shown((q @ k.mT * 12**-0.5).softmax(-1))
        return self.o_proj(head_off(self, weights @ v).transpose(1, 2).flatten(2))


class ValuesAdded(Own):
    """A head gives its values as well as what it attends to: they go with it."""

    def forward(self, x):
        q, k, v = self.split(x)
        return self.join(shown(self.scores(q, k).softmax(-1)) @ v + v)


def _core(q, k, v):
    return (q @ k.mT * SIZE**-0.5).softmax(-1) @ v


class CompiledFunction(Own):
    def __init__(self) -> None:
        super().__init__()
        self.core = torch.compile(_core, backend="eager")

    def forward(self, x):
        q, k, v = self.split(x)
        shown_dot_product(q, k)
        return self.join(self.core(q, k, v))


class OwnFunction(Own):
    """Inside a function with a gradient of its own."""

    class Core(torch.autograd.Function):
        @staticmethod
        def forward(ctx, q, k, v):
            return _core(q, k, v)

    def forward(self, x):
        q, k, v = self.split(x)
        shown_dot_product(q, k)
        return self.join(self.Core.apply(q, k, v))


def decorated(forward: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    @functools.wraps(forward)
    def inner(*args, **kwargs):
        return forward(*args, **kwargs)

    return inner


class Decorated(Own):
    @decorated
    def forward(self, x):
        q, k, v = self.split(x)
        return self.join(shown(self.scores(q, k).softmax(-1)) @ v)


class PartialForward(Own):
    def __init__(self) -> None:
        super().__init__()
        self.forward = functools.partial(Dots.forward, self)


class FeaturesThenHeads(Own):
    """The first feature of every head, then the second: not how heads are cut, and said so."""

    def forward(self, x):
        q, k, v = (part(x).view(*x.shape[:2], -1, self.n).permute(0, 3, 1, 2) for part in (self.wq, self.wk, self.wv))
        return self.wo((shown(self.scores(q, k).softmax(-1)) @ v).permute(0, 2, 3, 1).flatten(2))


CUT = [
    *(Dots, FusedFolded, TokensFirst, Groups, LinearBias, KeysFirst, Bmm, BlocksOfQueries, Windows),
    *(Memory, Twice, Registers, GateOfHeads, Cosine, Sink, SinkAtTheEnd, Slots, RememberedBias),
    *(WideValues, Latent, ValuesAdded, CompiledFunction, OwnFunction, Decorated, ContextsInALoop),
]
CAPTURED = [*CUT, RawOperations, HeadsInALoop, SelfThenCross, PartialForward, FeaturesThenHeads]


class Net(nn.Module):
    def __init__(self, style: type[nn.Module]) -> None:
        super().__init__()
        self.first, self.second, self.mlp = style(), style(), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        x = x + self.first(x)
        return x + self.second(x + self.mlp(x).relu())


def built(style: type[nn.Module]) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return Net(style).eval(), torch.randn(2, TOKENS, WIDTH)


def planes(store: oh.AttentionStore, batch: int) -> list[np.ndarray]:
    groups = (np.moveaxis(np.asarray(store.tensor(batch, "probs", group)), 2, 0) for group in store.groups)
    return [plane for group in groups for plane in group]


def same(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    def among(plane: np.ndarray, some: list[np.ndarray]) -> bool:
        return any(plane.shape == each.shape and np.abs(plane - each).max() < 1e-5 for each in some)

    return len(one) == len(other) and all(among(plane, other) for plane in one) and all(among(p, one) for p in other)


@pytest.mark.parametrize("style", CAPTURED)
def test_unusual_attention_is_captured(style: type[nn.Module]) -> None:
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
def test_unusual_attention_is_cut(style: type[nn.Module]) -> None:
    model, x = built(style)
    with torch.no_grad(), oh.capture(model, ("probs",)):
        model(x)
    sites = oh.adapt(model).sites
    heads = [(site.layer, HEADS - 1) for site in sites]
    plan = oh.PruningPlan.from_heads(model, heads)
    smaller = plan.apply(model, inputs=[{"x": x}], compensate=False, measure=False).model
    assert sum(p.numel() for p in smaller.parameters()) < sum(p.numel() for p in model.parameters())
    with torch.no_grad():
        plain = model(x)
        with masked(model, heads):
            expected = model(x)
        assert not torch.allclose(plain, expected, atol=1e-3)
        torch.testing.assert_close(smaller(x), expected, atol=1e-5, rtol=0)
        OFF.append(model.second)
        try:
            without = model(x)
        finally:
            OFF.clear()
        if not torch.equal(without, plain):
            with masked(model, [(sites[-1].layer, HEADS - 1)]):
                torch.testing.assert_close(model(x), without, atol=1e-5, rtol=0)


@pytest.mark.parametrize("contexts", [2, 4])
def test_a_loop_over_heads_is_one_layer_whatever_the_number_of_contexts(contexts: int) -> None:
    model, _ = built(Cascade)
    SHOWN.clear()
    with torch.no_grad(), oh.capture(model, ("probs",)) as store:
        model(torch.randn(contexts, TOKENS, WIDTH))
    assert store.shape(0) == (TOKENS, TOKENS, 2 * HEADS)
    assert same(planes(store, 0), [head for call in SHOWN for head in call.mean(0).numpy()])


def test_heads_whose_features_lie_apart_are_not_cut() -> None:
    model, x = built(FeaturesThenHeads)
    with torch.no_grad(), oh.capture(model, ("probs",)):
        model(x)
    with pytest.raises(oh.OattnError, match="not what removing their attention is"):
        oh.PruningPlan.from_heads(model, [(0, 1)]).apply(model, inputs=[{"x": x}], measure=False)


def test_heads_whose_features_lie_apart_are_not_measured() -> None:
    model, x = built(FeaturesThenHeads)
    with torch.no_grad(), oh.capture(model, ("probs",)):
        model(x)
    with pytest.raises(oh.OattnError, match="not what removing their attention is"):
        oh.evaluate(model=model, scores=["random"], data=[{"x": x}] * 4, calibration=[{"x": x + 1}] * 4)


class RunningSoftmax(Own):
    """Blocks of keys with running sums: the weights are never there."""

    def forward(self, x):
        q, k, v = self.split(x)
        top = torch.full((*q.shape[:-1], 1), -math.inf)
        total, mixed = torch.zeros_like(top), torch.zeros_like(q)
        for keys, values in zip(k.split(4, 2), v.split(4, 2), strict=True):
            scores = self.scores(q, keys)
            now = torch.maximum(top, scores.amax(-1, keepdim=True))
            powers, before = (scores - now).exp(), (top - now).exp()
            total, mixed, top = total * before + powers.sum(-1, keepdim=True), mixed * before + powers @ values, now
        return self.join(mixed / total)


class Sigmoid(Own):
    def forward(self, x):
        q, k, v = self.split(x)
        return self.join((self.scores(q, k) - math.log(TOKENS)).sigmoid() @ v)


class Squares(Own):
    def forward(self, x):
        q, k, v = self.split(x)
        return self.join(self.scores(q, k).relu().square() / TOKENS @ v)


class OneMore(Own):
    """A softmax with one more in its sum."""

    def forward(self, x):
        q, k, v = self.split(x)
        powers = self.scores(q, k).exp()
        return self.join(powers / (1 + powers.sum(-1, keepdim=True)) @ v)


class LinearKernel(Own):
    def forward(self, x):
        q, k, v = self.split(x)
        q, k = functional.elu(q) + 1, functional.elu(k) + 1
        return self.join(q @ (k.mT @ v) / (q @ k.sum(2, keepdim=True).mT))


class TwoSoftmaxes(Own):
    """Linear attention again: over the features of queries, and over the tokens of keys."""

    def forward(self, x):
        q, k, v = self.split(x)
        return self.join(q.softmax(-1) @ (k.softmax(-2).mT @ v))


class BetweenFeatures(Own):
    def forward(self, x):
        q, k, v = (part.mT for part in self.split(x))
        return self.join(((q @ k.mT).softmax(-1) @ v).mT)


class Flex(Own):
    def forward(self, x):
        from torch.nn.attention.flex_attention import flex_attention

        return self.join(flex_attention(*self.split(x)))


class Kernel(Own):
    """The kernel behind the fused function."""

    def forward(self, x):
        return self.join(torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*self.split(x))[0])


class Mapped(Own):
    """One head of one context, mapped over both."""

    def forward(self, x):
        def one(q, k, v):
            return (q @ k.mT).softmax(-1) @ v

        return self.join(torch.vmap(torch.vmap(one))(*self.split(x)))


class MappedFused(Own):
    def forward(self, x):
        return self.join(torch.vmap(functional.scaled_dot_product_attention)(*self.split(x)))


def scripted(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return torch.matmul(torch.softmax(torch.matmul(q, k.transpose(-2, -1)), -1), v)


with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # TorchScript is deprecated
    in_script = torch.jit.script(scripted)


def through_script(q, k, v):
    return in_script(q, k, v)


class Scripted(Own):
    def forward(self, x):
        return self.join(through_script(*self.split(x)))


class ScriptedAbove(Scripted):
    """The function is named by the class above."""


HIDDEN = [
    (Kernel, "calls _scaled_dot_product_flash_attention_for_cpu, which never shows"),
    *((style, "computes attention under vmap, which never shows") for style in (Mapped, MappedFused)),
    (Scripted, "Scripted calls scripted, which is TorchScript"),
    (ScriptedAbove, "ScriptedAbove calls scripted, which is TorchScript"),
]


@pytest.mark.filterwarnings("ignore:There is a performance drop")  # of vmap over the fused function
@pytest.mark.parametrize(("style", "sentence"), HIDDEN)
def test_attention_that_cannot_be_seen_beside_other_attention_is_refused(style: type[nn.Module], sentence: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(Dots(), style()).eval()
    with torch.no_grad(), pytest.raises(oh.OattnError, match=sentence), oh.capture(model):
        model(torch.randn(2, TOKENS, WIDTH))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(
    ("style", "sentence"),
    [
        *((style, "in first products .* meet values without a softmax") for style in (RunningSoftmax, Sigmoid)),
        *((style, "in first products .* meet values without a softmax") for style in (Squares, OneMore, LinearKernel)),
        (TwoSoftmaxes, "linear attention"),
        (BetweenFeatures, "in first attention between channels"),
        (Flex, "flex_attention, which never shows its weights"),
    ],
)
def test_what_has_no_weights_between_tokens_is_named(style: type[nn.Module], sentence: str) -> None:
    model, x = built(style)
    with torch.no_grad(), pytest.raises(oh.OattnError, match=sentence), oh.capture(model):
        model(x)


def test_what_was_seen_beside_attention_is_named_in_the_store() -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = Dots(), Squares()

        def forward(self, x):
            return self.second(self.first(x))

    torch.manual_seed(0)
    model = Both().eval()
    with torch.no_grad(), oh.capture(model) as store:
        model(torch.randn(2, TOKENS, WIDTH))
    assert "without a softmax" in store.info.skipped["second"]


def test_lambda_layers_beside_attention_are_left_out_by_name() -> None:
    from timm.layers.lambda_layer import LambdaLayer

    torch.manual_seed(0)
    layer = LambdaLayer(WIDTH, feat_size=(3, 3), num_heads=HEADS, r=3)

    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = layer, Dots()

        def forward(self, x):
            image = x.transpose(1, 2).unflatten(2, (3, 3))
            return self.second(self.first(image).flatten(2).transpose(1, 2))

    model = Both().eval()
    with torch.no_grad(), oh.capture(model) as store:
        model(torch.randn(2, TOKENS, WIDTH))
    assert "lambda layer" in store.info.skipped["first"]
    assert len(store.heads()) == HEADS
