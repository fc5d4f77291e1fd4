"""The budget search: what it proposes, when it stops, and that its verification is its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import oattn_hub as oh
from oattn_hub.attention import CalibrationInputs, load_model
from oattn_hub.pruning import search
from oattn_hub.pruning.evaluation import Evaluator
from oattn_hub.pruning.search import Choice, CostModel, Step, cost_model, settle, walk
from oattn_hub.pruning.sites import head_sites
from oattn_hub.pruning.tasks import MaskedTask, RetrievalTask
from oattn_hub.report import Report


def batches(count: int, tokens: int = 16, seed: int = 0) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [{"input_ids": torch.randint(3, 60, (1, tokens), generator=generator)} for _ in range(count)]


@pytest.fixture
def loud_bert(tiny_bert: Any) -> Any:
    """A BERT whose heads say something: the default initialisation leaves them nearly silent."""
    with torch.no_grad():
        for layer in tiny_bert.encoder.layer:
            layer.attention.self.value.weight.mul_(10)
            layer.attention.output.dense.weight.mul_(10)
    return tiny_bert


@pytest.fixture
def report(loud_bert: Any) -> Report:
    return oh.analyze(loud_bert, data=batches(2), batches=2)


def evaluator(model: Any, count: int = 6) -> Evaluator:
    inputs = CalibrationInputs(tuple(batches(count)), "drawn")
    return Evaluator(load_model(model), head_sites(model), inputs, RetrievalTask())


def one_more(gone: Any) -> list[Any]:
    return [(*gone, (0, len(gone)))] if len(gone) < 12 else []


def test_a_cost_that_comes_back_does_not_end_the_search() -> None:
    costs = [0.0, 0.4, 2.0, 0.3, 1.5, 1.2, 0.9, 0.2, 1.1, 1.3, 1.4, 0.1, 0.0]
    path = walk(one_more, lambda gone: costs[len(gone)], budget=1.0)
    assert len(path) == 11  # three in a row above the budget
    found = settle(path, lambda gone: costs[len(gone)], budget=1.0)
    assert len(found.heads) == 7
    assert found.increase == 0.2


def test_of_several_blocks_the_cheapest_is_kept() -> None:
    def propose(gone: Any) -> list[Any]:
        return [(*gone, (layer, len(gone))) for layer in range(3)] if len(gone) < 2 else []

    path = walk(propose, lambda gone: float(sum(abs(layer - 1) for layer, _ in gone)), budget=1.0)
    assert path[-1].heads == ((1, 0), (1, 1))


def test_verification_steps_back_and_may_refuse_everything() -> None:
    path = [Step(tuple((0, head) for head in range(count)), 0.1 * count) for count in range(5)]
    looks: list[int] = []

    def verify(gone: Any) -> float:
        looks.append(len(gone))
        return 0.2 * len(gone)

    assert settle(path, verify, budget=0.35) == Step(((0, 0),), 0.2)
    assert looks == [3, 2, 1]  # four heads did not even pass the search
    assert settle(path, lambda gone: 9.0, budget=0.3) == Step((), 0.0)


def test_blocks_keep_floors_and_bundles() -> None:
    heads = [(layer, head) for layer in range(2) for head in range(3)]
    model = CostModel(np.arange(6.0), np.zeros((6, 6)))
    free, floored = Choice(heads), Choice(heads, floor=2)
    free.step = floored.step = 4
    assert model.block(free, ()) == ((0, 0), (0, 1), (0, 2), (1, 0))
    assert model.block(floored, ()) == ((0, 0), (1, 0))
    tied = Choice(heads, shared=[[0, 1]])
    assert model.block(tied, ((0, 0), (1, 0))) == ((0, 0), (1, 0), (0, 1), (1, 1))


def test_heads_that_replace_each_other_do_not_go_together() -> None:
    heads = [(0, head) for head in range(3)]
    choice = Choice(heads)
    choice.step = 2
    twins = np.array([[1.0, 1.0, 0.0], [1.0, 1.0, 0.0], [0.0, 0.0, 1.5]])
    assert CostModel(np.zeros(3), twins).block(choice, ()) == ((0, 0), (0, 2))


def test_slope_is_that_of_the_loss(loud_bert: Any) -> None:
    """By hand: turn one head down by a thousandth and see how the mean loss moves."""
    measured = evaluator(loud_bert)
    loss = RetrievalTask.metrics[-1]
    gone = ((1, 2),)
    slope = cost_model(measured, loss, gone).slope
    weight = loud_bert.encoder.layer[2].attention.output.dense.weight
    sides = []
    for factor in (0.999, 1.001):
        before = weight.detach().clone()
        with torch.no_grad():
            weight[:, 8:16] *= factor
        sides.append(float(measured.without(gone)["loss"].mean()))
        with torch.no_grad():
            weight.copy_(before)
    assert slope[2 * 4 + 1] == pytest.approx((sides[0] - sides[1]) / 0.002, rel=0.02)
    assert slope[1 * 4 + 2] == 0


def test_curvature_predicts_a_small_divergence(loud_bert: Any) -> None:
    """Turning one head down by a hundredth costs half the curvature times a hundredth squared."""
    measured = evaluator(loud_bert, 24)
    model = cost_model(measured, RetrievalTask.metrics[0], ())
    assert model.slope == pytest.approx(0, abs=1e-6)
    weight = loud_bert.encoder.layer[0].attention.output.dense.weight
    before = weight.detach().clone()
    with torch.no_grad():
        weight[:, :8] *= 0.9
    found = measured.without(())["divergence"].mean()
    with torch.no_grad():
        weight.copy_(before)
    assert found == pytest.approx(0.5 * model.curvature[0, 0] * 0.1**2, rel=0.35)


def test_inputs_in_one_stack_say_what_they_say_alone(loud_bert: Any) -> None:
    from transformers import BertConfig, BertForMaskedLM

    sizes = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 48}
    masked_lm = BertForMaskedLM(BertConfig(vocab_size=60, **sizes)).eval()
    inputs = [*batches(3), *batches(2, tokens=12)]
    for model, task in ((loud_bert, RetrievalTask()), (masked_lm, MaskedTask(1))):
        loaded = load_model(model)
        together = task.observe(loaded, inputs)
        for batch, found in zip(inputs, together, strict=True):
            for name, value in task.observe(loaded, [batch])[0].items():
                assert found[name] == pytest.approx(value, abs=1e-5)


def test_the_search_never_sees_what_verifies_it(
    report: Report, loud_bert: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = batches(12, seed=3)
    seen: list[torch.Tensor] = []

    def watched(*arguments: Any) -> list[Step]:
        hook = loud_bert.register_forward_pre_hook(
            lambda _, __, kwargs: seen.extend(kwargs["input_ids"]), with_kwargs=True
        )
        path = walk(*arguments)
        hook.remove()
        return path

    monkeypatch.setattr(search, "walk", watched)
    plan = report.plan(max_loss_increase=0.1, metric="loss", model=loud_bert, data=data)
    assert plan.cost is not None
    assert plan.cost["inputs"] == CalibrationInputs(tuple(data[4:]), "").fingerprint
    # Half an input begins with the tokens of the whole, or has them after its own first token.
    first = {tuple(row[:7].tolist()) for row in seen}
    assert any(tuple(batch["input_ids"][0, :7].tolist()) in first for batch in data[:4])
    assert not any(tuple(batch["input_ids"][0, :7].tolist()) in first for batch in data[4:])


def test_plans_keep_floors(report: Report, loud_bert: Any) -> None:
    plan = report.plan(max_loss_increase=9, model=loud_bert, data=batches(12), min_heads_per_layer=3)
    assert len(plan.heads) == 3
    assert {layer for layer, _ in plan.heads} == {0, 1, 2}
    assert plan.chosen_by["min_heads_per_layer"] == 3


def test_a_budget_that_nothing_meets_gives_an_empty_plan(report: Report, loud_bert: Any) -> None:
    plan = report.plan(max_loss_increase=0, model=loud_bert, data=batches(12))
    assert plan.heads == []
    assert plan.cost is not None
    assert plan.cost["after"] == plan.cost["before"]
    assert plan.cost["increase"] == plan.cost["low"] == plan.cost["high"] == 0
    assert plan.evaluations == plan.chosen_by["search_evaluations"] + plan.chosen_by["verifications"]


# one of each way to lay out heads; beit keeps tensors between calls, which must be fit for a backward pass
@pytest.mark.parametrize("name", ["gpt2", "llama", "t5", "albert", "beit", "swin", "whisper", "clip", "timm-vit"])
def test_a_budget_on_every_kind_of_model(zoo: Any, name: str) -> None:
    model, inputs = zoo.BY_NAME[name].build()
    data = [_redrawn(inputs, seed) for seed in range(8)]
    report = oh.analyze(model, data=data[:2], batches=2)
    plan = report.plan(max_loss_increase=0.3, model=model, data=data[2:], inputs=2)
    assert plan.heads
    assert plan.cost is not None
    assert plan.cost["increase"] <= 0.3
    pruned = plan.apply(model, inputs=data[:1], measure=False)  # compares the cut model with the masked one
    assert pruned.result.parameters_after < pruned.result.parameters_before


def _redrawn(inputs: dict[str, torch.Tensor], seed: int) -> dict[str, torch.Tensor]:
    """Other tokens, or the same picture or sound with a little noise; masks stay."""
    generator = torch.Generator().manual_seed(seed)
    drawn = dict(inputs)
    for name, value in inputs.items():
        if name.endswith("input_ids"):
            drawn[name] = torch.randint(3, 20, value.shape, generator=generator)
        elif value.is_floating_point():
            drawn[name] = value + 0.01 * torch.randn(value.shape, generator=generator)
    return drawn
