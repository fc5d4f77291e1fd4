"""Labels from files: classes of texts and images, pairs of texts, transcripts; through the command line as users do."""

from __future__ import annotations

import csv
import json
import wave
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from oattn_hub.attention import calibration_inputs, load_model
from oattn_hub.cli import main
from oattn_hub.errors import InvalidInput, LoadError
from oattn_hub.inputs import labelled
from oattn_hub.inputs.labelled import IGNORED, class_ids
from oattn_hub.inputs.tables import rows
from oattn_hub.pruning.bench import Bench, Question
from oattn_hub.pruning.compensate import Compensator
from oattn_hub.pruning.tasks import LabelledTask, PairsTask, find_task

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 16}
WORDS = ("the and of to", "a in I you", "my that is not", "with his it the", "to a you my", "and in that his")


def save(model: Any, folder: Path) -> Path:
    torch.manual_seed(0)
    model.eval().save_pretrained(folder)
    return folder


@pytest.fixture
def text_classifier(tmp_path: Path, save_word_tokenizer: Callable[[Path], int]) -> Path:
    from transformers import BertConfig, BertForSequenceClassification

    n_words = save_word_tokenizer(tmp_path / "classifier")
    names = {0: "bad", 1: "good"}
    config = BertConfig(vocab_size=n_words, id2label=names, label2id={v: k for k, v in names.items()}, **SIZES)
    return save(BertForSequenceClassification(config), tmp_path / "classifier")


@pytest.fixture
def embedder(tmp_path: Path, save_word_tokenizer: Callable[[Path], int]) -> Path:
    from transformers import BertConfig, BertModel

    return save(BertModel(BertConfig(vocab_size=save_word_tokenizer(tmp_path / "emb"), **SIZES)), tmp_path / "emb")


@pytest.fixture
def image_classifier(tmp_path: Path) -> Path:
    from transformers import ViTConfig, ViTForImageClassification, ViTImageProcessor

    names = {0: "cat", 1: "polar bear"}
    config = ViTConfig(image_size=16, patch_size=8, id2label=names, label2id={v: k for k, v in names.items()}, **SIZES)
    ViTImageProcessor(size={"height": 16, "width": 16}).save_pretrained(tmp_path / "vit")
    return save(ViTForImageClassification(config), tmp_path / "vit")


@pytest.fixture
def speech_model(tmp_path: Path, save_word_tokenizer: Callable[[Path], int]) -> Path:
    from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

    folder = tmp_path / "whisper"
    n_words = save_word_tokenizer(folder)
    layers = {f"{side}_{what}": 2 for side in ("encoder", "decoder") for what in ("layers", "attention_heads")}
    layers |= {f"{side}_ffn_dim": 16 for side in ("encoder", "decoder")}
    special = {"bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 3, "decoder_start_token_id": 2}
    config = WhisperConfig(
        vocab_size=n_words,
        d_model=16,
        num_mel_bins=8,
        max_source_positions=50,
        **layers,
        **special,
        suppress_tokens=None,
    )
    WhisperFeatureExtractor(feature_size=8, chunk_length=1).save_pretrained(folder)
    return save(WhisperForConditionalGeneration(config), folder)


def write_table(path: Path, table: list[dict[str, Any]]) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(table[0]), delimiter="\t" if path.suffix == ".tsv" else ",")
        writer.writeheader()
        writer.writerows(table)
    return path


