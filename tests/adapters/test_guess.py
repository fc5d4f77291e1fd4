"""What names, shapes and source code tell about modules that nobody described."""

from __future__ import annotations

import inspect

import pytest
import torch
from torch import nn

from oattn_hub.adapters.guess import guess_layout, role
from oattn_hub.pruning.portable import _SelectArgument


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("project_q", "q"),
        ("q_gate_proj", "q"),
        ("key_protein", "k"),
        ("value_text", "v"),
        ("k_sconv", "k"),
        ("key_value", "kv"),
        ("query_key_value", "qkv"),
        ("kqv", "qkv"),
        ("projection_layer", "out"),
        ("key_norm", None),
    ],
)
def test_roles_by_name(path: str, expected: str | None) -> None:
    assert role(path) == expected


class Wrapped(nn.Module):
    """A linear module inside another one, as quantisation-aware code has it."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)


class WrappedProjections(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj, self.post = Wrapped(), Wrapped(), Wrapped(), Wrapped()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


def test_a_wrapped_key_projection_is_no_part_that_chooses_keys() -> None:
    layout = guess_layout(WrappedProjections(), n_heads=2)
    assert layout is not None
    assert layout.refusal == ""
    assert [axis.path for axis in layout.projections] == ["q_proj.linear", "k_proj.linear", "v_proj.linear"]


class Config:
    n_head = 4


class ReadsItsConfig(nn.Module):
    """Head counts from the config, rotary frequencies as many as heads, tables of heads by features."""

    def __init__(self) -> None:
        super().__init__()
        self.config, self.embed_dim = Config(), 16
        self.c_attn, self.c_proj = nn.Linear(16, 24), nn.Linear(16, 16)
        self.bias = nn.Parameter(torch.zeros(4, 4))
        self.register_buffer("inv_freq", torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, _k, _v = self.c_attn(x).split((self.embed_dim, 4, 4), -1)
        return q.unflatten(-1, (self.config.n_head, -1))


def test_counts_that_the_source_code_reads() -> None:
    layout = guess_layout(ReadsItsConfig(), n_heads=4)
    assert layout is not None
    assert layout.config_counts == {"n_head": "heads"}
    assert layout.counts == {"embed_dim": "width"}
    tables = [axis for axis in layout.projections if axis.blocks == ("h",)]
    assert [(axis.path, axis.axis) for axis in tables] == [("bias", 0)]


def test_a_position_bias_of_local_attention_is_cut_along() -> None:
    keep = _SelectArgument("position_bias", 0, [[0, 1], [2, 3]], n_heads=3)
    assert keep.chosen(torch.zeros(1, 1, 3, 5, 15)).shape == (1, 1, 2, 5, 15)
    assert keep.chosen(torch.zeros(2, 3, 5, 5)).shape == (2, 2, 5, 5)
    assert keep.chosen(torch.zeros(6, 5, 5)).shape == (4, 5, 5)
    assert keep.chosen(torch.zeros(7, 5, 5)).shape == (7, 5, 5)


def test_source_code_is_read_once_however_many_layers_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    class Attention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.n, self.qkv, self.proj = 2, nn.Linear(8, 24), nn.Linear(8, 8)

        def forward(self, x):
            q, k, v = self.qkv(x).view(*x.shape[:2], 3, self.n, -1).permute(2, 0, 3, 1, 4)
            return self.proj(((q @ k.mT).softmax(-1) @ v).transpose(1, 2).flatten(2))

    read, layers = inspect.getsource, []
    monkeypatch.setattr(inspect, "getsource", lambda of: layers.append(of) or read(of))
    for _ in range(6):
        assert guess_layout(Attention(), 2) is not None
    assert len(layers) == len(set(layers))
