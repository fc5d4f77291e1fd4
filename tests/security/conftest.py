"""A local Hub to attack, and checks that it still serves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from oattn_hub.local_hub import LocalHub

if TYPE_CHECKING:
    from oattn_hub.report import Report


@pytest.fixture(autouse=True)
def own_client_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads the user's token or cache."""
    from huggingface_hub import constants

    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    home = tmp_path / "hf-home"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(home / "token"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[LocalHub]:
    """A running local Hub with the users ``me``, ``other`` and ``reader``, and the repo ``me/x``."""
    with LocalHub(tmp_path / "hub", large_files="lfs", part_size=1 << 20) as running:
        me = running.store.accounts.ensure("me", orgs=("lab",))
        running.store.accounts.ensure("other")
        running.store.accounts.ensure("reader", orgs=("lab",), role="read")
        running.store.create("model", "me/x", private=False, account=me)
        yield running


@pytest.fixture(scope="session")
def bert_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT as a folder of safetensors: 2 layers x 4 heads."""
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    folder = tmp_path_factory.mktemp("models") / "bert"
    BertModel(BertConfig(vocab_size=64, **sizes)).eval().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def report(bert_folder: Path) -> Report:
    """A report of the tiny BERT."""
    from oattn_hub.analyzer import analyze

    return analyze(str(bert_folder), data=token_batches(), batches=2, tokens=12)


def token_batches() -> list[dict[str, Any]]:
    """What the tiny models read."""
    import torch

    made = torch.Generator().manual_seed(1)
    return [{"input_ids": torch.randint(0, 64, (1, 12), generator=made)} for _ in range(2)]


@pytest.fixture
def at_home(hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> LocalHub:
    """The process is set to the local Hub, and the user is logged in at the real one."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    files = f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", files)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", False)
    monkeypatch.setenv("HF_TOKEN", "hf_the_users_real_token")
    return hub
