"""Pruned models in other engines: onnxruntime always; llama.cpp, optimum, transformers.js where they are installed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from oattn_hub.cli import main
from oattn_hub.errors import InvalidInput, LoadError, MissingDependency
from oattn_hub.exports import export_gguf, export_onnx
from oattn_hub.pruning import PruningPlan, load_pruned

SIZES = {"hidden_size": 32, "num_hidden_layers": 2, "intermediate_size": 48}
IDS = torch.arange(3, 15)[None]
# Groups of two queries. Layer 0 loses one group, layer 1 two of them: even groups, and layers that differ.
EVEN = [(0, 2), (0, 3), (1, 0), (1, 1), (1, 6), (1, 7)]
UNEVEN = [(0, 1), (1, 2), (1, 3), (1, 6)]
# Every layer loses one group: a plain Llama of another shape.
UNIFORM = [(0, 2), (0, 3), (1, 0), (1, 1)]


def byte_tokenizer(folder: Path) -> int:
    """A byte-level BPE as GPT-2's, with a few merges; returns how many tokens it knows."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=270, special_tokens=["<|end|>"], initial_alphabet=sorted(alphabet))
    tokenizer.train_from_iterator(["the head that the head needs and the other one"] * 3, trainer)
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|end|>", bos_token="<|end|>").save_pretrained(
        folder
    )
    return tokenizer.get_vocab_size()


def llama_folder(folder: Path, heads: list[tuple[int, int]], **options: Any) -> Path:
    """A small Llama with a byte-level tokenizer, without some heads."""
    import transformers

    words = byte_tokenizer(folder / "base")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=words, num_attention_heads=8, num_key_value_heads=4, max_position_embeddings=64, bos_token_id=0,
        eos_token_id=0, initializer_range=0.3, **{**SIZES, **options},
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder / "base")
    plan = PruningPlan.from_heads(str(folder / "base"), heads)
    return plan.apply(measure=False, compensate=False).save_pretrained(folder / "pruned", verify=False)


def session(folder: Path) -> Any:
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    return runtime.InferenceSession(str(folder / "onnx/model.onnx"), providers=["CPUExecutionProvider"])


@pytest.mark.parametrize("name", ["BertModel", "BertForSequenceClassification", "DistilBertForMaskedLM"])
def test_onnx_of_encoders(name: str, tmp_path: Path, save_word_tokenizer: Any) -> None:
    import transformers

    save_word_tokenizer(tmp_path / "base")
    cls = getattr(transformers, name)
    torch.manual_seed(0)
    names = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48} if "Distil" in name else SIZES
    heads = {} if "Distil" in name else {"num_attention_heads": 4}
    cls(cls.config_class(vocab_size=60, **names, **heads)).save_pretrained(tmp_path / "base")
    pruned = PruningPlan.from_heads(str(tmp_path / "base"), [(0, 1), (1, 2), (1, 3)]).apply(measure=False)
    folder = pruned.save_pretrained(tmp_path / "pruned", verify=False)
    assert main(["export", str(folder), "--onnx", str(tmp_path / "onnx-folder")]) == 0
    run = session(tmp_path / "onnx-folder")
    shape = (3, 9)
    batch = {"input_ids": torch.randint(5, 20, shape), "attention_mask": torch.ones(shape, dtype=torch.long)}
    batch["attention_mask"][1, 5:] = 0
    if "token_type_ids" in {entry.name for entry in run.get_inputs()}:
        batch["token_type_ids"] = torch.zeros(shape, dtype=torch.long)
    with torch.no_grad():
        expected = load_pruned(folder)(**batch)[0]
    (found, *_) = run.run(None, {key: value.numpy() for key, value in batch.items()})
    seen = batch["attention_mask"].bool() if found.ndim == 3 else slice(None)
    assert torch.allclose(torch.from_numpy(found)[seen], expected[seen], atol=1e-4)
    # the config is one that tools read without our code
    config = transformers.AutoConfig.from_pretrained(tmp_path / "onnx-folder", trust_remote_code=False)
    assert type(config) is cls.config_class
    assert not {"oattn_pruning", "auto_map"} & json.loads((tmp_path / "onnx-folder/config.json").read_text()).keys()
    assert transformers.AutoTokenizer.from_pretrained(tmp_path / "onnx-folder") is not None


def test_onnx_of_images(tmp_path: Path) -> None:
    import transformers

    torch.manual_seed(0)
    config = transformers.ViTConfig(num_attention_heads=4, image_size=32, patch_size=8, num_labels=3, **SIZES)
    transformers.ViTForImageClassification(config).save_pretrained(tmp_path / "base")
    transformers.ViTImageProcessor(size={"height": 32, "width": 32}).save_pretrained(tmp_path / "base")
    pruned = PruningPlan.from_heads(str(tmp_path / "base"), [(0, 1), (1, 2), (1, 3)]).apply(measure=False)
    folder = export_onnx(pruned.save_pretrained(tmp_path / "pruned", verify=False), tmp_path / "out")
    pixels = torch.randn(3, 3, 32, 32)
    (found, *_) = session(folder).run(["logits"], {"pixel_values": pixels.numpy()})
    with torch.no_grad():
        assert torch.allclose(torch.from_numpy(found), pruned.model(pixels).logits, atol=1e-4)
    assert (folder / "preprocessor_config.json").is_file()


