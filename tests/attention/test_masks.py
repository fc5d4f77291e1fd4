"""Masks told from position terms, whichever way a model puts them on."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from oattn_hub.attention import capture

MIN = torch.finfo(torch.float32).min
HIDDEN = torch.ones(5, 5, dtype=torch.bool).triu(1)
BIAS = torch.randn(2, 5, 5, generator=torch.Generator().manual_seed(3))


def _in_place_fill(scores: Tensor) -> Tensor:
    scores = scores + BIAS
    scores.masked_fill_(HIDDEN, MIN)
    return scores


def _in_place_add(scores: Tensor) -> Tensor:
    scores += BIAS
    scores += HIDDEN * MIN
    return scores


def _one_tensor_for_both(scores: Tensor) -> Tensor:
    return scores + (BIAS + torch.zeros(5, 5).masked_fill(HIDDEN, MIN))


# What models really do between the product and the softmax; all of them mean the same.
WAYS: dict[str, Callable[[Tensor], Tensor]] = {
    "add -inf": lambda scores: scores + BIAS + torch.zeros(5, 5).masked_fill(HIDDEN, -torch.inf),
    "add the smallest number": lambda scores: (scores + BIAS) + HIDDEN * MIN,
    "mask first": lambda scores: (scores + HIDDEN * MIN) + BIAS,
    "subtract a large number": lambda scores: scores + BIAS - 1e30 * HIDDEN.float(),
    "masked_fill": lambda scores: (scores + BIAS).masked_fill(HIDDEN, MIN),
    "where": lambda scores: torch.where(~HIDDEN, scores + BIAS, torch.tensor(MIN)),
    "where, turned round": lambda scores: torch.where(HIDDEN, MIN, scores + BIAS),
    "masked_fill in place": _in_place_fill,
    "add in place": _in_place_add,
    "bias and mask in one tensor": _one_tensor_for_both,
    "cast and reshaped on the way": lambda scores: (scores + BIAS).masked_fill(HIDDEN, MIN).view(2, 5, 5)[None].float(),
}


class Attention(nn.Module):
    num_heads = 2

    def __init__(self, mask: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.qkv = nn.Linear(8, 24)
        self.mask = mask

    def heads(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        return q, k, v

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        return functional.softmax(self.mask(q @ k.transpose(-1, -2)), dim=-1) @ v


class Fused(Attention):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.heads(x)
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=self.mask(torch.zeros(1, 2, 5, 5)), scale=1.0)


@pytest.mark.parametrize("kind", [Attention, Fused])
@pytest.mark.parametrize("way", WAYS)
def test_scores_are_what_there_was_before_the_mask(way: str, kind: type[Attention]) -> None:
    model = nn.Sequential(kind(WAYS[way]))
    x = torch.randn(1, 5, 8, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        q, k, _ = model[0].heads(x)
        expected = ((q @ k.transpose(-1, -2))[0] + BIAS).permute(1, 2, 0)
        with capture(model, ("scores", "logits", "probs")) as store:
            model(x)
    scores, logits, probs = (torch.from_numpy(store.tensor(0, kind).copy()) for kind in ("scores", "logits", "probs"))
    assert torch.allclose(scores, expected, atol=1e-5)
    assert torch.equal(logits.isnan(), HIDDEN[:, :, None].expand(5, 5, 2))
    assert torch.allclose(logits.nan_to_num(-torch.inf).softmax(dim=1), probs, atol=1e-6)


def test_a_mask_that_was_made_elsewhere() -> None:
    """A finished float mask has no history: its large entries are the mask, the others position terms."""
    made_before = BIAS.masked_fill(HIDDEN, MIN)
    model = nn.Sequential(Attention(lambda scores: scores + made_before))
    with torch.no_grad(), capture(model, ("scores", "logits")) as store:
        model(torch.randn(1, 5, 8))
    scores, logits = (torch.from_numpy(store.tensor(0, kind).copy()) for kind in ("scores", "logits"))
    assert torch.equal(logits.isnan(), HIDDEN[:, :, None].expand(5, 5, 2))
    assert torch.equal(scores[~logits.isnan()], logits[~logits.isnan()])
    assert scores.abs().max() < 100
