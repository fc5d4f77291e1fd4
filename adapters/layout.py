"""Where the heads of an attention module lie in its parameters: plain data, one ``HeadLayout`` per family.

Removing a head means dropping its slice of every tensor that has a head axis. Families differ only in which tensors
those are and in how heads are laid along the axis, and both can be written down:

- split q/k/v (BERT, Llama): four modules, heads one after another;
- fused blocks (GPT-2, timm): one module whose output is all q heads, then all k heads, then all v heads;
- interleaved (GPT-NeoX, BLOOM): one module whose output is q, k, v of head 0, then of head 1, ...;
- per-head tables (Swin's position bias), raw parameters (``nn.MultiheadAttention``, XLNet).

>>> HeadAxis("c_attn", "out", ("q", "k", "v")).ranges(n_heads=4, n_kv_heads=2, size=8, kept=[1, 3], kept_kv=[1])
[(1, 2), (3, 4), (5, 6), (7, 8)]
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from oattn_hub.errors import SurgeryError

# q: one slice per query head; k, v: one slice per key/value head; qkv: the three of one head side by side; h: a head's
# entry in a table of its own; woven: the first feature of every head, then the second of every head, ...
Block = Literal["q", "k", "v", "qkv", "h", "woven"]
# What an attribute that ``forward`` reads counts: query heads, key/value heads, queries per key/value head, features of
# all query heads, features of all key/value heads
Count = Literal["heads", "kv_heads", "group", "width", "kv_width"]
# Things a cut module must do that no smaller tensor can express; each is a function in pruning/portable.py
Behaviour = Literal["shared_position_bias", "fixed_width", "multihead"]


@dataclass(frozen=True)
class HeadAxis:
    """One tensor axis with heads along it.

    Args:
        path: module or parameter, relative to the attention module.
        axis: ``"out"`` or ``"in"`` of a linear module (its bias follows), or the axis number of a parameter.
        blocks: what lies along the axis, in order.
    """

    path: str
    axis: int | Literal["out", "in"] = "out"
    blocks: tuple[Block, ...] = ("q",)

    def ranges(
        self, *, n_heads: int, n_kv_heads: int, size: int, kept: Sequence[int], kept_kv: Sequence[int]
    ) -> list[tuple[int, int]]:
        """Half-open index ranges of the kept heads along this axis of length ``size``.

        ``kept_kv`` may name a key/value head several times; its slice is then repeated.
        """
        slots = sum(n_kv_heads if block in ("k", "v") else n_heads for block in self.blocks)
        if size % slots:
            raise SurgeryError(
                f"{self.path} has {size} entries along its head axis, which {slots} slices do not divide. "
                "The adapter's layout does not describe this model; use plan.masked(model) instead of cutting."
            )
        chunk, start, found = size // slots, 0, []
        for block in self.blocks:
            heads, count = (kept_kv, n_kv_heads) if block in ("k", "v") else (kept, n_heads)
            if block == "woven":
                places = [start + feature * count + head for feature in range(chunk) for head in heads]
                found += [(place, place + 1) for place in places]
            else:
                found += [(start + head * chunk, start + (head + 1) * chunk) for head in heads]
            start += count * chunk
        return found


@dataclass(frozen=True)
class HeadLayout:
    """How the heads of one kind of attention module can be masked and cut.

    Args:
        projections: every tensor with a head axis except the output's; those a model does not have are skipped.
        output: the output projection, whose input features are the heads' outputs.
        counts: attributes of the module that ``forward`` reads, and what each counts; absent ones are skipped.
        config_counts: the same for attributes that ``forward`` reads from ``module.config``.
        behaviours: what a cut module must do beyond having smaller tensors.
        head_arguments: forward arguments that come with a plane for every head even after a cut (position biases).
        joint_norms: paths of normalisations; where one runs over all heads together, heads cannot be cut.
        only_if: attributes that must have these values for the layout to be true; absent ones do not matter.
        refusal: why heads of this family cannot be cut at all; empty if they can.
    """

    output: HeadAxis
    projections: tuple[HeadAxis, ...] = ()
    counts: Mapping[str, Count] = field(default_factory=dict)
    config_counts: Mapping[str, Count] = field(default_factory=dict)
    behaviours: tuple[Behaviour, ...] = ()
    head_arguments: tuple[str, ...] = ()
    joint_norms: tuple[str, ...] = ()
    only_if: Mapping[str, object] = field(default_factory=dict)
    refusal: str = ""


def split(q: str, k: str, v: str, output: str, *, extra: Sequence[HeadAxis] = (), **options: Any) -> HeadLayout:
    """Separate query, key and value modules, heads one after another."""
    projections = (HeadAxis(q, "out", ("q",)), HeadAxis(k, "out", ("k",)), HeadAxis(v, "out", ("v",)), *extra)
    return HeadLayout(HeadAxis(output, "in"), projections, **options)


def fused(qkv: str, output: str, *, extra: Sequence[HeadAxis] = (), **options: Any) -> HeadLayout:
    """One module that gives all query heads, then all key heads, then all value heads."""
    projections = (HeadAxis(qkv, "out", ("q", "k", "v")), *extra)
    return HeadLayout(HeadAxis(output, "in"), projections, **options)


def interleaved(qkv: str, output: str, *, extra: Sequence[HeadAxis] = (), **options: Any) -> HeadLayout:
    """One module that gives query, key and value of the first head, then of the second, and so on."""
    return HeadLayout(HeadAxis(output, "in"), (HeadAxis(qkv, "out", ("qkv",)), *extra), **options)


# ``nn.MultiheadAttention`` reads its projections as raw parameters and never calls ``out_proj``.
MULTIHEAD = HeadLayout(
    output=HeadAxis("out_proj.weight", 1),
    projections=(
        HeadAxis("in_proj_weight", 0, ("q", "k", "v")),
        HeadAxis("in_proj_bias", 0, ("q", "k", "v")),
        HeadAxis("q_proj_weight", 0, ("q",)),
        HeadAxis("k_proj_weight", 0, ("k",)),
        HeadAxis("v_proj_weight", 0, ("v",)),
        HeadAxis("bias_k", 2, ("k",)),
        HeadAxis("bias_v", 2, ("v",)),
    ),
    counts={"num_heads": "heads"},
    behaviours=("multihead",),
)
