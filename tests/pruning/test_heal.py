"""Healing: the loss falls, only output projections move, and what is said about it was measured."""

from __future__ import annotations

import copy
import json
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import oattn_hub as oh
from oattn_hub.cli import main
from oattn_hub.errors import InvalidInput
from oattn_hub.pruning import load_pruned
from oattn_hub.pruning.heal import Look, _Answer, heal, open_pruned
from oattn_hub.pruning.precision import in_fast_precision
from oattn_hub.pruning.tasks import divergence
from oattn_hub.pruning.words import weights_words


def batches(count: int, seed: int = 0) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    return [{"input_ids": torch.randint(3, 60, (1, 16), generator=generator)} for _ in range(count)]


@pytest.fixture
def llama() -> Any:
    """Heads that say something: the default initialisation leaves them nearly silent."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=60, num_key_value_heads=2, **sizes)).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(("v_proj.weight", "o_proj.weight")):
                weight.mul_(10)
    return model


@pytest.fixture(autouse=True)
def steady_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every look at the clock finds 20 ms gone: how many steps fit into the minutes does not depend on the machine."""
    ticks = count()
    monkeypatch.setattr("oattn_hub.pruning.heal.time.perf_counter", lambda: 0.02 * next(ticks))


def test_healing_lowers_the_loss(llama: Any, tmp_path: Path) -> None:
    pruned = oh.PruningPlan.from_heads(llama, [(0, 1), (1, 0), (1, 2)]).apply(llama, inputs=batches(1), measure=False)
    before = {name: value.clone() for name, value in pruned.model.state_dict().items()}
    looks: list[Look] = []
    options = {"data": batches(60), "minutes": 0.1, "rate": 3e-3, "inputs": None}
    healed = pruned.heal(llama, **options, report=looks.append)
    assert min(look.loss for look in looks) < 0.9 * looks[0].loss
    healing = healed.plan.healing
    assert healing is not None
    assert healing["before"] == looks[0].loss
    assert healing["after"] == min(look.loss for look in looks)
    for name, value in healed.model.state_dict().items():
        assert torch.equal(value, before[name]) == ("o_proj" not in name)
        assert torch.equal(pruned.model.state_dict()[name], before[name])
    assert all(parameter.requires_grad for parameter in healed.model.parameters())
    # the cost is that of the healed model itself
    cost = healed.plan.cost
    assert cost is not None
    with torch.no_grad():
        losses = [float(healed.model(**batch, labels=batch["input_ids"]).loss) for batch in batches(60)[20:47]]
    assert cost["after"] == pytest.approx(sum(losses) / len(losses), rel=1e-4)
    assert "were trained for" in weights_words(healed.plan)
    healed.save_pretrained(tmp_path)
    again = load_pruned(tmp_path)
    for name, value in again.state_dict().items():
        assert torch.equal(value, healed.model.state_dict()[name])
    assert open_pruned(tmp_path).plan.healing == healing


def test_low_rank_additions_are_trained_and_merged(llama: Any, tmp_path: Path) -> None:
    pytest.importorskip("peft")
    pruned = oh.PruningPlan.from_heads(llama, [(0, 1), (1, 0), (1, 2)]).apply(llama, inputs=batches(1), measure=False)
    before = {name: value.clone() for name, value in pruned.model.state_dict().items()}
    healed = pruned.heal(llama, data=batches(60), minutes=0.1, rate=1e-2, lora=2)
    healing = healed.plan.healing
    assert healing is not None
    assert healing["after"] < 0.9 * healing["before"]
    assert "rank 2 to 14 linear layers" in healing["trained"]
    after = healed.model.state_dict()
    assert after.keys() == before.keys()
    changed = {name for name in after if not torch.equal(after[name], before[name])}
    assert changed == {name for name in after if ".layers." in name and name.endswith("proj.weight")}
    for name in changed:
        assert torch.linalg.matrix_rank(after[name] - before[name], rtol=1e-3) <= 2
    assert all(parameter.requires_grad for parameter in healed.model.parameters())
    healed.save_pretrained(tmp_path)
    for name, value in load_pruned(tmp_path).state_dict().items():
        assert torch.equal(value, after[name])


