"""Base and pruned model under the real lm-eval, mteb and sentence-transformers, on tasks and data of this folder."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from oattn_hub.cli import main
from oattn_hub.errors import FormatError, InvalidInput, LoadError, MissingDependency
from oattn_hub.hub import card_of, push_folder
from oattn_hub.models.load import load_model
from oattn_hub.pruning import PruningPlan, load_pruned
from oattn_hub.trials import (
    TrialScore,
    keep_scores,
    lm_eval_scores,
    mteb_scores,
    open_pair,
    sentence_scores,
)

# What the tools say about themselves and their own dependencies.
pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]

PAIRS = [
    ("A dog runs.", "A dog is running.", 5.0),
    ("A man eats.", "The sea is blue.", 0.0),
    ("Two cats sleep.", "Cats are sleeping on a sofa.", 4.0),
    ("Snow falls.", "A train arrives.", 0.5),
    ("He plays the guitar.", "A man plays an instrument.", 3.5),
    ("The shop is closed.", "The shop is open.", 2.0),
]
LOST = [(0, 1), (3, 2), (3, 7), (5, 11)]


@pytest.fixture(scope="module")
def embedder(tmp_path_factory: pytest.TempPathFactory, minilm_folder: Path) -> Path:
    folder = tmp_path_factory.mktemp("trials") / "minilm"
    plan = PruningPlan.from_heads(str(minilm_folder), LOST)
    return plan.apply(measure=False, compensate=False).save_pretrained(folder, verify=False)


@pytest.fixture
def pairs_file(tmp_path: Path) -> Path:
    file = tmp_path / "pairs.csv"
    with file.open("w", newline="") as stream:
        csv.writer(stream).writerows([("sentence1", "sentence2", "score"), *PAIRS])
    return file


def _cosines(model: Any, tokenizer: Any) -> list[float]:
    """Mean pooling and cosine, written out."""

    def embed(texts: list[str]) -> torch.Tensor:
        batch = tokenizer(texts, padding=True, return_tensors="pt")
        with torch.no_grad():
            hidden = model(**batch).last_hidden_state
        weights = batch["attention_mask"].unsqueeze(-1)
        return torch.nn.functional.normalize((hidden * weights).sum(1) / weights.sum(1))

    first, second = embed([pair[0] for pair in PAIRS]), embed([pair[1] for pair in PAIRS])
    return [float(value) for value in (first * second).sum(1)]


def test_sentence_transformers_asks_both_models(embedder: Path, pairs_file: Path, minilm_folder: Path) -> None:
    from scipy.stats import pearsonr

    scores = {score.metric: score for score in sentence_scores(open_pair(embedder), [pairs_file])}
    base, truth = load_model(minilm_folder), [pair[2] for pair in PAIRS]
    found = scores["pearson_cosine"]
    assert found.before == pytest.approx(pearsonr(_cosines(base.model, base.processor), truth).statistic, abs=1e-5)
    pruned = pearsonr(_cosines(load_pruned(embedder), base.processor), truth).statistic
    assert found.after == pytest.approx(pruned, abs=1e-5)
    assert found.before != found.after
    assert (found.task, found.samples, found.higher_is_better) == ("pairs", len(PAIRS), True)


def test_an_evaluator_of_ones_own(embedder: Path) -> None:
    from sentence_transformers.sentence_transformer.evaluation import TripletEvaluator

    triplets = TripletEvaluator(["a dog"], ["a puppy"], ["a tax form"], name="mine")
    (score,) = sentence_scores(open_pair(embedder), [triplets])
    assert (score.task, score.metric, score.before, score.after) == ("mine", "cosine_accuracy", 1.0, 1.0)


def test_mteb_asks_both_models(embedder: Path, pairs_file: Path) -> None:
    mteb = pytest.importorskip("mteb")
    import datasets
    from mteb.abstasks.sts import AbsTaskSTS

    class LocalPairs(AbsTaskSTS):
        metadata = mteb.TaskMetadata(
            name="LocalPairs", description="six pairs", dataset={"path": "local", "revision": "1"}, type="STS",
            eval_langs=["eng-Latn"], main_score="cosine_pearson",
        )  # fmt: skip
        min_score, max_score = 0, 5

        def load_data(self, **options: Any) -> None:
            rows = [dict(zip(("sentence1", "sentence2", "score"), pair, strict=True)) for pair in PAIRS]
            self.dataset, self.data_loaded = {"test": datasets.Dataset.from_list(rows)}, True

    pair = open_pair(embedder)
    (found,) = mteb_scores(pair, [LocalPairs()])
    expected = next(s for s in sentence_scores(pair, [pairs_file]) if s.metric == "pearson_cosine")
    assert (found.before, found.after) == pytest.approx((expected.before, expected.after), abs=1e-4)
    assert found.tool == f"mteb {mteb.__version__}"
    with pytest.raises(InvalidInput, match="mteb has no task 'NoSuchTask'"):
        mteb_scores(pair, ["NoSuchTask"])


@pytest.fixture(scope="module")
def writer(tmp_path_factory: pytest.TempPathFactory, save_word_tokenizer: Callable[[Path], int]) -> Path:
    """A pruned Llama of a few words, beside the base model it was made from."""
    import transformers

    place = tmp_path_factory.mktemp("writer")
    words = save_word_tokenizer(place / "base")
    ends = {"bos_token": "[CLS]", "eos_token": "[SEP]"}
    transformers.AutoTokenizer.from_pretrained(place / "base", **ends).save_pretrained(place / "base")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=words, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, initializer_range=0.5,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(place / "base")
    plan = PruningPlan.from_heads(str(place / "base"), [(0, 1), (1, 2), (1, 3)])
    plan.apply(measure=False, compensate=False).save_pretrained(place / "pruned", verify=False)
    return place / "pruned"


@pytest.fixture
def task_folder(tmp_path: Path) -> Path:
    """A task of lm-eval: which word goes on."""
    folder = tmp_path / "tasks"
    folder.mkdir()
    words = ["the", "and", "of", "to", "in", "that", "is", "not"]
    rows = [{"text": f"{a} {b}", "choices": [a, b], "answer": i % 2} for i, (a, b) in enumerate(pairwise(words))]
    (folder / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    task = {
        "task": "next_word",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(folder / "rows.jsonl")}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{text}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "answer",
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    }
    (folder / "next_word.yaml").write_text(json.dumps(task))  # JSON is YAML
    return folder


def _accuracy(model: Any, tokenizer: Any, folder: Path) -> float:
    """The share of rows whose right word gets the higher log probability, written out."""
    rows = [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]
    right = 0
    for row in rows:
        ids = tokenizer(row["text"], return_tensors="pt")["input_ids"]
        with torch.no_grad():
            last = model(ids).logits[0, -1]
        scores = [float(last[tokenizer.convert_tokens_to_ids(word)]) for word in row["choices"]]
        right += scores.index(max(scores)) == row["answer"]
    return right / len(rows)


def test_lm_eval_asks_both_models(writer: Path, task_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("lm_eval")
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", task_folder / "cache")
    pair = open_pair(writer)
    (score,) = lm_eval_scores(pair, ["next_word"], include=task_folder)
    for loaded, value in ((pair.base, score.before), (pair.pruned, score.after)):
        assert value == pytest.approx(_accuracy(loaded.model, loaded.processor, task_folder))
    assert score.before != score.after
    assert (score.task, score.metric, score.samples, score.higher_is_better) == ("next_word", "acc", 7, True)
    assert score.before_error is not None
    assert score.dataset is None


def test_a_task_that_is_not_there(writer: Path, embedder: Path, task_folder: Path) -> None:
    pytest.importorskip("lm_eval")
    with pytest.raises(InvalidInput, match="no task 'no_such_task'"):
        lm_eval_scores(open_pair(writer), ["no_such_task"], include=task_folder)
    with pytest.raises(InvalidInput, match="There is no folder"):
        lm_eval_scores(open_pair(writer), ["next_word"], include=task_folder / "nowhere")
    with pytest.raises(InvalidInput, match="models that write text"):
        lm_eval_scores(open_pair(embedder), ["next_word"], include=task_folder)


def test_scores_reach_card_and_metadata(embedder: Path, pairs_file: Path, tmp_path: Path, capsys: Any) -> None:
    from huggingface_hub import ModelCard

    assert main(["benchmark", str(embedder), "--pairs", str(pairs_file), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert {entry["metric"] for entry in printed} == {"pearson_cosine", "spearman_cosine"}
    keep_scores(
        embedder, [TrialScore("lm_eval 0.4.9", "arc_easy", "acc", 0.5, 0.4, True, 0.01, 0.02, 99, "allenai/ai2_arc")]
    )
    keep_scores(
        embedder, [TrialScore("lm_eval 0.4.13", "arc_easy", "acc", 0.5, 0.45, True, 0.01, 0.02, 99, "allenai/ai2_arc")]
    )
    card = card_of(embedder, "me/small")
    assert "| lm_eval 0.4.13 | arc_easy (99 examples) | acc ↑ | 0.5 ± 0.01 | 0.45 ± 0.02 |" in card
    assert "lm_eval 0.4.9" not in card  # measured again
    results = {(r.dataset_name, r.metric_type): r for r in ModelCard(card).data.eval_results}
    assert results["arc_easy", "acc"].metric_value == 0.45
    assert results["arc_easy", "acc"].dataset_type == "allenai/ai2_arc"
    assert results["pairs", "pearson_cosine"].metric_value == pytest.approx(printed[0]["after"])
    push_folder(embedder, "me/small", dry_run=tmp_path / "dry")
    assert (tmp_path / "dry/benchmarks.json").is_file()
    assert load_pruned(tmp_path / "dry") is not None


def test_scores_belong_to_the_checkpoint_they_were_measured_on(tmp_path: Path, writer: Path) -> None:
    """Saving another plan to the same folder leaves the old file behind, which is then no part of the checkpoint."""
    for heads in ([(0, 1)], [(0, 2)]):
        pruned = PruningPlan.from_heads(str(writer.parent / "base"), heads).apply(measure=False, compensate=False)
        folder = pruned.save_pretrained(tmp_path / "one", verify=False)
        assert "pairs" not in card_of(folder)
        keep_scores(folder, [TrialScore("lm_eval 1", "pairs", "acc", 1.0, 1.0)])
        assert "pairs" in card_of(folder)
    content = (folder / "benchmarks.json").read_text()
    (folder / "benchmarks.json").write_text(content.replace("1.0", "2.0"))
    with pytest.raises(FormatError, match="changed"):
        load_pruned(folder)


def test_what_is_wrong_is_said(embedder: Path, tmp_path: Path, capsys: Any) -> None:
    assert main(["benchmark", str(tmp_path), "--mteb", "X"]) == 1
    assert "no pruned checkpoint" in capsys.readouterr().err
    assert main(["benchmark", str(embedder)]) == 1
    assert "Nothing to try" in capsys.readouterr().err
    pair = open_pair(embedder)
    with pytest.raises(LoadError, match="There is no file"):
        sentence_scores(pair, [tmp_path / "none.csv"])
    (tmp_path / "bad.csv").write_text("a,b\n1,2\n")
    with pytest.raises(InvalidInput, match=r"has a, b; it needs the columns sentence1, sentence2, score"):
        sentence_scores(pair, [tmp_path / "bad.csv"])
    (tmp_path / "words.csv").write_text("sentence1,sentence2,score\na,b,high\n")
    with pytest.raises(InvalidInput, match="is no number"):
        sentence_scores(pair, [tmp_path / "words.csv"])


def test_another_base_model_is_refused(embedder: Path, writer: Path) -> None:
    with pytest.raises(InvalidInput, match="This plan is for"):
        open_pair(embedder, writer.parent / "base")


@pytest.mark.parametrize(("package", "call"), [("lm_eval", "lm_eval_scores"), ("mteb", "mteb_scores")])
def test_a_missing_tool_is_named(package: str, call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import oattn_hub.trials as trials

    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependency, match=r"pip install 'oattn_hub\[(lm-eval|mteb)\]'"):
        getattr(trials, call)(None, ["x"])


def test_starting_the_command_imports_no_tool() -> None:
    code = "import sys, oattn_hub.cli as c; c.build_parser(); print({'lm_eval', 'mteb'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
