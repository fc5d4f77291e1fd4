"""Adapters register torch's forward hooks: inside anyone's loop, two at a time, and gone whatever happens."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import oattn_hub as oh
from oattn_hub.attention import MemoryStore
from oattn_hub.errors import AdapterError, FolderInUse, InvalidInput

Built = tuple[nn.Module, dict[str, torch.Tensor]]


def hooks_of(model: nn.Module) -> int:
    everywhere = torch.nn.modules.module
    own = sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())
    return own + len(everywhere._global_forward_hooks) + len(everywhere._global_forward_pre_hooks)


def encoder() -> nn.Module:
    torch.manual_seed(0)
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2).eval()


def test_adapt_binds_and_finds_sites_once(bert: Built) -> None:
    adapter = oh.adapt(bert[0])
    assert type(adapter).__name__ == "BertAdapter"
    assert adapter.model is bert[0]
    assert adapter.sites is adapter.sites
    assert [site.layout.output.path for site in adapter.sites] == ["output.dense"] * 2
    assert oh.adapt(bert[0], adapter) is adapter
    with pytest.raises(AdapterError, match="not bound to a model"):
        _ = type(adapter)().sites


def test_hook_registers_forward_hooks_and_remove_takes_them_off(bert: Built, tmp_path: Path) -> None:
    model, inputs = bert
    handle = oh.adapt(model).hook(tmp_path / "store", kinds=("scores", "probs"))
    assert hooks_of(model) > 0
    with torch.no_grad():
        model(**inputs)
    handle.remove()
    handle.remove()
    assert hooks_of(model) == 0
    with torch.no_grad():
        model(**inputs)
    assert oh.AttentionStore.open(tmp_path / "store").n_batches == handle.store.n_batches == 1


def test_a_store_in_memory_holds_what_a_store_on_disk_holds(bert: Built) -> None:
    model, inputs = bert
    adapter, memory = oh.adapt(model), MemoryStore()
    with (
        torch.no_grad(),
        adapter.hook(memory, kinds=("scores", "probs")),
        oh.capture(model, ("scores", "probs")) as disk,
    ):
        model(**inputs)
        model(input_ids=inputs["input_ids"][:, :5])
    assert memory.n_batches == disk.n_batches == 2
    assert memory.groups == disk.groups
    assert memory.heads() == disk.heads()
    assert memory.info.kinds == ("scores", "probs")
    for batch in range(2):
        for kind in ("scores", "probs"):
            assert np.array_equal(memory.tensor(batch, kind), disk.tensor(batch, kind))
    with pytest.raises(InvalidInput, match="take a new one"):
        adapter.hook(memory, kinds=("probs",))


def test_what_takes_no_batches_is_refused(bert: Built) -> None:
    with pytest.raises(InvalidInput, match="cannot be streamed into list"):
        oh.adapt(bert[0]).hook([])
    assert hooks_of(bert[0]) == 0


def test_a_store_that_was_opened_goes_on(bert: Built, tmp_path: Path) -> None:
    model, inputs = bert
    with torch.no_grad(), oh.capture(model, store=tmp_path / "store"):
        model(**inputs)
    with torch.no_grad(), oh.adapt(model).hook(oh.AttentionStore.open(tmp_path / "store")) as handle:
        model(**inputs)
    assert handle.store.n_batches == 2


@pytest.mark.parametrize("build", [encoder, lambda: encoder().layers[0], lambda: nn.Sequential(encoder())])
def test_two_hooks_at_a_time_leave_the_fast_path_on(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, calls = build(), torch.randn(1, 6, 16), []
    fused = torch._transformer_encoder_layer_fwd
    monkeypatch.setattr(torch, "_transformer_encoder_layer_fwd", lambda *args: calls.append(1) or fused(*args))
    with torch.no_grad():
        plain = model(x)
        layers = len(calls)
        assert layers > 0
        with oh.capture(model) as one, oh.capture(model) as other:
            watched = model(x)
    assert len(calls) == 2 * layers
    assert torch.equal(plain, watched)
    assert np.array_equal(one.tensor(0), other.tensor(0))
    assert hooks_of(model) == 0
    assert torch._C._len_torch_function_stack() == 0


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("where", ["encoder.layer.1", "encoder.layer.1.attention.output.dense", "pooler"])
def test_a_call_that_is_interrupted_leaves_nothing(bert: Built, error: type[BaseException], where: str) -> None:
    model, inputs = bert

    def stop(module: nn.Module, args: Any) -> None:
        raise error("stop")

    with torch.no_grad(), oh.capture(model) as store, oh.capture(model) as second:
        fault = model.get_submodule(where).register_forward_pre_hook(stop)
        with pytest.raises(error, match="stop"):
            model(**inputs)
        fault.remove()
        model(**inputs)
    assert store.n_batches == second.n_batches == 1
    assert torch._C._len_torch_function_stack() == 0
    assert hooks_of(model) == 0
    assert sorted(path.name for path in store.folder.iterdir()) == ["batch-00000", "index.json"]


@pytest.mark.parametrize("where", ["", "layers.1", "layers.1.linear1"])
def test_an_interrupted_fast_path_leaves_nothing(where: str) -> None:
    model, x = encoder(), torch.randn(1, 6, 16)

    class Stop(torch.overrides.TorchFunctionMode):
        pass

    original = model.get_submodule(where).forward

    def stop(*args: Any, **kwargs: Any) -> Any:
        raise KeyboardInterrupt

    model.get_submodule(where).forward = stop
    with torch.no_grad(), pytest.raises(KeyboardInterrupt), oh.capture(model), oh.capture(model):
        model(x if where != "layers.1.linear1" else x.requires_grad_())
        model.layers[1].linear1(x)
    model.get_submodule(where).forward = original
    assert torch._C._len_torch_function_stack() == 0
    assert hooks_of(model) == 0
    with torch.no_grad(), oh.capture(model) as store:
        model(x)
    assert store.n_batches == 1


def test_a_model_called_while_an_exception_is_handled(bert: Built) -> None:
    model, inputs = bert
    with torch.no_grad(), oh.capture(model) as store:
        try:
            raise ValueError("earlier")
        except ValueError:
            model(**inputs)
    assert store.n_batches == 1


def test_hooks_of_others_still_run(bert: Built) -> None:
    model, inputs = bert
    seen = []
    theirs = model.register_forward_hook(lambda module, args, output: seen.append(output))
    with torch.no_grad(), oh.capture(model):
        output = model(**inputs)
    assert seen[0] is output
    theirs.remove()


def test_two_captures_into_one_folder_do_not_mix(bert: Built, tmp_path: Path) -> None:
    """The second says who holds the folder; when the first has ended, the folder can be written again."""
    adapter = oh.adapt(bert[0])
    with adapter.hook(tmp_path / "store"):
        with pytest.raises(FolderInUse, match=f"is being written by process {os.getpid()}"):
            adapter.hook(tmp_path / "store", resume=True)
        with torch.no_grad():
            bert[0](**bert[1])
    with adapter.hook(tmp_path / "store", resume=True) as handle, torch.no_grad():
        bert[0](**bert[1])
    assert handle.store.n_batches == 2
    assert not list((tmp_path / "store").glob(".*"))


def test_a_capture_that_is_refused_leaves_the_folder_free(bert: Built, tmp_path: Path) -> None:
    adapter = oh.adapt(bert[0])
    adapter.hook(tmp_path / "store").remove()
    for _ in range(2):
        with pytest.raises(InvalidInput, match="already holds an attention store"):
            adapter.hook(tmp_path / "store")
