"""More ways to write attention: parts beside the projections that have slices of the heads, and popular own styles.

Every style says itself what its weights are (``shown``), past the code that is tested. Each is cut and then equal to
the masked model, or refused in a sentence of ours with the model left as it was.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import oattn_hub as oh
from oattn_hub.adapters.guess import guess_kv_heads, guess_layout
from oattn_hub.pruning.masks import masked

WIDTH, HEADS, TOKENS = 32, 4, 9
SIZE = WIDTH // HEADS
SHOWN: list[torch.Tensor] = []  # (context, head, query, key) of every call


def shown(weights: torch.Tensor) -> torch.Tensor:
    with torch._C.DisableTorchFunction():
        SHOWN.append(weights.detach().clone())
    return weights


class Own(nn.Module):
    """Four projections, softmax by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.num_heads = HEADS

    def split(self, x):
        return x.view(*x.shape[:2], self.num_heads, -1).transpose(1, 2)

    def attend(self, q, k, v, bias=0.0):
        return shown((q @ k.mT * q.shape[-1] ** -0.5 + bias).softmax(-1)) @ v

    def join(self, y):
        return self.o_proj(y.transpose(1, 2).flatten(2))


class ShortConvolution(Own):
    """Keys and values of neighbours are mixed, feature by feature; the kernel is as wide as there are heads."""

    def __init__(self) -> None:
        super().__init__()
        self.k_conv, self.v_conv = (nn.Conv1d(WIDTH, WIDTH, HEADS, groups=WIDTH, padding=HEADS - 1) for _ in range(2))

    def forward(self, x):
        k, v = self.k_proj(x).mT, self.v_proj(x).mT
        k, v = self.k_conv(k)[..., : x.shape[1]].mT, self.v_conv(v)[..., : x.shape[1]].mT
        return self.join(self.attend(self.split(self.q_proj(x)), self.split(k), self.split(v)))


class ConvolutionOfHeads(Own):
    """The values of each head are also smoothed over the tokens, head by head (Nystromformer)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(HEADS, HEADS, (3, 1), padding=(1, 0), groups=HEADS, bias=False)

    def forward(self, x):
        q, k, v = (self.split(part(x)) for part in (self.q_proj, self.k_proj, self.v_proj))
        return self.join(self.attend(q, k, v) + self.conv(v))


class RelativeTerms(Own):
    """Every token says for every head how much nearness counts: a projection of another width."""

    def __init__(self) -> None:
        super().__init__()
        self.r_proj, self.table = nn.Linear(WIDTH, 6 * HEADS), nn.Parameter(torch.randn(6, TOKENS))

    def forward(self, x):
        q, k, v = (self.split(part(x)) for part in (self.q_proj, self.k_proj, self.v_proj))
        relative = self.r_proj(x)
        relative = relative.view(*x.shape[:2], self.num_heads, -1).transpose(1, 2)
        return self.join(self.attend(q, k, v, relative @ self.table))


class WovenTerms(Own):
    """The same, with the heads on the last axis."""

    def __init__(self) -> None:
        super().__init__()
        self.buckets, self.r_proj = 6, nn.Linear(WIDTH, 6 * HEADS)
        self.table = nn.Parameter(torch.randn(6, TOKENS))

    def forward(self, x):
        q, k, v = (self.split(part(x)) for part in (self.q_proj, self.k_proj, self.v_proj))
        relative = self.r_proj(x)
        relative = relative.view(*x.shape[:2], self.buckets, self.num_heads).permute(0, 3, 1, 2)
        return self.join(self.attend(q, k, v, relative @ self.table))


class TableOfHeadsByHeads(Own):
    """A position table with as many entries as there are heads."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(HEADS, HEADS))
        self.register_buffer("places", torch.randint(0, HEADS, (TOKENS, TOKENS)))

    def forward(self, x):
        q, k, v = (self.split(part(x)) for part in (self.q_proj, self.k_proj, self.v_proj))
        return self.join(self.attend(q, k, v, self.table[:, self.places]))


class FewerQueries(Own):
    """Each second token asks; heads are joined with the number of tokens left open, which would also fit other ones."""

    def __init__(self) -> None:
        super().__init__()
        self.value_width, self.up = WIDTH, nn.Linear(8, TOKENS)

    def forward(self, x):
        eight = torch.cat([x[:, :7], x[:, 8:]], 1)
        q, k, v = (
            self.split(part(tokens)) for part, tokens in ((self.q_proj, eight), (self.k_proj, x), (self.v_proj, x))
        )
        joined = self.attend(q, k, v).transpose(1, 2).reshape(len(x), -1, self.value_width)
        return self.up(self.o_proj(joined).mT).mT