def test_a_checkpoint_with_a_plain_config_is_healed_and_keeps_it(llama: Any, tmp_path: Path) -> None:
    """It was refused as one that "keeps the original shape (variant 'cut')"."""
    from transformers import LlamaForCausalLM

    even = [(0, 1), (0, 3), (1, 0), (1, 2)]
    pruned = oh.PruningPlan.from_heads(llama, even).apply(llama, inputs=batches(1), measure=False, compensate=False)
    pruned.save_pretrained(tmp_path / "cut")
    healed = heal(open_pruned(tmp_path / "cut"), llama, data=batches(30), minutes=0.05, rate=3e-3)
    healed.save_pretrained(tmp_path / "healed")
    again = LlamaForCausalLM.from_pretrained(tmp_path / "healed")
    assert again.config.num_attention_heads == 2
    for name, value in again.state_dict().items():
        assert torch.equal(value, healed.model.state_dict()[name])


def test_a_rate_that_is_too_high_is_lowered(llama: Any) -> None:
    """MiniLM's projections were torn apart by the usual rate, and no later look came back below the first one."""
    pruned = oh.PruningPlan.from_heads(llama, [(0, 1), (1, 0)]).apply(llama, inputs=batches(1), measure=False)
    looks: list[Look] = []
    heal(pruned, llama, data=batches(60), minutes=0.3, rate=1.0, report=looks.append)
    assert looks[1].loss > looks[0].loss
    assert min(look.loss for look in looks) < looks[0].loss


def test_what_does_not_help_is_not_kept(llama: Any) -> None:
    pruned = oh.PruningPlan.from_heads(llama, [(0, 1)]).apply(llama, inputs=batches(1), measure=False)
    healed = heal(pruned, llama, data=batches(30), minutes=0.02, rate=50.0, inputs=None)  # far too fast to learn
    healing = healed.plan.healing
    assert healing is not None
    assert healing["after"] <= healing["before"]
    if healing["after"] == healing["before"]:
        for name, value in healed.model.state_dict().items():
            assert torch.equal(value, pruned.model.state_dict()[name])


