"""The store: whole batches only, resumable, readable without torch, honest about damage."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from torch import nn

from oattn_hub.attention import AttentionStore, calibration_inputs, capture, capture_inputs, load_model
from oattn_hub.errors import CaptureError, FormatError, InvalidInput, LoadError, StorageError

Built = tuple[nn.Module, dict[str, torch.Tensor]]


@pytest.fixture
def store(bert: Built, tmp_path: Path) -> AttentionStore:
    model, inputs = bert
    with torch.no_grad(), capture(model, ("logits", "probs"), tmp_path / "store") as written:
        model(**inputs)
        model(**inputs)
    return written


def test_files_are_plain_safetensors(store: AttentionStore) -> None:
    path = next((store.folder / "batch-00000").glob("*.probs.safetensors"))
    tensors = load_file(path)
    assert list(tensors) == ["probs"]
    assert np.array_equal(tensors["probs"].transpose(1, 2, 0), store.tensor(0, "probs"))


def test_reading_is_memory_mapped_read_only_and_without_torch(store: AttentionStore) -> None:
    assert isinstance(store.tensor(0, "probs").base, np.memmap)
    with pytest.raises(ValueError, match="read-only"):
        store.tensor(0, "probs")[0, 0, 0] = 1.0
    code = f"""
        import sys
        from oattn_hub.attention import AttentionStore
        store = AttentionStore.open({str(store.folder)!r})
        assert store.tensor(1, "probs").shape == (12, 12, 8)
        assert "torch" not in sys.modules and "transformers" not in sys.modules
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(code)], check=True)


def test_index_says_what_was_captured(store: AttentionStore) -> None:
    reopened = AttentionStore.open(store.folder)
    info = reopened.info
    assert (info.adapter, info.kinds, info.dtype, info.pool) == ("bert", ("logits", "probs"), "float32", 1)
    assert info.versions["torch"] == torch.__version__.split("+")[0]
    assert len(info.fingerprint or "") == 64
    assert reopened.heads() == store.heads()


def test_half_precision_store(bert: Built, tmp_path: Path) -> None:
    model, inputs = bert
    with torch.no_grad(), capture(model, store=tmp_path / "half", dtype="float16") as half, capture(model) as full:
        model(**inputs)
    assert half.tensor(0).dtype == np.float16
    assert np.allclose(half.tensor(0), full.tensor(0), atol=1e-3)


