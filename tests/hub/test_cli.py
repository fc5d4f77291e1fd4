"""The verbs, as a person types them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from oattn_hub.cli import main
from oattn_hub.local_hub import LocalHub

if TYPE_CHECKING:
    from oattn_hub.report import Report


@pytest.fixture
def at_home(plain_hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> LocalHub:
    """The environment that `oattn hub serve` prints."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", plain_hub.url)
    files = f"{plain_hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", files)
    monkeypatch.setenv("HF_TOKEN", plain_hub.store.accounts.ensure("me").token)
    return plain_hub


def oattn(capsys: pytest.CaptureFixture[str], *words: Any) -> tuple[int, str, str]:
    code = main([str(word) for word in words])
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_publish_pull_and_list(
    at_home: LocalHub, tiny_report: Report, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_report.save(tmp_path / "report")
    capsys.readouterr()
    code, out, err = oattn(capsys, "publish", tmp_path / "report", "me/heads", "--json", "--message", "Mine")
    assert code == 0, err
    done = json.loads(out)
    assert (done["message"], done["changed"]) == ("Mine", True)
    assert "not huggingface.co" in err
    code, _, err = oattn(capsys, "pull", "me/heads", "--to", tmp_path / "here")
    assert code == 0, err
    assert (tmp_path / "here/report.json").read_bytes() == (tmp_path / "report/report.json").read_bytes()
    code, out, _ = oattn(capsys, "hub", "variants", "someone/else", "--json")
    assert (code, json.loads(out)) == (0, [])


def test_a_local_model_is_found_by_the_name_that_was_given(
    at_home: LocalHub, tiny_report: Report, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_report.save(tmp_path / "report")
    words = ("publish", tmp_path / "report", "me/named", "--base-model", "someone/known")
    code, _, err = oattn(capsys, *words)
    assert code == 0, err
    code, out, _ = oattn(capsys, "hub", "variants", "someone/known", "--json")
    assert [variant["repo_id"] for variant in json.loads(out)] == ["me/named"]


def test_a_dry_run_needs_no_hub(
    tiny_report: Report, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    tiny_report.save(tmp_path / "report")
    code, out, _ = oattn(capsys, "publish", tmp_path / "report", "me/heads", "--dry-run", tmp_path / "dry")
    assert (code, "nothing was sent" in out, "report.safetensors" in out) == (0, True, True)
    code, out, _ = oattn(capsys, "card", tmp_path / "report", "--repo", "me/heads")
    assert (code, out) == (0, (tmp_path / "dry/README.md").read_text())


def test_errors_are_one_line(at_home: LocalHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        ("publish", tmp_path, "me/heads"),
        ("pull", "me/nothing"),
        ("pull", "nonsense"),
        ("card", tmp_path / "nowhere"),
        ("hub", "serve", "--dir", tmp_path / "x", "--port", at_home.url.rsplit(":", 1)[1]),
        ("hub", "serve", "--dir", at_home.store.root, "--port", "0"),
    ):
        code, out, err = oattn(capsys, *words)
        assert (code, out) == (1, ""), words
        assert err.startswith("oattn: ")
        assert err.count("\n") == 1, err
