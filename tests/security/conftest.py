"""A local Hub to attack, and checks that it still serves."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from oattn_hub.local_hub import LocalHub


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
