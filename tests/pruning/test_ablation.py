"""Masking is compared with zeroing the attention itself, so that a wrong layout cannot go unnoticed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from oattn_hub.adapters.explain import explain
from oattn_hub.adapters.registry import adapt
from oattn_hub.errors import SurgeryError
from oattn_hub.pruning.ablation import check_masking
from oattn_hub.pruning.sites import head_sites


@pytest.mark.parametrize("name", ["bert", "llama", "t5"])
def test_masking_is_ablation(zoo: Any, name: str) -> None:
    model, inputs = zoo.BY_NAME[name].build()
    sites = head_sites(model)

    def run() -> list[torch.Tensor]:
        return [model(**inputs).last_hidden_state]

    check_masking(model, sites, [(0, 1), (sites[-1].layer, 0)], run)
    # the same heads under other names: masking silences head 1, the ablation head 2
    swapped = [replace(site, n_heads=site.n_heads // 2, n_kv_heads=1) for site in sites]
    with pytest.raises(SurgeryError, match="is not what removing their attention is"):
        check_masking(model, swapped, [(0, 1)], run)


def test_an_adapter_explains_what_it_knows(zoo: Any) -> None:
    records = explain(adapt(zoo.BY_NAME["bert"].build()[0]))
    assert [record["layer"] for record in records] == [0, 1]
    assert records[0]["output"] == "output.dense"
    assert records[0]["projections"] == "self.query (q), self.key (k), self.value (v)"
    assert records[0]["found"] == "described by a family"
