"""Evaluation and plans: inputs never overlap, numbers are those of the masked model, budgets hold."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import oattn_hub as oh
from oattn_hub.attention import CalibrationInputs, load_model
from oattn_hub.cli import main
from oattn_hub.errors import InvalidInput
from oattn_hub.pruning import evaluate
from oattn_hub.pruning.heads import lowest
from oattn_hub.pruning.tasks import CausalTask, EmbeddingTask, LabelledTask, MaskedTask, RetrievalTask, find_task
from oattn_hub.report import Report
from oattn_hub.report.evaluation import EvaluationSection

FRACTIONS = (0.25, 0.5)


def batches(count: int, tokens: int = 16, seed: int = 0) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [{"input_ids": torch.randint(3, 60, (1, tokens), generator=generator)} for _ in range(count)]


@pytest.fixture(scope="module")
def bert() -> Any:
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}
    model = BertModel(BertConfig(vocab_size=60, **sizes)).eval()
    with torch.no_grad():
        for layer in model.encoder.layer:
            layer.attention.self.value.weight.mul_(10)
            layer.attention.output.dense.weight.mul_(10)
    return model


@pytest.fixture(scope="module")
def report(bert: Any, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """A report on the tiny model, saved so that it can be loaded again from its folder."""
    folder = tmp_path_factory.mktemp("model")
    bert.save_pretrained(folder)
    found = oh.analyze(folder, data=batches(2), batches=2)
    return found


@pytest.fixture(scope="module")
def evaluated(report: Report, bert: Any) -> Report:
    section = evaluate(report, bert, "all", data=batches(12), fractions=FRACTIONS)
    return report.with_evaluation(section)


def test_all_scores_are_measured(evaluated: Report) -> None:
    section = evaluated.evaluation
    assert section is not None
    assert len(section.scores) == 10
    assert [score.auc for score in section.scores] == sorted(score.auc for score in section.scores)
    for score in section.scores:
        assert score.auc_low <= score.auc <= score.auc_high
        assert score.curves["divergence"].mean[0] == pytest.approx(0, abs=1e-6)
    assert section.score("ablation").spearman == pytest.approx(1)
    assert section.calibration_fingerprint != section.evaluation_fingerprint


def test_a_cost_alone_has_an_interval_over_inputs(evaluated: Report) -> None:
    section = evaluated.evaluation
    assert section is not None
    ablation = section.score("ablation")
    for value, low, high in zip(ablation.values, ablation.low, ablation.high, strict=True):
        assert low < value < high
    assert section.intervals("ablation")[section.heads[0]] == (ablation.low[0], ablation.high[0])
    assert section.intervals("weight") == {}  # no mean over inputs


def test_section_survives_json_and_report(evaluated: Report, tmp_path: Path) -> None:
    section = evaluated.evaluation
    assert section is not None
    assert EvaluationSection.from_json(json.loads(json.dumps(section.to_json()))) == section
    evaluated.save(tmp_path)
    assert Report.load(tmp_path).evaluation == section
    assert section.findings
    assert any("share nothing" in finding for finding in section.findings)


def test_figures(evaluated: Report) -> None:
    from matplotlib.figure import Figure

    section = evaluated.evaluation
    assert section is not None
    axes = section.draw_cost_of_removal(Figure().add_subplot())
    assert len(axes.get_lines()) == 5 + 1  # the five best curves, and the line at zero


def test_curve_is_the_masked_models_divergence(evaluated: Report, bert: Any) -> None:
    """By hand: remove the lowest quarter by weight, run the model, compare embeddings of both halves."""
    section = evaluated.evaluation
    assert section is not None
    values = section.values("weight")
    removed = sorted(values, key=values.__getitem__)[:3]
    held_out = batches(12)[4:]
    task = RetrievalTask()
    loaded = load_model(bert)
    before = task.observe(loaded, held_out)
    with oh.PruningPlan.from_heads(bert, removed).masked(bert):
        after = task.observe(loaded, held_out)
    cosine = [float(torch.nn.functional.cosine_similarity(a["embedding"], b["embedding"]).mean())
              for a, b in zip(before, after, strict=True)]  # fmt: skip
    assert section.cost_at("weight", 0.25) == pytest.approx(1 - np.mean(cosine), rel=1e-4)


def test_overlap_is_refused(bert: Any) -> None:
    same = batches(6)
    with pytest.raises(InvalidInput, match="used both"):
        evaluate(None, bert, ["weight"], data=same, calibration=same[3:])
    with pytest.raises(InvalidInput, match="too few"):
        evaluate(None, bert, ["weight"], data=same[:3])
    with pytest.raises(InvalidInput, match="at least 5"):
        evaluate(None, bert, ["weight"], data=same, seeds=2)


def test_another_model_than_the_reports_is_refused(report: Report) -> None:
    """It was measured for minutes, and its costs joined a report of other heads."""
    from transformers import BertConfig, BertModel

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    other = BertModel(BertConfig(vocab_size=60, **sizes)).eval()
    with pytest.raises(InvalidInput, match="12 heads in 3 layers, this model 8 in 2"):
        evaluate(report, other, ["weight"], data=batches(12), fractions=FRACTIONS)
    with pytest.raises(InvalidInput, match="12 heads in 3 layers, this model 8 in 2"):
        report.validate(other, [batches(12)], batches=4, draws=5, inputs=4)


def test_tasks_are_found(zoo: Any) -> None:
    from transformers import BertConfig, BertForMaskedLM, LlamaConfig, LlamaForCausalLM

    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "vocab_size": 60,
    }
    inputs = CalibrationInputs(tuple(batches(2)), "")
    assert isinstance(find_task(load_model(LlamaForCausalLM(LlamaConfig(**sizes))), inputs), CausalTask)
    masked_lm = replace(load_model(BertForMaskedLM(BertConfig(**sizes))), processor=_Tokenizer())
    assert isinstance(find_task(masked_lm, inputs), MaskedTask)
    model, image = zoo.BY_NAME["timm-vit"].build()
    assert type(find_task(load_model(model), CalibrationInputs((image,), ""))).__name__ == "Task"
    labelled = {**image, "labels": torch.tensor([1])}
    assert isinstance(find_task(load_model(model), CalibrationInputs((labelled,), "")), LabelledTask)


class _Tokenizer:
    mask_token_id = 1


def test_causal_loss_is_the_models_own() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "intermediate_size": 48,
        "vocab_size": 60,
    }
    model = LlamaForCausalLM(LlamaConfig(**sizes)).eval()
    inputs, task = batches(3), CausalTask()
    seen = task.observe(load_model(model), inputs)
    with torch.no_grad():
        expected = [float(model(**batch, labels=batch["input_ids"]).loss) for batch in inputs]
    assert task.measure(seen, seen, inputs)["loss"] == pytest.approx(expected, rel=1e-5)


def test_masked_loss_and_accuracy_on_a_known_answer() -> None:
    task, inputs = MaskedTask(mask_token_id=1), batches(2)
    perfect = [{"logits": 100.0 * torch.nn.functional.one_hot(batch["input_ids"][0], 60).float()} for batch in inputs]
    assert task.measure(perfect, perfect, inputs)["loss"] == pytest.approx(0, abs=1e-5)
    labelled = [{"labels": torch.tensor([0])}, {"labels": torch.tensor([1])}]
    outputs = [{"logits": torch.tensor([[5.0, 0.0]])}] * 2
    assert LabelledTask().measure(outputs, outputs, labelled)["accuracy"].tolist() == [1.0, 0.0]


def test_short_texts_are_masked_more_than_once() -> None:
    """64 reactions of 40 tokens had six masked tokens each: no head could go, though one of them cost nothing."""
    from transformers import BertConfig, BertForMaskedLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48}
    model = BertForMaskedLM(BertConfig(vocab_size=60, initializer_range=0.5, **sizes)).eval()
    task, inputs = MaskedTask(mask_token_id=1), [*batches(3, tokens=42), *batches(1, tokens=202)]
    once = task.observe(load_model(model), inputs)
    only = task.about(task.primary)
    seen = only.observe(load_model(model), inputs)
    for batch, now, before in zip(inputs, seen, once, strict=True):
        ids = batch["input_ids"][0]
        count, draws = (30, 2) if len(ids) > 200 else (6, 6)
        order = 1 + torch.randperm(len(ids) - 2, generator=torch.Generator().manual_seed(int(ids.sum())))
        losses = []
        for draw in range(draws):
            places, masked = order[draw * count : (draw + 1) * count], ids.clone()
            masked[places] = 1
            with torch.no_grad():
                said = model(input_ids=masked[None]).logits[0, places]
            losses.append(torch.nn.functional.cross_entropy(said, ids[places]))
        assert float(now["loss"]) == pytest.approx(float(torch.stack(losses).mean()), rel=1e-5)
        assert task.measure([before], [before], [batch])["loss"] == pytest.approx(float(losses[0]), rel=1e-5)


def test_plan_by_fraction_takes_what_was_measured_best(evaluated: Report) -> None:
    plan = evaluated.plan(fraction=0.25)
    section = evaluated.evaluation
    assert section is not None
    assert len(plan.heads) == 3
    assert plan.score == section.best(0.25).name
    assert plan.cost is not None
    assert plan.cost["after"] == pytest.approx(
        min(section.cost_at(s.name, 0.25) for s in section.scores if s.name != "random")
    )
    assert evaluated.plan(fraction=0.25, score="haar").score == "haar"


def test_plan_within_a_budget_was_measured(evaluated: Report, bert: Any) -> None:
    plan = evaluated.plan(max_loss_increase=0.2, metric="mrr", model=bert, data=batches(12, seed=3))
    assert plan.cost is not None
    assert plan.cost["increase"] <= 0.2
    assert (
        0 < plan.evaluations <= 6 + 2 * 12 + 6 + 1
    )  # trials, a head a round by two rankings, verifications, the last look
    assert plan.cost["low"] <= plan.cost["increase"] <= plan.cost["high"]
    assert plan.chosen_by["max_loss_increase"] == 0.2
    nothing = evaluated.plan(max_loss_increase=0.0, metric="loss", model=bert, data=batches(12, seed=3), score="weight")
    assert nothing.cost is not None
    assert nothing.cost["metric"] == "loss"
    assert nothing.cost["increase"] <= 0
    with pytest.raises(InvalidInput, match="divergence, mrr, loss"):
        evaluated.plan(max_loss_increase=0.1, metric="bleu", model=bert, data=batches(12, seed=3))


def test_an_embedders_budget_is_about_its_embeddings(evaluated: Report, bert: Any) -> None:
    plan = evaluated.plan(max_loss_increase=0.01, model=bert, data=batches(12, seed=3))
    assert plan.cost is not None
    assert plan.cost["metric"] == "divergence"
    assert plan.cost["increase"] <= 0.01
    assert len(plan.heads) < len(evaluated.heads)


def test_budget_cost_is_that_of_the_masked_model(evaluated: Report, bert: Any) -> None:
    data = batches(12, seed=3)
    plan = evaluated.plan(max_loss_increase=0.05, metric="loss", model=bert, data=data, compensate=False)
    loaded, task, held_out = load_model(bert), RetrievalTask(), data[4:10]
    with plan.masked(bert):
        seen = task.observe(loaded, held_out)
    assert plan.cost is not None
    assert plan.cost["after"] == pytest.approx(task.measure(seen, seen, held_out)["loss"].mean(), rel=1e-4)


def test_costs_of_a_fraction_and_of_named_heads_are_their_own(evaluated: Report, bert: Any) -> None:
    """What is not measured on exactly these heads is not said: today's curve ends at 50 %, and heads can be any."""
    data = batches(18, seed=3)
    loaded, task, held_out = load_model(bert), EmbeddingTask(), data[6:14]
    whole = task.observe(loaded, held_out)
    for options in ({"fraction": 1.0}, {"fraction": 0.6}, {"heads": [(0, 1), (2, 3)]}):
        plan = evaluated.plan(**options, model=bert, data=data, compensate="none")
        with plan.masked(bert):
            seen = task.observe(loaded, held_out)
        assert plan.cost is not None
        assert plan.cost["after"] == pytest.approx(task.divergence(seen, whole).mean(), rel=1e-4)
        assert plan.cost["low"] <= plan.cost["increase"] <= plan.cost["upper"]
        assert plan.cost["last_look"][0]["n_inputs"] == 4
    elsewhere = evaluated.plan(fraction=0.6)  # no tokenizer, so no inputs of its own
    assert elsewhere.cost is None
    assert "tokenizer" in elsewhere.chosen_by["not_measured"]


