"""Healing: the loss falls, only output projections move, and what is said about it was measured."""

from __future__ import annotations

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
from oattn_hub.pruning.heal import Look, heal, open_pruned
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