def rows_read(model: torch.nn.Module) -> list[tuple[int, ...]]:
    """Every row of tokens that the model reads from now on."""
    found: list[tuple[int, ...]] = []

    def note(module: torch.nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        ids = named["input_ids"] if "input_ids" in named else arguments[0]
        found.extend(tuple(row) for row in ids.tolist())

    model.register_forward_pre_hook(note, with_kwargs=True)
    return found


def test_the_unpruned_model_is_asked_once(llama: Any) -> None:
    """It ran anew in every step and every look, which was a third of the time of the one and half of the other."""
    pruned = oh.PruningPlan.from_heads(llama, [(0, 1), (1, 0)]).apply(llama, inputs=batches(1), measure=False)
    teacher = copy.deepcopy(llama)
    looks: list[Look] = []
    read: list[int] = []

    def look(one: Look) -> None:
        looks.append(one)
        read.append(len(asked))

    asked = rows_read(teacher)
    heal(pruned, teacher, data=batches(30), minutes=0.04, rate=3e-3, report=look)
    trained = asked[read[0] : read[-1]]
    assert looks[-1].step > 20
    assert len(trained) == len(set(trained)) <= 30


def test_what_is_kept_of_many_classes_tells_how_far_others_are() -> None:
    generator = torch.Generator().manual_seed(0)
    before, now = ({"logits": 4 * torch.randn((6, 900), generator=generator)} for _ in range(2))
    answer = _Answer.of(before)
    assert answer.outputs["logits"].shape == (6, 257)
    torch.testing.assert_close(answer.outputs["logits"].exp().sum(-1), torch.ones(6))
    assert float(answer.divergence(before)) == pytest.approx(0, abs=1e-5)
    whole = float(divergence(now, before))
    assert 0.5 * whole < float(answer.divergence(now)) <= whole
    few = {"logits": before["logits"][:, :300]}
    assert float(_Answer.of(few).divergence(now | {"logits": now["logits"][:, :300]})) == pytest.approx(
        float(divergence({"logits": now["logits"][:, :300]}, few))
    )


def test_what_reads_from_left_to_right_is_trained_on_its_longest_inputs(llama: Any) -> None:
    """Most steps went to texts of 128 tokens, and SmolLM2 was left with what it had lost at 512; then to few texts."""
    pruned = oh.PruningPlan.from_heads(llama, [(0, 1), (1, 0)]).apply(llama, inputs=batches(1), measure=False)
    ids = torch.randint(3, 60, (6000,), generator=torch.Generator().manual_seed(0)).numpy()
    teacher = copy.deepcopy(llama)
    asked = rows_read(teacher)
    seen: list[int] = []
    options = {"data": ids, "minutes": 0.02, "lengths": [16, 48]}
    healed = heal(pruned, teacher, **options, report=lambda _: seen.append(len(asked)))
    assert "20 contexts of 48 tokens" in weights_words(healed.plan)  # all of the first sixth of 6,000 tokens
    trained = asked[seen[0] : seen[-1]]
    assert {len(row) for row in trained} == {48}
    assert len(set(trained)) == 20


def test_short_numbers_are_trained_in_long_ones(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a processor that is slow with 16 bits, the minutes paid for a quarter of the steps."""
    monkeypatch.setattr("oattn_hub.pruning.precision.slower_than_32_bits", lambda dtype: True)
    llama.bfloat16()
    pruned = oh.PruningPlan.from_heads(llama, [(0, 1), (1, 0)]).apply(llama, inputs=batches(1), measure=False)
    before = {name: value.clone() for name, value in pruned.model.state_dict().items()}
    own = {name: value.data_ptr() for name, value in llama.state_dict().items()}
    looks: list[Look] = []
    healed = heal(pruned, llama, data=batches(60), minutes=0.05, rate=3e-3, report=looks.append)
    assert min(look.loss for look in looks) < 0.9 * looks[0].loss
    assert {name: value.data_ptr() for name, value in llama.state_dict().items()} == own
    for name, value in healed.model.state_dict().items():
        assert value.dtype == before[name].dtype == torch.bfloat16 or "inv_freq" in name
        assert torch.equal(value, before[name]) == ("o_proj" not in name)
    logits = {}
    for where in (llama, healed.model):
        with torch.no_grad(), in_fast_precision(where):
            logits[where] = where(**batches(1)[0]).logits
    assert {value.dtype for value in logits.values()} == {torch.float32}


def test_what_is_fast_enough_keeps_its_precision(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oattn_hub.pruning.precision.slower_than_32_bits", lambda dtype: False)
    llama.bfloat16()
    with in_fast_precision(llama):
        assert llama(**batches(1)[0]).logits.dtype == torch.bfloat16


def test_bad_healing(llama: Any) -> None:
    nothing = oh.PruningPlan.from_heads(llama, []).apply(llama, inputs=batches(1), measure=False)
    with pytest.raises(InvalidInput, match="nothing to heal"):
        heal(nothing, llama, data=batches(30))
    pruned = oh.PruningPlan.from_heads(llama, [(0, 1)]).apply(llama, inputs=batches(1), measure=False)
    with pytest.raises(InvalidInput, match="above 0"):
        heal(pruned, llama, data=batches(30), minutes=0)
    with pytest.raises(InvalidInput, match="lora is 0"):
        heal(pruned, llama, data=batches(30), lora=0)


def test_the_unpruned_model_may_be_pickles_if_the_caller_says_so(
    llama: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was pruned with `--allow-pickle` could not be healed; and steps were on stdout, in front of the JSON."""
    llama.config.architectures = ["LlamaForCausalLM"]  # which save_pretrained of a model would write
    llama.config.save_pretrained(tmp_path / "base")
    torch.save(llama.state_dict(), tmp_path / "base/pytorch_model.bin")
    pruned = oh.PruningPlan.from_heads(llama, [(0, 1)]).apply(llama, inputs=batches(1), measure=False)
    pruned.save_pretrained(tmp_path / "pruned", verify=False)
    np.save(tmp_path / "ids.npy", torch.randint(3, 60, (4000,)).numpy())
    words = ["heal", "pruned", "--model", "base", "--out", "healed", "--data", "ids.npy", "--tokens", "16", "--lengths",
             "16", "--inputs", "4", "--minutes", "0.005", "--json"]  # fmt: skip
    arguments = [str(tmp_path / word) if word in ("pruned", "base", "healed", "ids.npy") else word for word in words]
    assert main(arguments) == 1
    assert "only pickles" in capsys.readouterr().err
    assert main([*arguments, "--allow-pickle"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["out"] == str(tmp_path / "healed")
    assert "step" in printed.err


def test_command_line_says_what_is_missing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["heal", str(tmp_path), "--out", str(tmp_path / "out")]) == 1
    assert "is no pruned checkpoint" in capsys.readouterr().err