def test_compensation_is_used_where_it_was_measured_to_help(evaluated: Report, bert: Any) -> None:
    data = batches(30, seed=3)
    plan = evaluated.plan(heads=[(0, 1), (1, 2), (2, 3)], model=bert, data=data)
    costs = {
        kind: evaluated.plan(heads=plan.heads, model=bert, data=data, compensate=kind)
        for kind in ("refit", "bias", "none")
    }
    chosen = plan.compensation["kind"] if plan.compensation else "none"
    assert plan.cost == costs[chosen].cost
    assert costs["none"].compensation is None
    assert costs["refit"].compensation is not None
    assert costs["refit"].compensation["layers"] == 3
    pruned = plan.apply(bert, inputs=data[:1], measure=False)
    assert pruned.plan.cost == plan.cost  # applied with what it was measured with
    assert plan.apply(bert, inputs=data[:1], measure=False, compensate="none").plan.cost == (
        plan.cost if chosen == "none" else None
    )


def test_plan_is_applied_to_the_reports_own_model(evaluated: Report, bert: Any, tmp_path: Path) -> None:
    plan = evaluated.plan(fraction=0.25)
    pruned = plan.apply(inputs=batches(1))
    assert pruned.result.heads_after == 9
    assert pruned.result.flops_after is not None
    assert pruned.result.flops_before is not None
    assert pruned.result.flops_after < pruned.result.flops_before
    with torch.no_grad(), plan.masked(bert):
        assert (pruned.model(**batches(1)[0])[0] - bert(**batches(1)[0])[0]).abs().max() <= 1e-5