def _write_greedily(run: Any, config: dict[str, Any], ids: list[int], count: int) -> list[int]:
    """As optimum and transformers.js do it: an empty cache whose shape the config says, then token by token."""
    heads, width = config["num_key_value_heads"], config["head_dim"]
    names = [entry.name for entry in run.get_inputs()]
    past = {name: np.zeros((1, heads, 0, width), np.float32) for name in names if name.startswith("past")}
    outputs = [entry.name for entry in run.get_outputs()]
    written, new = list(ids), list(ids)
    for _ in range(count):
        start = len(written) - len(new)
        own = {
            "input_ids": np.array([new]),
            "attention_mask": np.ones((1, len(written)), np.int64),
            "position_ids": np.arange(start, len(written))[None],
        }
        found = dict(zip(outputs, run.run(None, {**own, **past}), strict=True))
        past = {name.replace("present", "past_key_values"): found[name] for name in outputs if name != "logits"}
        new = [int(found["logits"][0, -1].argmax())]
        written += new
    return written[len(ids) :]


@pytest.mark.parametrize("heads", [UNEVEN, EVEN, UNIFORM], ids=["uneven", "even", "uniform"])
def test_onnx_writes_text_with_its_cache(heads: list[tuple[int, int]], tmp_path: Path) -> None:
    """Layers that keep different numbers of key/value heads are written with one cache for the tools."""
    pruned = llama_folder(tmp_path, heads)
    folder = export_onnx(pruned, tmp_path / "out")
    config = json.loads((folder / "config.json").read_text())
    model: Any = load_pruned(pruned)
    expected = model.generate(IDS, max_new_tokens=8, do_sample=False, eos_token_id=None, pad_token_id=0)[0, 12:]
    assert _write_greedily(session(folder), config, IDS[0].tolist(), 8) == expected.tolist()


@pytest.mark.parametrize(("heads", "arch"), [(EVEN, "deci"), (UNIFORM, "llama")])
def test_gguf_says_how_many_heads_each_layer_has(heads: list[tuple[int, int]], arch: str, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    pruned = llama_folder(tmp_path, heads)
    assert main(["export", str(pruned), "--gguf", str(tmp_path / "small.gguf")]) == 0
    reader = gguf.GGUFReader(tmp_path / "small.gguf")
    fields = {name: field.contents() for name, field in reader.fields.items()}
    assert fields["general.architecture"] == arch
    assert fields[f"{arch}.attention.head_count"] == (6 if arch == "llama" else [6, 4])
    assert fields[f"{arch}.attention.head_count_kv"] == (3 if arch == "llama" else [3, 2])
    assert len(fields["tokenizer.ggml.tokens"]) == json.loads((pruned / "config.json").read_text())["vocab_size"]
    # a second file takes the tokenizer from the first, and both have the same weights
    export_gguf(pruned, tmp_path / "again.gguf", like=tmp_path / "small.gguf")
    assert (tmp_path / "again.gguf").read_bytes() == (tmp_path / "small.gguf").read_bytes()


@pytest.mark.parametrize("heads", [EVEN, UNIFORM, []], ids=["even", "uniform", "whole"])
@pytest.mark.parametrize("tied", [True, False])
def test_llama_cpp_writes_what_the_model_writes(heads: list[tuple[int, int]], tied: bool, tmp_path: Path) -> None:
    llama_cpp = pytest.importorskip("llama_cpp")
    pruned = llama_folder(tmp_path, heads or EVEN, tie_word_embeddings=tied)
    source = pruned if heads else tmp_path / "base"
    export_gguf(source, tmp_path / "model.gguf", dtype="float32")
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "base")
    model: Any = load_pruned(pruned) if heads else transformers.LlamaForCausalLM.from_pretrained(source)
    engine = llama_cpp.Llama(str(tmp_path / "model.gguf"), n_ctx=64, n_threads=1, verbose=False, logits_all=True)
    text = "the other head, 42 needs\n that"
    ids = engine.tokenize(text.encode(), add_bos=False)
    assert ids == tokenizer(text)["input_ids"]
    engine.eval(ids)
    with torch.no_grad():
        expected = model(torch.tensor([ids])).logits[0]
    assert np.abs(np.array(engine.scores[: len(ids)]) - expected.numpy()).max() < 0.02 * expected.abs().max().item()
    assert (np.array(engine.scores[: len(ids)]).argmax(1) == expected.argmax(1).numpy()).all()


