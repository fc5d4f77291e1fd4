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
def _at_a_home_of_its_own(own_client_home: None) -> None:
    """Every test of this folder."""


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
    from huggingface_hub import constants, hf_api

    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(
        hf_api.api, "endpoint", hub.url
    )  # the client behind the plain functions that transformers calls
    files = f"{hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", files)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_IMPLICIT_TOKEN", False)
    monkeypatch.setenv("HF_TOKEN", "hf_the_users_real_token")
    return hub
