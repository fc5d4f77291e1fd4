"""Heads while they learn: what is logged, what is kept, and that training does not notice."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainerCallback, TrainingArguments

import oattn_hub as oh
from oattn_hub.errors import InvalidInput

NUMBERS = ("entropy", "entropy/layer_0", "entropy/layer_1", "network_entropy", "stability")
DRIFTS = ("drift", "tree_drift", "drift_from_start", "tree_drift_from_start")


def _bert() -> BertForSequenceClassification:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2, "num_attention_heads": 4}
    return BertForSequenceClassification(BertConfig(vocab_size=30, max_position_embeddings=16, **sizes))


def _inputs(count: int = 3) -> list[dict[str, torch.Tensor]]:
    generator = torch.Generator().manual_seed(1)
    return [{"input_ids": torch.randint(30, (1, 12), generator=generator)} for _ in range(count)]


class _Logger(TrainerCallback):
    """Stands for TensorBoard and the like, which the Trainer calls before its users' callbacks."""

    def __init__(self) -> None:
        self.seen: list[dict[str, Any]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **parts: Any) -> None:
        self.seen.append({"step": state.global_step, **logs})


def _train(folder: Path, *callbacks: TrainerCallback, report_to: list[str] | None = None) -> Trainer:
    model = _bert()
    rows = [{"input_ids": row["input_ids"][0], "labels": number % 2} for number, row in enumerate(_inputs(8))]
    arguments = TrainingArguments(
        str(folder), max_steps=4, per_device_train_batch_size=2, logging_steps=3, learning_rate=0.05,
        report_to=report_to or [],
        save_strategy="no", use_cpu=True, disable_tqdm=True, dataloader_pin_memory=False, seed=0,
    )  # fmt: skip
    trainer = Trainer(model, arguments, train_dataset=rows, callbacks=list(callbacks))
    trainer.train()
    return trainer


def test_the_trainers_loggers_get_the_numbers_and_training_does_not_notice(tmp_path: Path) -> None:
    logger, watch = _Logger(), oh.HeadWatch(_inputs(), every=2, out=tmp_path / "heads")
    watched = _train(tmp_path / "a", logger, watch)
    plain = _train(tmp_path / "b")
    for name, weight in plain.model.state_dict().items():
        assert torch.equal(weight, watched.model.state_dict()[name]), name

    assert [moment.step for moment in watch.moments] == [0, 2, 4]
    sent = {entry["step"]: entry for entry in logger.seen if "heads/entropy" in entry}
    assert set(sent) == {2, 4}
    for step, moment in zip((2, 4), watch.moments[1:], strict=True):
        assert {f"heads/{name}" for name in (*NUMBERS, *DRIFTS)} == set(moment.logged)
        assert moment.logged.items() <= sent[step].items()
        assert any(moment.logged.items() <= entry.items() for entry in watched.state.log_history)
    assert watch.moments[2].logged["heads/drift_from_start"] > 0
    history = json.loads((tmp_path / "heads/history.json").read_text())
    assert [entry["step"] for entry in history] == [0, 2, 4]
    page = (tmp_path / "heads/training.html").read_text()  # written when training ended
    assert "3 moments, steps 0 to 4" in page
    kept = oh.Report.load(tmp_path / "heads/step-000004")
    assert kept.fingerprint == watch.moments[2].report.fingerprint


def test_a_loop_of_ones_own(tmp_path: Path) -> None:
    model = _bert()
    model.bert.embeddings.eval()  # frozen on purpose: stays so
    model.bert.encoder.train()
    watch = oh.HeadWatch(_inputs(), every=2)
    logged = [watch.step(model, step) for step in range(4)]
    assert [numbers is not None for numbers in logged] == [True, False, True, False]
    assert logged[0] is not None
    assert logged[2] is not None
    assert set(logged[0]) == {f"heads/{name}" for name in NUMBERS}
    # nothing was learnt between the two moments, so nothing drifted
    assert [logged[2][f"heads/{name}"] for name in DRIFTS] == pytest.approx([0.0] * 4)
    assert {name: logged[2][name] for name in logged[0]} == logged[0]
    assert (model.bert.embeddings.training, model.bert.encoder.training) == (False, True)
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_the_numbers_are_those_of_analyze() -> None:
    model = _bert().eval()
    moment = oh.HeadWatch(_inputs(), batches=3).observe(model, 0)
    report = oh.analyze(model, _inputs(), batches=3)
    assert [head.entropy for head in moment.report.heads] == pytest.approx([head.entropy for head in report.heads])
    assert moment.logged["heads/network_entropy"] == pytest.approx(report.network[0].entropy)


