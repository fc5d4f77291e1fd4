"""What forward calls have taught about models that nobody described: modules that attend, and how often they run.

Knowledge belongs to a structure, not to an object: a copy of the model, or the same model loaded once more, has it too.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class Learned:
    """What is known of one module: its heads (0: its adapter counts them), and how often a forward call runs it."""

    n_heads: int = 0
    n_kv_heads: int = 0
    passes: int = 1


_KNOWN: dict[str, dict[str, Learned]] = {}


def learned_about(model: nn.Module) -> dict[str, Learned]:
    """Dotted module name -> what was learned; the caller may add to it."""
    digest = hashlib.sha256()
    for name, module in model.named_modules():
        digest.update(f"{name}:{type(module).__qualname__};".encode())
    return _KNOWN.setdefault(digest.hexdigest(), {})