def test_llama_cpp_reads_refitted_output_projections(tmp_path: Path) -> None:
    """A refit adds a bias to output projections, which llama.cpp's graphs have a place for."""
    llama_cpp = pytest.importorskip("llama_cpp")
    llama_folder(tmp_path, EVEN)
    plan = PruningPlan.from_heads(str(tmp_path / "base"), EVEN)
    pruned = plan.apply(measure=False, compensate=True, inputs=[{"input_ids": torch.randint(260, (4, 32))}])
    assert pruned.cuts["bias"]
    export_gguf(pruned.save_pretrained(tmp_path / "refit", verify=False), tmp_path / "model.gguf", dtype="float32")
    engine = llama_cpp.Llama(str(tmp_path / "model.gguf"), n_ctx=64, n_threads=1, verbose=False, logits_all=True)
    engine.eval(IDS[0].tolist())
    with torch.no_grad():
        expected = pruned.model(IDS).logits[0]
    assert np.abs(np.array(engine.scores[:12]) - expected.numpy()).max() < 0.02 * expected.abs().max().item()


def test_what_llama_cpp_cannot_read_is_refused(tmp_path: Path, save_word_tokenizer: Any, capsys: Any) -> None:
    pytest.importorskip("gguf")
    import transformers

    folder = llama_folder(tmp_path, UNEVEN)
    assert main(["export", str(folder), "--gguf", str(tmp_path / "x.gguf")]) == 1
    assert "Prune with --shape even" in capsys.readouterr().err
    assert not (tmp_path / "x.gguf").exists()
    with pytest.raises(InvalidInput, match="llama and mistral"):
        bert = transformers.BertModel(transformers.BertConfig(vocab_size=60, num_attention_heads=4, **SIZES))
        export_gguf(bert, tmp_path / "x.gguf")
    with pytest.raises(LoadError, match="There is no file"):
        export_gguf(tmp_path / "base", tmp_path / "x.gguf", like=tmp_path / "none.gguf")
    for file in (tmp_path / "base").glob("*token*"):
        file.unlink()
    save_word_tokenizer(tmp_path / "base")
    with pytest.raises(InvalidInput, match="--like"):
        export_gguf(tmp_path / "base", tmp_path / "x.gguf")
    assert not (tmp_path / "x.gguf").exists()


def test_what_has_no_onnx_folder_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    import timm
    import transformers

    with pytest.raises(InvalidInput, match=r"torch\.onnx\.export"):
        export_onnx(timm.create_model("vit_tiny_patch16_224", pretrained=False), tmp_path / "x")
    config = transformers.T5Config(vocab_size=60, d_model=32, d_ff=32, num_layers=1, num_heads=4, d_kv=8)
    with pytest.raises(InvalidInput, match="encoder with a decoder"):
        export_onnx(transformers.T5ForConditionalGeneration(config), tmp_path / "x")
    assert main(["export", str(tmp_path)]) == 1


def test_missing_packages_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    with pytest.raises(MissingDependency, match=r"oattn_hub\[onnx\]"):
        export_onnx("x", tmp_path)
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(MissingDependency, match=r"oattn_hub\[gguf\]"):
        export_gguf("x", tmp_path / "x.gguf")


def test_optimum_reads_the_folder(tmp_path: Path) -> None:
    optimum = pytest.importorskip("optimum.onnxruntime")
    pruned = llama_folder(tmp_path, UNEVEN)
    folder = export_onnx(pruned, tmp_path / "out")
    tool = optimum.ORTModelForCausalLM.from_pretrained(folder, subfolder="onnx", file_name="model.onnx")
    model: Any = load_pruned(pruned)
    options = {"max_new_tokens": 8, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}
    assert tool.generate(IDS, **options).tolist() == model.generate(IDS, **options).tolist()


_SCRIPT = """
import {{ pipeline, env }} from '@huggingface/transformers';
env.allowRemoteModels = false; env.localModelPath = '{place}/';
const tool = await pipeline('text-generation', 'out', {{ dtype: 'fp32' }});
const found = await tool('the other head', {{ max_new_tokens: 6, do_sample: false }});
console.log(JSON.stringify(found[0].generated_text));
"""


def test_transformers_js_reads_the_folder(tmp_path: Path) -> None:
    """Needs node and ``npm install @huggingface/transformers`` in the folder that OATTN_NODE_FOLDER names."""
    place = os.environ.get("OATTN_NODE_FOLDER")
    if place is None or shutil.which("node") is None:
        pytest.skip("no folder with transformers.js; name one with OATTN_NODE_FOLDER")
    import transformers

    pruned = llama_folder(tmp_path, UNEVEN)
    export_onnx(pruned, tmp_path / "out")
    script = Path(place) / f"{tmp_path.name}.mjs"
    script.write_text(_SCRIPT.format(place=tmp_path))
    try:
        done = subprocess.run(["node", script.name], cwd=place, capture_output=True, text=True, check=False)
    finally:
        script.unlink()
    assert done.returncode == 0, done.stderr[-2000:]
    tokenizer, model = transformers.AutoTokenizer.from_pretrained(pruned), load_pruned(pruned)
    ids = tokenizer("the other head", return_tensors="pt")["input_ids"]
    expected = model.generate(ids, max_new_tokens=6, do_sample=False, pad_token_id=0)[0]  # type: ignore[operator]
    assert json.loads(done.stdout) == tokenizer.decode(expected, skip_special_tokens=True)