@pytest.mark.parametrize("size", [2, 5])
def test_pooling_keeps_rows_of_probs(bert: Built, size: int) -> None:
    model, inputs = bert
    kinds = ("scores", "logits", "probs")
    with torch.no_grad(), capture(model, kinds, pool=size) as pooled, capture(model, kinds) as full:
        model(**inputs)
    n = -(-12 // size)
    assert pooled.tensor(0, "probs").shape == (n, n, 8)
    assert np.allclose(pooled.tensor(0, "probs").sum(axis=1), 1, atol=1e-5)
    block = full.tensor(0, "scores")[:size, :size]
    assert np.allclose(pooled.tensor(0, "scores")[0, 0], block.mean(axis=(0, 1)), atol=1e-5)
    rows = full.tensor(0, "probs")[:size, :size].sum(axis=1).mean(axis=0)
    assert np.allclose(pooled.tensor(0, "probs")[0, 0], rows, atol=1e-5)


def test_pooled_logits_average_what_is_there(llama: Built) -> None:
    model, inputs = llama
    with torch.no_grad(), capture(model, ("logits",), pool=4) as store:
        model(**inputs)
    missing = np.isnan(store.tensor(0)).all(axis=2)
    assert np.array_equal(missing, np.triu(np.ones((3, 3), dtype=bool), 1))


def test_a_folder_in_use_is_refused(store: AttentionStore, bert: Built) -> None:
    with (
        pytest.raises(InvalidInput, match="already holds an attention store of 2 batches"),
        capture(bert[0], store=store.folder),
    ):
        pass
    with (
        pytest.raises(InvalidInput, match="captured differently: kinds was"),
        capture(bert[0], ("scores",), store=store.folder, resume=True),
    ):
        pass
    assert AttentionStore.open(store.folder).n_batches == 2


def test_a_run_that_dies_is_resumed(bert: Built, tmp_path: Path) -> None:
    loaded = load_model(bert[0])
    data = [{"input_ids": torch.randint(3, 60, (1, 9))} for _ in range(4)]
    inputs = calibration_inputs(loaded, data)

    def stop(stage: str, done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        capture_inputs(loaded, inputs, tmp_path, progress=stop)
    assert AttentionStore.open(tmp_path).n_batches == 2
    (tmp_path / "batch-00002.part").mkdir()  # what a killed process leaves
    ran: list[int] = []
    store = capture_inputs(loaded, inputs, tmp_path, resume=True, progress=lambda stage, done, total: ran.append(done))
    assert ran == [2, 3, 4]
    whole = capture_inputs(loaded, inputs)
    assert all(np.array_equal(store.tensor(batch), whole.tensor(batch)) for batch in range(4))
    assert store.info == whole.info


def test_other_inputs_do_not_resume(bert: Built, tmp_path: Path) -> None:
    loaded = load_model(bert[0])
    capture_inputs(loaded, calibration_inputs(loaded, [{"input_ids": torch.ones(1, 5, dtype=torch.long)}]), tmp_path)
    other = calibration_inputs(loaded, [{"input_ids": torch.zeros(1, 5, dtype=torch.long)}])
    with pytest.raises(InvalidInput, match="fingerprint was"):
        capture_inputs(loaded, other, tmp_path, resume=True)


def test_a_killed_process_leaves_whole_batches_only(tmp_path: Path) -> None:
    code = f"""
        import os, signal, torch
        from torch import nn
        from oattn_hub.attention import capture
        model = nn.Sequential(*[nn.TransformerEncoderLayer(16, 2, 16, batch_first=True) for _ in range(3)]).eval()
        with torch.no_grad(), capture(model, store={str(tmp_path / "store")!r}):
            model(torch.zeros(1, 9, 16))
            model[2].register_forward_pre_hook(lambda *_: os.kill(os.getpid(), signal.SIGKILL))
            model(torch.zeros(1, 9, 16))
    """
    died = subprocess.run([sys.executable, "-c", textwrap.dedent(code)])
    assert died.returncode == -signal.SIGKILL
    store = AttentionStore.open(tmp_path / "store")
    assert store.n_batches == 1
    assert store.tensor(0).shape == (9, 9, 6)
    halves = [path for path in (tmp_path / "store").rglob("*.safetensors") if ".part" in path.parent.name]
    assert halves
    for path in halves:
        with pytest.raises(Exception, match=r"header|Header"):
            load_file(path)


def test_a_full_disk_is_one_clear_error_and_loses_nothing(bert: Built, tmp_path: Path) -> None:
    model, inputs = bert
    before = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        with torch.no_grad(), capture(model, store=tmp_path / "store") as store:
            model(**inputs)
            resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
            with pytest.raises(StorageError, match=r"File too large.*Nothing was left half-written"):
                model(**inputs)
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            model(**inputs)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, before)
    reopened = AttentionStore.open(store.folder)
    assert reopened.n_batches == 2
    assert np.array_equal(reopened.tensor(0), reopened.tensor(1))
    assert sorted(path.name for path in store.folder.iterdir()) == ["batch-00000", "batch-00001", "index.json"]


def test_float16_overflow_is_not_stored(bert: Built) -> None:
    model, inputs = bert
    with torch.no_grad():
        model.encoder.layer[0].attention.self.query.weight.mul_(1e7)
    with (
        torch.no_grad(),
        capture(model, ("scores",), dtype="float16") as store,
        pytest.raises(CaptureError, match="exceed the range of float16"),
    ):
        model(**inputs)
    assert store.n_batches == 0


def test_asking_for_what_is_not_there(store: AttentionStore) -> None:
    with pytest.raises(InvalidInput, match="Kind 'scores' was not captured"):
        store.tensor(0, "scores")
    with pytest.raises(InvalidInput, match="Kind None was not captured"):
        store.tensor(0)
    with pytest.raises(InvalidInput, match="Batch 2 does not exist"):
        store.tensor(2, "probs")
    with pytest.raises(InvalidInput, match="Group 'decoder' is not in the store"):
        store.heads("decoder")


def test_an_empty_store_says_so(bert: Built) -> None:
    with capture(bert[0]) as store:
        pass
    with pytest.raises(InvalidInput, match="holds no batch"):
        store.tensor(0)


def _spoil(path: Path, change: Any) -> None:
    index = json.loads(path.read_text())
    change(index)
    path.write_text(json.dumps(index))


def test_damage_is_named(store: AttentionStore, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="not an attention store"):
        AttentionStore.open(tmp_path / "nowhere")
    path = next((store.folder / "batch-00001").glob("*.probs.safetensors"))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(FormatError, match="is damaged"):
        store.tensor(1, "probs")
    path.unlink()
    with pytest.raises(LoadError, match="missing from the store"):
        store.tensor(1, "probs")
    _spoil(store.folder / "index.json", lambda index: index.update(schema=99))
    with pytest.raises(FormatError, match="schema 99"):
        AttentionStore.open(store.folder)
    (store.folder / "index.json").write_text("{")
    with pytest.raises(FormatError, match="not valid JSON"):
        AttentionStore.open(store.folder)


def test_layers_must_be_the_same_in_every_batch(zoo: Any) -> None:
    model, inputs = zoo.BY_NAME["bert"].build()
    with torch.no_grad(), capture(model, allow_partial=True) as store:
        model(**inputs)
        model.encoder.layer[1].forward = lambda hidden, *args, **kwargs: hidden
        with pytest.raises(CaptureError, match="had 2 layers in an earlier batch and has 1"):
            model(**inputs)
    assert store.n_batches == 1