def test_without_an_evaluation_or_a_model_the_score_must_be_named(report: Report) -> None:
    elsewhere = replace(report, model=replace(report.model, source="/nowhere/at/all"))
    with pytest.raises(InvalidInput, match="name a score"):
        elsewhere.plan(fraction=0.25)
    plan = elsewhere.plan(fraction=0.25, score="haar")
    expected = sorted(elsewhere.heads, key=lambda record: (record.rank, record.layer, record.head))[:3]
    assert plan.heads == sorted((record.layer, record.head) for record in expected)


def test_bad_plans(report: Report) -> None:
    with pytest.raises(InvalidInput, match="Give one of"):
        report.plan()
    with pytest.raises(InvalidInput, match="Give one of"):
        report.plan(fraction=0.1, heads=[(0, 1)])
    with pytest.raises(InvalidInput, match="between 0 and 1"):
        report.plan(fraction=20)
    with pytest.raises(InvalidInput, match="no head"):
        report.plan(heads=[(9, 9)])
    with pytest.raises(InvalidInput, match=r"0\.1 is named both to go and to stay"):
        report.plan(heads=[(0, 1), (0, 2)], keep=[(0, 1)])
    assert report.plan(heads=[(1, 2), (0, 3)]).heads == [(0, 3), (1, 2)]


