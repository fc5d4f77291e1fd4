"""Small models and a small report that the pruning tests share."""

from __future__ import annotations

from typing import Any

import pytest
import torch


@pytest.fixture
def tiny_bert() -> Any:
    """A BERT of 3 layers x 4 heads."""
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
    return BertModel(BertConfig(vocab_size=60, **sizes)).eval()


@pytest.fixture
def ids() -> dict[str, torch.Tensor]:
    """One context of 12 tokens."""
    return {"input_ids": torch.randint(3, 60, (1, 12), generator=torch.Generator().manual_seed(0))}
