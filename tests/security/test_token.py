"""The user's real token never goes to a local Hub, from no verb and no library underneath."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from oattn_hub.cli import main
from oattn_hub.errors import LoadError
from oattn_hub.local_hub import LocalHub, server

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


@pytest.mark.parametrize(
    "words",
    [
        ["analyze", "me/x", "--batches", "1", "--tokens", "4"], ["capture", "me/x", "--out", "OUT"], ["pull", "me/x"],
        ["pull", "me/none"], ["analyze", "hf-hub:me/x"], ["prune", "REPORT", "--heads", "0.1", "--out", "OUT"],
        ["evaluate", "REPORT"], ["publish", "REPORT", "me/y"], ["analyze", "me/x", "--data", "dataset:me/none"],
    ],
)  # fmt: skip
def test_no_verb_sends_it(
    seen: list[tuple[str, str]], model_repo: str, report: Any, words: list[str], tmp_path: Path, capsys: Any
) -> None:
    from dataclasses import replace

    model = replace(report.model, source=model_repo, revision=None)
    replace(report, model=model).save(tmp_path / "report")
    places = {"OUT": str(tmp_path / "out"), "REPORT": str(tmp_path / "report")}
    seen.clear()
    main([places.get(word, word) for word in words])  # some fail: the model has no tokenizer, the account no right
    assert seen, capsys.readouterr()
    assert [request for request, sent in seen if REAL in sent] == []


def test_a_token_that_is_passed_by_name_is_sent(seen: list[tuple[str, str]], model_repo: str) -> None:
    from oattn_hub.models.load import load_model

    with pytest.raises(LoadError):
        load_model(model_repo, token="hf_passed_by_name")
    assert any("hf_passed_by_name" in sent for _, sent in seen)
