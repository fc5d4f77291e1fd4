"""From a report to a published checkpoint: the model is loaded, its sites are found and inputs are built once."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

import oattn_hub as oh
from oattn_hub.adapters import Adapter


@pytest.fixture
def report(save_word_tokenizer: Callable[[Path], int], tmp_path: Path) -> Any:
    from transformers import BertConfig, BertForMaskedLM

    folder = tmp_path / "bert"
    folder.mkdir()
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    torch.manual_seed(0)
    BertForMaskedLM(BertConfig(vocab_size=save_word_tokenizer(folder), **sizes)).save_pretrained(folder)
    return oh.analyze(str(folder), batches=2, tokens=16)


def test_work_is_done_once(report: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: Counter[str] = Counter()
    seen: list[Any] = []  # kept, so that no two models get one id

    def count(module: str, name: str, describe: Callable[..., str]) -> None:
        """Count the calls of a function, by whatever module of ours it is called."""
        original = getattr(sys.modules[module], name)

        def counting(*args: Any, **kwargs: Any) -> Any:
            done[describe(*args, **kwargs)] += 1
            return original(*args, **kwargs)

        for other in [each for each in sys.modules if each.startswith("oattn_hub")]:
            if getattr(sys.modules[other], name, None) is original:
                monkeypatch.setattr(sys.modules[other], name, counting)

    def sites(adapter: Adapter) -> Any:
        seen.append(adapter.model)
        done[f"sites of model {id(adapter.model)}"] += 1
        return found(adapter)

    for name in ("hub.push", "pruning.checkpoint", "pruning.planning"):  # whatever is imported when it is used
        import_module(f"oattn_hub.{name}")
    count("oattn_hub.models.load", "_load", lambda *_, **__: "model loaded")
    count("oattn_hub.inputs.calibration", "calibration_inputs", lambda _, *args, **kwargs: f"inputs {args} {kwargs}")
    count("oattn_hub.files.documents", "read_json", lambda path: f"read {Path(path).name}")
    found: Any = vars(Adapter)["sites"].func
    monkeypatch.setattr(vars(Adapter)["sites"], "func", sites)

    pruned = report.plan(fraction=0.25, inputs=4, lengths=[64]).apply()
    pruned.push_to_hub("me/bert-pruned", license="mit", dry_run=tmp_path / "out")

    assert done.pop("model loaded") == 1
    assert done.pop("read oattn_pruned.json") == 1  # by the proof that it loads; the card has what was written
    assert {name: times for name, times in done.items() if times > 1 and not name.startswith("read")} == {}
    assert any(name.startswith("sites") for name in done)
    assert any(name.startswith("inputs") for name in done)