def test_a_tokenizer_and_texts(tmp_path: Path, save_word_tokenizer: Callable[[Path], int]) -> None:
    from transformers import AutoTokenizer

    save_word_tokenizer(tmp_path)
    texts = ["the and of to a in I you my that is not with his it " * 4]
    watch = oh.HeadWatch(texts, batches=2, tokens=8, processor=AutoTokenizer.from_pretrained(tmp_path))
    assert watch.observe(_bert(), 0).report.settings.tokens == 8


def test_a_model_of_ones_own_with_two_groups() -> None:
    model = nn.Transformer(16, 2, 1, 1, 16, batch_first=True)
    data = [{"src": torch.randn(1, 6, 16), "tgt": torch.randn(1, 5, 16)} for _ in range(2)]
    logged = oh.HeadWatch(data).observe(model, 0).logged
    assert {name.split("/")[1] for name in logged} >= {"encoder", "decoder", "cross"}


def test_a_failing_capture_leaves_the_model_as_it_was() -> None:
    model = _bert().train()
    with pytest.raises((TypeError, ValueError)):
        oh.HeadWatch([{"nonsense": torch.zeros(1, 3)}]).observe(model, 0)
    assert all(module.training for module in model.modules())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_every_is_a_count() -> None:
    with pytest.raises(InvalidInput, match="every is 0"):
        oh.HeadWatch(every=0)


def test_before_the_first_moment_there_is_no_page(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="Nothing was measured yet"):
        oh.HeadWatch(_inputs()).write_page(tmp_path / "page.html")


def _from_tensorboard(folder: Path) -> dict[int, float]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder))
    found.Reload()
    return {event.step: event.value for event in found.Scalars(f"train/{DRIFTED}")}


def _from_wandb(folder: Path) -> dict[int, float]:
    import wandb

    last = {4: wandb.run.summary[f"train/{DRIFTED}"]}  # offline it tells the last value only
    wandb.finish()
    return last


def _from_trackio(folder: Path) -> dict[int, float]:
    from trackio.sqlite_storage import SQLiteStorage

    (project,) = SQLiteStorage.get_projects()
    (run,) = SQLiteStorage.get_runs(project)
    rows = [row for row in SQLiteStorage.get_logs(project, run) if f"train/{DRIFTED}" in row]
    return dict(zip((2, 4), (row[f"train/{DRIFTED}"] for row in rows), strict=True))  # it counts steps its own way


def _from_mlflow(folder: Path) -> dict[int, float]:
    import mlflow

    client = mlflow.MlflowClient()
    (run,) = client.search_runs([experiment.experiment_id for experiment in client.search_experiments()])
    return {metric.step: metric.value for metric in client.get_metric_history(run.info.run_id, DRIFTED)}


DRIFTED = "heads/drift_from_start"
CLIENTS = {
    "tensorboard": _from_tensorboard,
    "wandb": _from_wandb,
    "trackio": _from_trackio,
    "mlflow": _from_mlflow,
}


@pytest.mark.filterwarnings("default")  # of the clients about themselves
@pytest.mark.parametrize("client", CLIENTS)
def test_the_real_loggers_get_the_numbers(client: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Trainer calls its own loggers before its users' callbacks; each is the real client, its files read again."""
    pytest.importorskip(client)
    board = tmp_path / "board"
    places = {"TENSORBOARD_LOGGING_DIR": board, "TRACKIO_DIR": board, "WANDB_DIR": tmp_path, "WANDB_MODE": "offline"}
    places |= {"MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/runs.db", "WANDB_SILENT": "true"}
    for name, value in places.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.chdir(tmp_path)
    watch = oh.HeadWatch(_inputs(), every=2)
    _train(tmp_path / "a", watch, report_to=[client])
    logged = {moment.step: moment.logged[DRIFTED] for moment in watch.moments[1:]}
    found = CLIENTS[client](board)
    assert found
    assert found == pytest.approx({step: logged[step] for step in found}, rel=1e-5)
