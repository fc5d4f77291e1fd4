"""The user's real token never goes to a local Hub, from no verb and no library underneath."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from oattn_hub.cli import main
from oattn_hub.errors import LoadError
from oattn_hub.local_hub import LocalHub, server
from oattn_hub.tokens import is_local

REAL = "hf_the_users_real_token"


@pytest.fixture
def seen(at_home: LocalHub, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Every request that reaches the local Hub, with its Authorization header."""
    requests: list[tuple[str, str]] = []
    answer = server.Handler.answer

    def noted(self: Any, body: Any) -> Any:
        requests.append((f"{self.command} {self.path}", self.headers.get("Authorization", "")))
        return answer(self, body)

    monkeypatch.setattr(server.Handler, "answer", noted)
    return requests


@pytest.fixture
def model_repo(at_home: LocalHub, bert_folder: Path) -> str:
    """The tiny BERT on the local Hub, as its owner left it there."""
    from oattn_hub.local_hub.repos import entry_for

    blobs = at_home.store.blobs
    files = {path.name: path.read_bytes() for path in bert_folder.iterdir()}
    entries = {name: entry_for(name, blobs.add([content], len(content))) for name, content in files.items()}
    at_home.store.repo("model", "me/x").append("refs/heads/main", lambda old: {**old, **entries}, "s", "", "me")
    return "me/x"


class InThisProcess:
    """Works on the models of a sweep here, where requests are seen to come from."""

    def run(self, root: Path, jobs: Any, options: Any) -> Any:
        from oattn_hub.sweep.work import work_on

        return [(job, work_on(root, job, options)) for job in jobs]


def pruned_of_repo(report: Any, repo: str, folder: Path) -> None:
    """A pruned checkpoint whose plan names the repo as its base."""
    from dataclasses import replace

    from oattn_hub.pruning import PruningPlan

    plan = PruningPlan.from_heads(report.model.source, [(0, 1)])
    pruned = plan.apply(measure=False)
    replace(pruned, plan=replace(plan, model=replace(plan.model, source=repo, revision=None))).save_pretrained(folder)


@pytest.mark.parametrize(
    "words",
    [
        ["analyze", "me/x", "--batches", "1", "--tokens", "4"], ["capture", "me/x", "--out", "OUT"], ["pull", "me/x"],
        ["pull", "me/none"], ["analyze", "hf-hub:me/x"], ["prune", "REPORT", "--heads", "0.1", "--out", "OUT"],
        ["evaluate", "REPORT"], ["publish", "REPORT", "me/y"], ["analyze", "me/x", "--data", "dataset:me/none"],
        ["validate", "REPORT", "--batches", "4"], ["hub", "variants", "me/x"], ["publish", "REPORT", "me/y", "--space"],
        ["adapters", "--explain", "me/x"], ["prune", "PLAN", "--out", "OUT"], ["prune", "REPORT", "--budget", "1%"],
        ["sweep", "LIST", "--out", "OUT", "--retries", "0"], ["heal", "PRUNED", "--out", "OUT"],
    ],
)  # fmt: skip
def test_no_verb_sends_it(
    seen: list[tuple[str, str]],
    model_repo: str,
    report: Any,
    words: list[str],
    tmp_path: Path,
    capsys: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from dataclasses import replace

    if "dataset:me/none" in words:
        pytest.importorskip("datasets")  # without it nothing is asked for
    model = replace(report.model, source=model_repo, revision=None)
    replace(report, model=model).save(tmp_path / "report")
    replace(report, model=model).plan(heads=[(0, 1)]).save(tmp_path / "plan.json")
    (tmp_path / "list.txt").write_text(model_repo)
    names = {"OUT": "out", "REPORT": "report", "PLAN": "plan.json", "LIST": "list.txt", "PRUNED": "pruned"}
    places = {word: str(tmp_path / name) for word, name in names.items()}
    if "PRUNED" in words:
        pruned_of_repo(report, model_repo, tmp_path / "pruned")
    monkeypatch.setattr("oattn_hub.sweep.rounds.LocalEngine", lambda workers: InThisProcess())
    seen.clear()
    main([places.get(word, word) for word in words])  # some fail: the model has no tokenizer, the account no right
    assert seen, capsys.readouterr()
    assert [request for request, sent in seen if REAL in sent] == []


def test_a_token_that_is_passed_by_name_is_sent(seen: list[tuple[str, str]], model_repo: str) -> None:
    from oattn_hub.models.load import load_model

    with pytest.raises(LoadError):
        load_model(model_repo, token="hf_passed_by_name")
    assert any("hf_passed_by_name" in sent for _, sent in seen)


@pytest.mark.parametrize(
    ("address", "here"),
    [
        ("http://127.0.0.1:8642", True), ("http://LOCALHOST:1", True), ("http://localhost.:1", True),
        ("http://hub.localhost:1", True), ("http://127.1:1", True), ("http://2130706433", True),
        ("http://0x7f000001", True), ("http://0.0.0.0:1", True), ("http://[::1]:1", True), ("http://[::]:1", True),
        ("http://[::ffff:127.0.0.1]:1", True), ("http://127.0.1.1", True), ("https://huggingface.co", False),
        ("https://localhost.example.com", False), ("http://10.0.0.1", False), ("https://127.0.0.1.example.com", False),
    ],
)  # fmt: skip
def test_this_machine_is_known_however_it_is_written(address: str, here: bool) -> None:
    assert is_local(address) is here