def texts(count: int) -> list[str]:
    return [" ".join((WORDS[n % 6], WORDS[n // 6 % 6], WORDS[n // 36 % 6])) for n in range(count)]


def images(folder: Path, names: tuple[str, ...] = ("cat", "Polar_Bear"), count: int = 10) -> Path:
    rng = np.random.default_rng(0)
    for name in names:
        (folder / name).mkdir(parents=True)
        for number in range(count):
            pixels = rng.integers(0, 255, (16, 16, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(folder / name / f"{number}.png")
    return folder


def sounds(folder: Path, count: int = 12) -> Path:
    folder.mkdir()
    rng = np.random.default_rng(0)
    for number in range(count):
        with wave.open(str(folder / f"{number}.wav"), "wb") as stream:
            stream.setnchannels(1)
            stream.setsampwidth(2)
            stream.setframerate(16_000)
            stream.writeframes(rng.integers(-9000, 9000, 8000, dtype=np.int16).tobytes())
        (folder / f"{number}.txt").write_text(WORDS[number % 6])
    return folder


def planned(model: Path, data: Path, folder: Path, capsys: pytest.CaptureFixture[str], *more: str) -> dict[str, Any]:
    """What `oattn prune` says about one named head, measured on labelled data."""
    assert main(["analyze", str(model), "--batches", "2", "--tokens", "8", "--out", str(folder)]) == 0
    capsys.readouterr()
    command = ["prune", str(folder), "--heads", "0.1", "--data", str(data), "--json", *more]
    assert main(command) == 0
    plan: dict[str, Any] = json.loads(capsys.readouterr().out)["plan"]
    return plan


def test_counted_metrics_are_not_asked_which_ranking_is_best(image_classifier: Path, tmp_path: Path) -> None:
    """The accuracy on some hundred images called one ranking 4 % worse than another by chance."""
    loaded, data = load_model(image_classifier), images(tmp_path / "images")
    bench = Bench(loaded, Question(metric="accuracy", data=data))
    assert (bench.choice.metric.name, bench.judge.metric.name) == ("accuracy", "loss")
    by_loss = Bench(loaded, Question(metric="loss", data=data))
    assert by_loss.judge is by_loss.choice
    found = [one.judge.increase(((0, 0),), one.compensator) for one in (bench, by_loss)]
    assert found[0] == pytest.approx(found[1])


@pytest.fixture
def filler(tmp_path: Path, save_word_tokenizer: Callable[[Path], int]) -> Path:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(vocab_size=save_word_tokenizer(tmp_path / "mlm"), max_position_embeddings=40, **SIZES)
    return save(BertForMaskedLM(config), tmp_path / "mlm")


@pytest.mark.parametrize(("apart", "alone"), [("", True), (" ", True), (" and ", False)])
def test_lines_of_a_text_file_are_whole_if_they_are_sequences(
    filler: Path, apart: str, alone: bool, tmp_path: Path
) -> None:
    """Reactions and antibodies come one a line; windows cut across them had twice the loss, and no head could go."""
    loaded = load_model(filler)
    lines = [apart.join(f"{number:010b}"[::-1]) for number in range(1, 41)]
    path = tmp_path / "sequences.txt"
    path.write_text("\n".join([*lines, lines[0], ""]))
    assert ("one by one" in calibration_inputs(loaded, path, 6, 12, labels=True).description) is alone
    found = labelled.find(loaded, path)
    assert (found.items if found else []) == (lines if alone else [])


@pytest.mark.parametrize("form", ["list", "csv"])
def test_texts_are_whole_for_a_model_that_fills_in_words(filler: Path, form: str, tmp_path: Path) -> None:
    """Windows cut from joined antibodies had a loss of 2.5 nats, whole ones of 0.6: a budget was about nonsense."""
    loaded, lines = load_model(filler), [f"the {text}" for text in texts(40)]
    data: Any = lines if form == "list" else write_table(tmp_path / "t.csv", [{"text": line} for line in lines])
    known = {tuple(loaded.processor(line)["input_ids"]) for line in lines}
    bench = Bench(loaded, Question(data=data))
    assert bench.lengths == [40]
    parts = (bench.roles.fit, bench.roles.rank, *bench.roles.choice, *bench.roles.check, *bench.roles.last)
    seen = [tuple(batch["input_ids"][0].tolist()) for part in parts for batch in part]
    assert len(seen) == len(set(seen)) == 40
    assert set(seen) == known
    assert bench.metric.name == "loss"
    assert np.isfinite(bench.check.values(((0, 1),), bench.compensator)).all()
    assert "one by one, at most 40 tokens each" in bench.roles.check[0].description
    cut = Bench(loaded, Question(data=data, lengths=[11, 12]))
    assert [max(batch["input_ids"].shape[1] for batch in part) for part in cut.roles.check] == [11, 12]


def test_refits_of_a_model_that_fills_in_words_see_masked_words(filler: Path) -> None:
    """Fitted to reactions as they are, the refit of one of RXNMapper's heads cost 8 % of the loss; masked ones, 2 %."""
    loaded = load_model(filler)
    bench = Bench(loaded, Question(data=[f"the {text}" for text in texts(40)]))
    heads = ((0, 1),)
    assert "15% of it masked" in str(bench.compensation("refit", bench.compensator.refits(heads)))
    for given, whole in zip(bench.fitted, bench.roles.fit, strict=True):
        hidden = given["input_ids"] == loaded.processor.mask_token_id
        assert torch.equal(hidden, given["input_ids"] != whole["input_ids"])
        assert hidden.sum() == max(1, round(0.15 * (whole["input_ids"].shape[1] - 2)))
    refits = [Compensator(loaded, bench.sites, inputs).refits(heads) for inputs in (bench.fitted, bench.roles.fit)]
    own, masked, whole = (next(iter(one.values())).weight for one in (bench.compensator.refits(heads), *refits))
    assert torch.equal(own, masked)
    assert not torch.allclose(own, whole)


def test_texts_that_a_model_cannot_read_are_called_so(filler: Path) -> None:
    """A model of antibodies was measured on Shakespeare, every word of it unknown, and nothing said so."""
    loaded = load_model(filler)
    assert "% of its tokens are unknown to the model" in calibration_inputs(loaded, None, 2, 12).description
    assert "unknown" not in calibration_inputs(loaded, [" ".join(texts(36))], 2, 12).description


def test_few_or_long_texts_are_one_stream_for_a_model_that_fills_in_words(filler: Path) -> None:
    loaded, long = load_model(filler), [" ".join(texts(36)[place:] + texts(36)[:place]) for place in range(10)]
    for data in (long, long[:2]):
        lengths = [batch["input_ids"].shape[1] for batch in calibration_inputs(loaded, data, 6, 12, labels=True)]
        assert lengths == [12] * 6


@pytest.mark.parametrize("form", ["csv", "tsv", "jsonl"])
def test_classes_of_texts(text_classifier: Path, form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = [{"text": text, "label": ("bad", "good")[number % 2]} for number, text in enumerate(texts(40))]
    path = tmp_path / f"reviews.{form}"
    if form == "jsonl":
        path.write_text("\n".join(map(json.dumps, table)))
    else:
        write_table(path, table)
    plan = planned(text_classifier, path, tmp_path / "run", capsys, "--metric", "accuracy")
    cost = plan["cost"]
    assert cost["metric"] == "accuracy"
    assert cost["n_inputs"] == 10
    loaded = load_model(text_classifier, task="text-classification")
    wanted = {table[n]["text"]: n % 2 for n in range(40)}
    right = []
    for batch in calibration_inputs(loaded, path, 10, 128, part=(0.5, 0.75), labels=True):
        text = loaded.processor.decode(batch["input_ids"][0], skip_special_tokens=True)
        assert batch["labels"].tolist() == [wanted[text]]
        with torch.no_grad():
            outputs = loaded.forward({name: value for name, value in batch.items() if name != "labels"})
        right.append(float(outputs.logits.argmax() == wanted[text]))
    assert cost["before"] == pytest.approx(np.mean(right))


def test_classes_of_images(image_classifier: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = planned(image_classifier, images(tmp_path / "photos"), tmp_path / "run", capsys)
    assert plan["cost"]["title"] == "cross entropy"
    assert plan["cost"]["n_inputs"] == 5
    assert "image files of photos" in plan["cost"]["verified_on"]


def test_other_folders_are_no_classes(image_classifier: Path, tmp_path: Path) -> None:
    loaded = load_model(image_classifier)
    inputs = calibration_inputs(loaded, images(tmp_path / "photos", ("monday", "tuesday", "friday")), 4, labels=True)
    assert all(set(batch) == {"pixel_values"} for batch in inputs)
    with pytest.raises(InvalidInput, match="'monday' is none of the 2 classes"):
        class_ids(loaded, ["monday", "cat"], strict=True)
    assert class_ids(loaded, ["0", "1"], strict=True) == {"0": 0, "1": 1}
    assert class_ids(loaded, ["cat", "polar-bear"], strict=True) == {"cat": 0, "polar-bear": 1}


def test_pairs_of_texts(embedder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    every = texts(60)
    table = [{"query": every[n], "passage": every[(7 * n + 3) % 60]} for n in range(40)]
    path = write_table(tmp_path / "pairs.csv", table)
    plan = planned(embedder, path, tmp_path / "run", capsys, "--metric", "mrr")
    assert plan["cost"]["title"] == "mean reciprocal rank of a text's partner"
    loaded = load_model(embedder)
    inputs = calibration_inputs(loaded, path, 10, 128, part=(0.5, 0.75), labels=True)
    assert isinstance(find_task(loaded, inputs), PairsTask)
    with torch.no_grad():
        sides = [
            torch.cat([loaded.model(input_ids=batch[name]).last_hidden_state.mean(1) for batch in inputs])
            for name in ("input_ids", "labels")
        ]
    similarity = torch.nn.functional.normalize(sides[0]) @ torch.nn.functional.normalize(sides[1]).T
    ranks = (similarity >= similarity.diagonal()[:, None]).sum(1)
    assert plan["cost"]["before"] == pytest.approx(float((1 / ranks).mean()), abs=0.02)  # ties round either way


def test_transcripts(speech_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = sounds(tmp_path / "clips")
    assert (
        main(["analyze", str(speech_model), "--task", "speech-seq2seq", "--batches", "2", "--out", str(tmp_path / "r")])
        == 0
    )
    capsys.readouterr()
    assert main(["prune", str(tmp_path / "r"), "--heads", "0.1", "--data", str(folder), "--json"]) == 0
    cost = json.loads(capsys.readouterr().out)["plan"]["cost"]
    assert cost["metric"] == "loss"
    assert "sounds with transcripts of clips" in cost["verified_on"]
    loaded = load_model(speech_model, task="speech-seq2seq")
    inputs = calibration_inputs(loaded, folder, 3, part=(0.5, 0.75), labels=True)
    assert isinstance(find_task(loaded, inputs), LabelledTask)
    losses = []
    for batch in inputs:
        assert batch["decoder_input_ids"][0, 0] == 2
        assert batch["labels"][0, -1] == 3
        assert torch.equal(batch["decoder_input_ids"][0, 1:], batch["labels"][0, :-1])
        with torch.no_grad():
            losses.append(float(loaded.model(**batch).loss))
    assert cost["before"] == pytest.approx(np.mean(losses), rel=1e-5)
    (folder / "metadata.csv").write_text("file_name,transcription\n0.wav,the and of\n1.wav,a in I\n")
    named = calibration_inputs(loaded, folder, 2, labels=True)
    assert sorted(batch["labels"].shape[1] for batch in named) == [4, 4]


def test_rows_without_a_label_count_for_nothing() -> None:
    logits = torch.tensor([[5.0, 0.0], [0.0, 5.0], [5.0, 0.0]])
    batch = {"labels": torch.tensor([[IGNORED, 1, 1]])}
    found = LabelledTask().measure([{"logits": logits}], [{"logits": logits}], [batch])
    assert found["accuracy"].tolist() == [0.5]
    expected = torch.nn.functional.cross_entropy(logits[1:], torch.tensor([1, 1]))
    assert found["loss"] == pytest.approx(float(expected))


def test_a_table_of_texts_is_text_for_other_models(embedder: Path, tmp_path: Path) -> None:
    path = write_table(tmp_path / "rows.csv", [{"id": number, "text": text} for number, text in enumerate(texts(30))])
    inputs = calibration_inputs(load_model(embedder), path, 3, 10, labels=True)
    assert [batch["input_ids"].shape for batch in inputs] == [(1, 10)] * 3
    assert "column text" in inputs.description


def test_bad_tables(text_classifier: Path, tmp_path: Path) -> None:
    loaded = load_model(text_classifier, task="text-classification")
    strange = write_table(tmp_path / "strange.csv", [{"foo": "1", "bar": "2"}])
    with pytest.raises(InvalidInput, match="columns bar, foo, and none of them is a text"):
        calibration_inputs(loaded, strange, 1, labels=True)
    wrong = write_table(tmp_path / "wrong.csv", [{"text": "the", "label": "ugly"}])
    with pytest.raises(InvalidInput, match="'ugly' is none of the 2 classes"):
        calibration_inputs(loaded, wrong, 1, labels=True)
    (tmp_path / "broken.jsonl").write_text('{"text": "a"}\n{broken')
    with pytest.raises(LoadError, match="Line 2"):
        rows(tmp_path / "broken.jsonl")
    (tmp_path / "empty.csv").write_text("text,label\n")
    with pytest.raises(InvalidInput, match="no rows"):
        rows(tmp_path / "empty.csv")
    twice = write_table(tmp_path / "twice.csv", [{"text": "the", "label": "bad"}] * 3)
    assert len(rows(twice)) == 1
