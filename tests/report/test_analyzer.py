"""The one call on a tiny model: what it finds, how it is resumed, and what it says about bad input."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import BertConfig, BertModel, T5Config, T5Model

import oattn_hub as oh
from oattn_hub import analyzer
from oattn_hub.analysis import cache
from oattn_hub.cli import main
from oattn_hub.errors import InvalidInput, LoadError
from oattn_hub.inputs import calibration_inputs
from oattn_hub.report import Report

FILES = ("report.json", "report.safetensors", "report.html")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("OATTN_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture(scope="module")
def bert_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """3 layers x 4 heads, without a tokenizer: inputs are given ready-made."""
    folder = tmp_path_factory.mktemp("bert")
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 32}
    BertModel(BertConfig(vocab_size=50, **sizes)).save_pretrained(folder)
    (folder / "README.md").write_text("---\nlicense: mit\n---\n# Tiny\n")
    return folder


@pytest.fixture(scope="module")
def inputs() -> list[dict[str, Any]]:
    random = np.random.default_rng(0)
    return [{"input_ids": random.integers(0, 50, size=(1, 20))} for _ in range(4)]


@pytest.fixture(scope="module")
def text_folder(
    bert_folder: Path, save_word_tokenizer: Callable[[Path], int], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The same model with a tokenizer of words."""
    folder = tmp_path_factory.mktemp("text") / "tiny-bert"
    shutil.copytree(bert_folder, folder)
    save_word_tokenizer(folder)
    return folder


def test_a_report_of_a_tiny_model(bert_folder: Path, inputs: list[dict[str, Any]], tmp_path: Path) -> None:
    stages: list[str] = []
    out = tmp_path / "out"
    report = oh.analyze(bert_folder, data=inputs, out=out, progress=lambda stage, done, total: stages.append(stage))
    assert [(record.layer, record.head) for record in report.heads] == [(i, j) for i in range(3) for j in range(4)]
    assert sorted(record.rank for record in report.heads) == list(range(1, 13))
    for record in report.heads:
        assert record.entropy_low <= record.entropy <= record.entropy_high
        assert record.rank_low <= record.rank <= record.rank_high
    assert list(dict.fromkeys(stages)) == ["load", "capture", "organise", "controls"]
    assert (report.settings.batches, report.settings.tokens, report.group().n_batches) == (4, 20, 4)
    assert (report.model.license, report.model.architecture, report.model.adapter) == ("mit", "BertModel", "bert")
    assert set(report.provenance.seconds) == {"load", "capture", "organise", "measure"}
    assert {"torch", "numpy", "oattn_hub", "python"} <= set(report.provenance.versions)
    assert Report.load(out).fingerprint == report.fingerprint
    assert (out / "report.html").stat().st_size > 50_000


def test_entropies_are_those_of_the_geometry(bert_folder: Path, inputs: list[dict[str, Any]], tmp_path: Path) -> None:
    from oattn_hub.geometry import Questionnaire, head_entropies, network_entropy

    report = oh.analyze(bert_folder, data=inputs)
    model = BertModel.from_pretrained(bert_folder).eval()
    with oh.capture(model, store=tmp_path / "store") as store, torch.inference_mode():
        model(**{name: torch.as_tensor(value) for name, value in inputs[2].items()})
    X = store.tensor(batch=0, kind="probs")
    trees = Questionnaire().fit(X).trees_
    np.testing.assert_allclose(report.group().haar.entropies[2], head_entropies(X, trees), rtol=1e-6)
    assert report.group().haar.network_entropies[2] == pytest.approx(network_entropy(X, trees), rel=1e-5)


