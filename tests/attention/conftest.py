"""Small models and stores that the tests of this room share."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn


@pytest.fixture
def bert(zoo: Any) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """A tiny BERT and the arguments of one call."""
    return zoo.BY_NAME["bert"].build()


@pytest.fixture
def llama(zoo: Any) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """A tiny Llama with grouped queries, and the arguments of one call."""
    return zoo.BY_NAME["llama"].build()
