"""The local Hub for other projects' tests: ``hub_server``, a fixture that pytest finds when oattn_hub is installed.

Nothing but the standard library is imported until a test asks for it. See docs/hub_server.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from huggingface_hub import HfApi

    from oattn_hub.local_hub import LocalHub


@dataclass(frozen=True)
class HubServer:
    """A Hub on 127.0.0.1 that belongs to one test.

    Attributes:
        url: Its address, the ``HF_ENDPOINT`` of the test.
        user: Who is logged in.
        token: The token of that user, the ``HF_TOKEN`` of the test.
        environment: What a process needs to talk to it; the test's own environment has it already.
        hub: The server itself.
    """

    url: str
    user: str
    token: str
    environment: dict[str, str]
    hub: LocalHub

    @property
    def api(self) -> HfApi:
        """The real client, logged in."""
        from huggingface_hub import HfApi

        return HfApi(endpoint=self.url, token=self.token)

    def login(self, name: str, orgs: tuple[str, ...] = (), role: str = "write") -> str:
        """The token of another user; ``role`` may be ``read``."""
        return self.hub.store.accounts.ensure(name, orgs, role).token

    @property
    def unknown_requests(self) -> list[str]:
        """What a client asked that this Hub does not know; each was answered 501."""
        return self.hub.unknown_requests


@pytest.fixture
def hub_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """A Hub of this test alone; huggingface_hub, transformers and timm talk to it, also in child processes."""
    from oattn_hub.local_hub import LocalHub

    with LocalHub(tmp_path / "hub-server") as hub:
        token = hub.store.accounts.ensure("user").token
        home = tmp_path / "hub-client"
        environment = {"HF_ENDPOINT": hub.url, "HF_TOKEN": token, "HF_HOME": str(home), "HF_HUB_OFFLINE": "0"}
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_TOKEN_PATH"):
            monkeypatch.delenv(name, raising=False)
        _point_client_to(hub.url, home, monkeypatch)
        yield HubServer(hub.url, "user", token, environment, hub)


def _point_client_to(url: str, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The client reads its environment when it is imported; in this process that may have been long ago."""
    from huggingface_hub import constants, hf_api

    monkeypatch.setattr(hf_api.api, "endpoint", url)  # the client behind the plain functions, create_repo and the like
    values = {
        "ENDPOINT": url,
        "HUGGINGFACE_CO_URL_TEMPLATE": url + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HOME": str(home),
        "HF_HUB_CACHE": str(home / "hub"),
        "HF_TOKEN_PATH": str(home / "token"),
        "HF_HUB_OFFLINE": False,
    }
    for name, value in values.items():
        monkeypatch.setattr(constants, name, value)