def test_groups_are_reported_side_by_side(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = T5Model(T5Config(vocab_size=30, d_model=32, d_kv=8, d_ff=32, num_layers=2, num_heads=4)).eval()
    random = np.random.default_rng(1)
    data = [
        {"input_ids": random.integers(0, 30, (1, 12)), "decoder_input_ids": random.integers(0, 30, (1, 9))}
        for _ in range(2)
    ]
    report = oh.analyze(model, data=data, out=tmp_path)
    shapes = {name: (group.n_queries, group.n_keys, group.n_heads) for name, group in report.groups.items()}
    assert sorted(shapes.values()) == [(9, 9, 8), (9, 12, 8), (12, 12, 8)]
    assert len({(record.layer, record.head) for record in report.heads}) == 24
    assert len(report.network) == len(report.stability) == 3
    assert report.model.source is None


@pytest.mark.parametrize("stop_at", [("capture", 2), ("organise", 0), ("organise", 2)])
def test_an_interrupted_run_resumed_gives_the_same_bytes(
    bert_folder: Path,
    inputs: list[dict[str, Any]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    stop_at: tuple[str, int],
) -> None:
    monkeypatch.setenv("OATTN_HOME", str(tmp_path / "whole-home"))
    oh.analyze(bert_folder, data=inputs, out=tmp_path / "whole")
    monkeypatch.setenv("OATTN_HOME", str(tmp_path / "cut-home"))

    def ctrl_c(stage: str, done: int, total: int) -> None:
        if (stage, done) == stop_at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        oh.analyze(bert_folder, data=inputs, out=tmp_path / "cut", progress=ctrl_c)
    assert not (tmp_path / "cut").exists()
    seen: list[tuple[str, int]] = []
    oh.analyze(bert_folder, data=inputs, out=tmp_path / "cut", progress=lambda *step: seen.append(step[:2]))
    first_captured = min(done for stage, done in seen if stage == "capture")
    assert first_captured == (2 if stop_at[0] == "capture" else 4)  # finished batches are not run again
    for name in FILES:
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "cut" / name).read_bytes(), name


def test_finished_measurements_are_not_made_again(
    bert_folder: Path, inputs: list[dict[str, Any]], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []
    measure = analyzer.measure_batch

    def counting(X: Any, *how: Any) -> Any:
        if len(made) == 2:
            raise KeyboardInterrupt
        made.append(X.shape)
        return measure(X, *how)

    monkeypatch.setattr(analyzer, "measure_batch", counting)
    with pytest.raises(KeyboardInterrupt):
        oh.analyze(bert_folder, data=inputs)
    made.clear()
    oh.analyze(bert_folder, data=inputs)
    assert len(made) == 2


def test_the_stages_give_back_their_room(bert_folder: Path, inputs: list[dict[str, Any]], home: Path) -> None:
    oh.analyze(bert_folder, data=inputs)
    (run,) = (home / "runs").iterdir()
    assert [path.name for path in run.iterdir()] == ["report"]


def test_a_second_call_does_not_even_load_the_model(
    text_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = oh.analyze(str(text_folder), batches=2, tokens=16)

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("the model was loaded again")

    monkeypatch.setattr("oattn_hub.models.load.load_model", never)
    again = oh.analyze(str(text_folder), batches=2, tokens=16, out=tmp_path / "out")
    assert again.fingerprint == first.fingerprint
    assert Report.load(tmp_path / "out").fingerprint == first.fingerprint
    with pytest.raises(AssertionError, match="loaded again"):
        oh.analyze(str(text_folder), batches=2, tokens=16, seed=1)


def test_changed_weights_data_or_code_are_noticed(
    text_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    folder = tmp_path / "model"
    shutil.copytree(text_folder, folder)
    text = tmp_path / "text.txt"
    text.write_text("the and of to in I you my is " * 60)
    first = oh.analyze(folder, data=text, batches=2, tokens=16)
    text.write_text("my is the you and of in I to " * 60)
    second = oh.analyze(folder, data=text, batches=2, tokens=16)
    assert second.provenance.data_fingerprint != first.provenance.data_fingerprint
    model = BertModel.from_pretrained(folder)
    with torch.no_grad():
        model.encoder.layer[0].attention.self.query.weight.add_(0.5)
    model.save_pretrained(folder)
    third = oh.analyze(folder, data=text, batches=2, tokens=16)
    assert third.model.revision != second.model.revision
    monkeypatch.setattr(cache, "code_fingerprint", lambda: "changed")
    assert cache.Request(folder, text, {}, {}).answer() is None


def test_a_damaged_cache_is_made_again(bert_folder: Path, inputs: list[dict[str, Any]], home: Path) -> None:
    first = oh.analyze(bert_folder, data=inputs)
    (file,) = home.glob("runs/*/report/report.safetensors")
    file.write_bytes(b"broken")
    assert oh.analyze(bert_folder, data=inputs).fingerprint == first.fingerprint


def test_a_home_nobody_may_write_to_is_done_without(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An analysis ended after the model was loaded, with advice about a folder that the user had not chosen."""
    monkeypatch.delenv("OATTN_HOME")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "none"))
    monkeypatch.setattr(os, "access", lambda path, mode: not Path(path).is_relative_to(tmp_path))
    place = cache.home()
    assert not place.is_relative_to(tmp_path)
    assert place.is_dir()
    assert place == cache.home()


def test_the_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("OATTN_HOME")
    monkeypatch.setattr(os, "access", lambda path, mode: True)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.home() == tmp_path / "oattn_hub"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.home() == Path("~/.cache/oattn_hub").expanduser()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "weights"}, "kind is 'weights'; choose one of scores, logits, probs"),
        ({"batches": 0}, "batches is 0; give a whole number, 1 or more"),
        ({"batches": 2.5}, r"batches is 2\.5"),
        ({"tokens": 1}, "tokens is 1; give a whole number, 2 or more"),
        ({"seed": -1}, "seed is -1"),
        ({"questionnaire": {"n_iter": 2}}, r"unknown parameters \['n_iter'\]; known are .*n_iters"),
        ({"revison": "main"}, r"\['revison'\]; .*revision"),
    ],
)
def test_bad_values_are_named(bert_folder: Path, options: dict[str, Any], message: str, home: Path) -> None:
    with pytest.raises(InvalidInput, match=message):
        oh.analyze(bert_folder, **options)
    assert not home.exists()


def test_bad_models_and_folders(tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="does not exist"):
        oh.analyze(tmp_path / "nowhere")
    (tmp_path / "file").write_text("mine")
    with pytest.raises(InvalidInput, match="is a file"):
        oh.analyze("bert", out=tmp_path / "file")


def test_one_batch_says_that_nothing_is_known_about_stability(
    bert_folder: Path, inputs: list[dict[str, Any]], tmp_path: Path
) -> None:
    report = oh.analyze(bert_folder, data=inputs[:1], out=tmp_path)
    assert report.stability[0].jaccard is None
    assert "only one batch" in " ".join(report.findings()).lower()
    assert Report.load(tmp_path).stability == report.stability


def test_scores_of_a_causal_model(tmp_path: Path) -> None:
    from transformers import LlamaConfig, LlamaModel

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    model = LlamaModel(LlamaConfig(vocab_size=30, intermediate_size=32, **sizes)).eval()
    data = [{"input_ids": np.random.default_rng(i).integers(0, 30, (1, 14))} for i in range(2)]
    for kind in ("scores", "logits", "probs"):
        report = oh.analyze(model, data=data, kind=kind, out=tmp_path / kind)
        assert report.settings.kind == kind
        assert np.isfinite(report.group().haar.entropies).all()
    masked = Report.load(tmp_path / "logits").group().samples[0].matrix(0)
    assert np.isnan(masked[np.triu_indices(14, k=1)]).all()
    assert np.isfinite(masked[np.tril_indices(14)]).all()


def test_command_line(text_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    command = ["analyze", str(text_folder), "--batches", "2", "--tokens", "16", "--out", str(out)]
    assert main([*command, "--json"]) == 0
    captured = capsys.readouterr()
    summary = json.loads(captured.out)
    assert len(summary["heads"]) == 12
    assert Path(summary["page"]).exists()
    assert main([*command, "--seed", "1", "--out", str(tmp_path / "other")]) == 0
    captured = capsys.readouterr()
    assert "Only entropy was measured on these 12 heads" in captured.out
    assert f"oattn evaluate {tmp_path / 'other'}" in captured.out
    assert "heads" not in captured.err  # results go to stdout, progress to stderr
    assert "organise: done in" in captured.err
    assert max(len(line) for line in captured.out.splitlines() if str(tmp_path) not in line) <= 80
    assert main(["compare", str(out), str(tmp_path / "other"), "--json", "--out", str(tmp_path / "compared")]) == 0
    assert json.loads(capsys.readouterr().out)["groups"][0]["spearman"] is not None
    assert (tmp_path / "compared/comparison.html").exists()


def test_command_line_errors_are_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["analyze", str(tmp_path / "nowhere"), "--out", str(tmp_path / "out")]) == 1
    assert main(["analyze", str(tmp_path), "--kind", "weights"]) == 1
    assert main(["compare", str(tmp_path), str(tmp_path)]) == 1
    lines = capsys.readouterr().err.strip().splitlines()
    assert len(lines) == 3
    assert all(line.startswith("oattn: ") for line in lines)


def test_a_copy_of_the_model_gets_a_report_that_names_the_copy(text_folder: Path, tmp_path: Path) -> None:
    copies = [tmp_path / place / "models" / "tiny-bert" for place in ("one", "two")]
    for copy in copies:
        shutil.copytree(text_folder, copy)
    first, second = (oh.analyze(copy, batches=2, tokens=16) for copy in copies)
    assert first.model.id == second.model.id == "models/tiny-bert"
    assert [first.model.source, second.model.source] == [str(copy) for copy in copies]
    shutil.rmtree(copies[0])  # a plan loads the model from where the report says
    assert len(second.plan(fraction=0.25, inputs=2, tokens=16).heads) == 3


def test_the_command_in_the_report_makes_it_again(text_folder: Path, tmp_path: Path) -> None:
    import shlex

    report = oh.analyze(str(text_folder), batches=2, tokens=16)
    words = shlex.split(report.provenance.command)
    assert words[0] == "oattn"
    assert main([*words[1:], "--out", str(tmp_path / "again")]) == 0
    assert Report.load(tmp_path / "again").fingerprint == report.fingerprint


def test_a_report_from_a_store_has_the_numbers_of_the_one_call(
    bert_folder: Path, inputs: list[dict[str, Any]], tmp_path: Path
) -> None:
    at_once = oh.analyze(bert_folder, data=inputs, kind="scores", theory=True)
    analyzer = oh.Analyzer(kind="scores", theory=True)
    loaded = oh.load_model(bert_folder)
    store = analyzer.capture(loaded, calibration_inputs(loaded, inputs, batches=4), tmp_path / "store")
    del loaded
    for source in (oh.AttentionStore.open(store.folder), str(store.folder)):  # as on another day, without the model
        later = analyzer.run(source)
        same = replace(later, provenance=replace(later.provenance, command=at_once.provenance.command))
        assert same.fingerprint == at_once.fingerprint


def test_one_store_serves_several_analyzers(bert_folder: Path, inputs: list[dict[str, Any]], tmp_path: Path) -> None:
    loaded = oh.load_model(bert_folder)
    with oh.capture(loaded, kinds=("scores", "probs"), store=tmp_path / "store") as store:
        for batch in calibration_inputs(loaded, inputs, batches=2):
            loaded.forward(batch)
    kinds = [oh.Analyzer(kind=kind).run(store).settings.kind for kind in ("scores", "probs")]
    assert kinds == ["scores", "probs"]
    with pytest.raises(InvalidInput, match=r"holds scores, probs and not logits"):
        oh.Analyzer(kind="logits").run(store)


def test_a_model_with_its_tokenizer_is_analysed_as_a_pair(text_folder: Path) -> None:
    loaded = oh.load_model(text_folder)
    report = oh.analyze((loaded.model, loaded.processor), batches=2, tokens=16)
    assert report.settings.tokens == 16
    with pytest.raises(InvalidInput, match=r"tuple is not a model .*\(module, tokenizer\)"):
        oh.analyze((1, 2, 3))


def test_batches_that_would_fill_the_disk_are_organised_and_given_back_as_they_come(
    bert_folder: Path, inputs: list[dict[str, Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OATTN_HOME", str(tmp_path / "at-once"))
    oh.analyze(bert_folder, data=inputs, out=tmp_path / "whole")
    monkeypatch.setenv("OATTN_HOME", str(tmp_path / "one-by-one"))
    monkeypatch.setattr(analyzer, "_AT_ONCE", 0)
    on_disk: list[int] = []

    def watch(stage: str, done: int, total: int) -> None:
        on_disk.append(len(list((tmp_path / "one-by-one").rglob("batch-*/*.safetensors"))))

    oh.analyze(bert_folder, data=inputs, out=tmp_path / "given-back", progress=watch)
    assert max(on_disk) == 2  # the first batch, for the controls, and the one at hand
    for name in FILES:
        assert (tmp_path / "whole" / name).read_bytes() == (tmp_path / "given-back" / name).read_bytes(), name


@pytest.mark.parametrize("damage", [None, "measured/*-00002.safetensors"])
def test_a_run_that_gave_batches_back_can_be_interrupted(
    bert_folder: Path, inputs: list[dict[str, Any]], home: Path, monkeypatch: pytest.MonkeyPatch, damage: str | None
) -> None:
    whole = oh.analyze(bert_folder, data=inputs).fingerprint
    shutil.rmtree(home)
    monkeypatch.setattr(analyzer, "_AT_ONCE", 0)

    def ctrl_c(stage: str, done: int, total: int) -> None:
        if (stage, done) == ("capture", 4):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        oh.analyze(bert_folder, data=inputs, progress=ctrl_c)
    if damage:
        next(home.glob(f"runs/*/{damage}")).write_bytes(b"")
    assert oh.analyze(bert_folder, data=inputs).fingerprint == whole