def test_floors_and_shared_layers() -> None:
    values = {(layer, head): 10.0 * layer + head for layer in range(2) for head in range(3)}
    assert lowest(values, 4) == [(0, 0), (0, 1), (0, 2), (1, 0)]
    assert lowest(values, 4, min_heads_per_layer=1) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert lowest(values, 3, shared=[[0, 1]]) == [(0, 0), (1, 0)]
    assert lowest(values, 0) == []


def test_command_line(report: Report, bert: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, out = tmp_path / "report", tmp_path / "pruned"
    section = evaluate(report, bert, ["haar", "output"], data=batches(12), fractions=FRACTIONS)
    report.with_evaluation(section).save(folder)
    assert main(["prune", str(folder), "--fraction", "0.25", "--out", str(out), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["result"]["heads_after"] == 9
    assert EvaluationSection.from_json(json.loads((out / "evaluation.json").read_text())) == section
    with torch.no_grad():
        assert load_model(out).model(**batches(1)[0])[0].shape == (1, 16, 32)
    assert main(["prune", str(folder)]) == 1
    assert "--fraction 0.2" in capsys.readouterr().err
    assert main(["prune", str(folder), "--budget", "lots"]) == 1
    assert "1% or 0.01" in capsys.readouterr().err
    assert main(["prune", str(folder), "--heads", "0.1,2.3", "--plan", str(tmp_path / "plan.json")]) == 0
    assert oh.PruningPlan.load_file(tmp_path / "plan.json").heads == [(0, 1), (2, 3)]
