"""The registry: names are unique, third parties join and never replace, and what is missing is said."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import EntryPoint
from typing import Any

import pytest
from torch import nn

from oattn_hub.adapters import Adapter, adapt, get_adapter, list_adapters, register, registry
from oattn_hub.errors import AdapterError


class Stranger(Adapter):
    name = "stranger"
    description = "from another package"
    modules = {"*.StrangeAttention": "self"}  # noqa: RUF012


class Impostor(Adapter):
    name = "bert"
    description = "claims a native name"


@pytest.fixture
def fresh_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of the registry that forgets what a test adds."""
    list_adapters()
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))
    registry._load_all.cache_clear()


def test_list_takes_a_glob() -> None:
    assert list_adapters("*vit*") == ["timm_vit", "vit"]
    assert len(list_adapters()) >= 18
    assert list_adapters() == sorted(list_adapters())


def test_a_second_adapter_of_a_name_raises(fresh_registry: None) -> None:
    with pytest.raises(AdapterError, match=r"already an adapter called 'bert' \(BertAdapter\)"):
        register(Impostor)


def test_unknown_name_lists_the_known() -> None:
    with pytest.raises(AdapterError, match=r"No adapter is called 'brt'\. Known: albert, bart, bert"):
        get_adapter("brt")


def test_third_parties_join_and_never_replace(fresh_registry: None, monkeypatch: pytest.MonkeyPatch) -> None:
    offers = [
        EntryPoint("stranger", f"{__name__}:Stranger", registry.ENTRY_POINT_GROUP),
        EntryPoint("bert", f"{__name__}:Impostor", registry.ENTRY_POINT_GROUP),
    ]
    classes = {"stranger": Stranger, "bert": Impostor}
    monkeypatch.setattr(EntryPoint, "load", lambda self: classes[self.name])
    monkeypatch.setattr(registry, "entry_points", lambda group: offers)
    with pytest.warns(UserWarning, match="offers an adapter 'bert'; oattn_hub has one"):
        assert "stranger" in list_adapters()
    assert get_adapter("bert").__name__ == "BertAdapter"
    registry._load_all.cache_clear()


def test_subclasses_are_served_like_their_parent(zoo: Any) -> None:
    from transformers.models.llama.modeling_llama import LlamaAttention

    class MyAttention(LlamaAttention):
        pass

    model, _ = zoo.BY_NAME["llama"].build()
    for layer in model.layers:
        layer.self_attn.__class__ = MyAttention
    assert adapt(model).name == "llama"


def test_parts_of_several_families(zoo: Any) -> None:
    class Both(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.vision = zoo.BY_NAME["vit"].build()[0]
            self.text = zoo.BY_NAME["gpt2"].build()[0]

    adapter = adapt(Both())
    assert adapter.name == "gpt2+vit"
    sites = adapter.sites
    assert [(site.layer, site.group) for site in sites] == [
        (0, "encoder"),
        (1, "encoder"),
        (2, "decoder"),
        (3, "decoder"),
    ]
    assert all(site.described is not None for site in sites)
    assert adapt(Both(), "vit").name == "vit"


def test_grouped_queries_are_counted(zoo: Any) -> None:
    site = adapt(zoo.BY_NAME["llama"].build()[0], "llama").sites[0]
    assert (site.n_heads, site.n_kv_heads, site.head_dim) == (4, 2, 8)


def test_importing_adapters_needs_no_torch_and_no_other_name() -> None:
    code = "import sys, oattn_hub.adapters as a; a.list_adapters(); assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
    clash = subprocess.run([sys.executable, "-c", "import adapters"], capture_output=True, text=True, cwd=".")
    assert clash.returncode != 0
    assert "AdapterHub" in clash.stderr or "No module named" in clash.stderr


class DeformableDetrMultiheadAttention(nn.MultiheadAttention):
    """Plain attention in a model that is called deformable."""


class MultiscaleDeformableAttention(nn.Linear):
    """Weights over sampled points."""


def test_only_deformable_attention_itself_is_left_out() -> None:
    model = nn.ModuleDict(
        {"self_attn": DeformableDetrMultiheadAttention(8, 2), "cross": MultiscaleDeformableAttention(8, 8)}
    )
    assert list(adapt(model).left_out) == ["cross"]
    assert [site.name for site in adapt(model).sites] == ["self_attn"]


def test_a_config_that_refuses_to_name_one_value_for_all_layers() -> None:
    class Config:
        @property
        def num_key_value_heads(self) -> int:
            raise RuntimeError("varies across layers")

    class LayerAttention(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.config, self.num_heads = Config(), 4
            self.q_proj, self.o_proj = nn.Linear(8, 8), nn.Linear(8, 8)
            self.k_proj, self.v_proj = nn.Linear(8, 4), nn.Linear(8, 4)

    assert [site.n_kv_heads for site in adapt(nn.ModuleList([LayerAttention()])).sites] == [2]