class VectorsBetweenTokens(Own):
    """Queries meet a vector for every two tokens (Shaw et al.), here an argument; as many tokens as heads."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(2 * TOKENS, SIZE)
        self.inner = VectorsGiven()

    def forward(self, x):
        distances = torch.arange(x.shape[1])[:, None] - torch.arange(x.shape[1]) + TOKENS
        return self.inner(x, position_bias=self.embedding(distances))


class VectorsGiven(Own):
    def fold(self, x):
        return self.split(x).flatten(0, 1)

    def forward(self, x, position_bias):
        q, k, v = self.fold(self.q_proj(x)), self.fold(self.k_proj(x)), self.fold(self.v_proj(x))
        near = torch.matmul(q.transpose(0, 1), position_bias.mT).transpose(0, 1)
        weights = (torch.bmm(q, k.mT) + near).softmax(-1)
        shown(weights.unflatten(0, (len(x), -1)))
        return self.join(torch.bmm(weights, v).unflatten(0, (len(x), -1)))


CUT = [
    *(ShortConvolution, ConvolutionOfHeads, RelativeTerms, WovenTerms, TableOfHeadsByHeads, FewerQueries),
    VectorsBetweenTokens,
]


class Net(nn.Module):
    def __init__(self, style: type[nn.Module]) -> None:
        super().__init__()
        self.first, self.second, self.mlp = style(), style(), nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        x = x + self.first(x)
        return x + self.second(x + self.mlp(x).relu())


def built(style: type[nn.Module], contexts: int = 2, tokens: int = TOKENS) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(0)
    return Net(style).eval(), torch.randn(contexts, tokens, WIDTH)


def planes(store: oh.AttentionStore, batch: int) -> list[np.ndarray]:
    groups = (np.moveaxis(np.asarray(store.tensor(batch, "probs", group)), 2, 0) for group in store.groups)
    return [plane for group in groups for plane in group]


def same(one: list[np.ndarray], other: list[np.ndarray]) -> bool:
    def among(plane: np.ndarray, some: list[np.ndarray]) -> bool:
        return any(plane.shape == each.shape and np.abs(plane - each).max() < 1e-5 for each in some)

    return len(one) == len(other) and all(among(plane, other) for plane in one) and all(among(p, one) for p in other)


def check_capture(model: nn.Module, x: torch.Tensor) -> None:
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


def check_cut(model: nn.Module, x: torch.Tensor) -> None:
    with torch.no_grad(), oh.capture(model, ("probs",)):
        model(x)
    for head in (0, 2):
        heads = [(site.layer, head) for site in oh.adapt(model).sites]
        plan = oh.PruningPlan.from_heads(model, heads)
        smaller = plan.apply(model, inputs=[{"x": x}], compensate=False, measure=False).model
        assert sum(p.numel() for p in smaller.parameters()) < sum(p.numel() for p in model.parameters())
        with torch.no_grad(), masked(model, heads):
            expected = model(x)
        with torch.no_grad():
            assert not torch.allclose(model(x), expected, atol=1e-3)
            torch.testing.assert_close(smaller(x), expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("style", CUT)
def test_other_attention_is_captured(style: type[nn.Module]) -> None:
    check_capture(*built(style))


@pytest.mark.parametrize("style", CUT)
def test_other_attention_is_cut(style: type[nn.Module]) -> None:
    check_cut(*built(style))


def test_as_many_tokens_as_heads_and_one_context() -> None:
    check_capture(*built(VectorsBetweenTokens, contexts=1, tokens=HEADS))


def test_a_pooler_without_heads_does_not_keep_others_from_being_cut() -> None:
    class Pooler(nn.Module):
        """Weights that are features of the tokens: there is no head to cut."""

        def __init__(self) -> None:
            super().__init__()
            self.choose, self.feat = nn.Linear(WIDTH, TOKENS), nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            return torch.einsum("bsi,bid->bsd", self.choose(x).mT.softmax(-1), self.feat(x))

    model, x = built(ConvolutionOfHeads)
    model.mlp = Pooler()
    with torch.no_grad(), oh.capture(model):
        model(x)
    several = [site for site in oh.adapt(model).sites if site.n_heads > 1]
    assert len(several) < len(oh.adapt(model).sites)
    heads = [(site.layer, 1) for site in several]
    smaller = oh.PruningPlan.from_heads(model, heads).apply(model, inputs=[{"x": x}], measure=False).model
    with torch.no_grad(), masked(model, heads):
        torch.testing.assert_close(smaller(x), model(x), atol=1e-5, rtol=0)


def test_a_projection_that_also_gives_an_mlp_is_not_taken_for_key_heads() -> None:
    class Parallel(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.in_proj, self.attn_out_proj = nn.Linear(WIDTH, 7 * WIDTH), nn.Linear(WIDTH, WIDTH)

        def forward(self, x):
            return x

    assert guess_kv_heads(Parallel(), guess_layout(Parallel(), HEADS), HEADS) is None
