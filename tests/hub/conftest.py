"""A local Hub for the real client, one that fails on demand, and small things to publish."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from types import SimpleNamespace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from oattn_hub.files import write_tensors
from oattn_hub.hub.content import ContentId
from oattn_hub.hub.readme import build_readme
from oattn_hub.local_hub import Handler, LocalHub
from oattn_hub.local_hub.body import RequestBody
from oattn_hub.local_hub.faults import Fault

if TYPE_CHECKING:
    from oattn_hub.report import Report


@pytest.fixture
def downloaded_ids() -> Callable[[Path], dict[str, ContentId]]:
    """``content_ids`` for a folder in the client's cache, where files are links to their content."""

    def ids(folder: Path) -> dict[str, ContentId]:
        files = (path for path in folder.rglob("*") if path.is_file())
        return {path.relative_to(folder).as_posix(): ContentId.of(path) for path in files}

    return ids


@dataclass
class FaultPlan:
    """Which request fails and how; counts every request of the hub it belongs to.

    Faults: ``cut`` (connection closed, nothing done), ``lose`` (done, but the answer is lost), a status (refused with
    it, nothing done), ``("after", status)`` (done, yet answered with the status).
    """

    faults: dict[int, object] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)
    lock: Lock = field(default_factory=Lock)

    def next(self, request: str) -> object:
        with self.lock:
            self.requests.append(request)
            return self.faults.get(len(self.requests) - 1)


class FailingHandler(Handler):
    """The product's handler, with faults in front of and behind it."""

    plan: FaultPlan

    def do_GET(self) -> None:  # noqa: N802
        fault = self.plan.next(f"{self.command} {self.path}")
        if fault == "cut":
            self.close_connection = True
            return
        if fault is not None and fault != "lose" and not isinstance(fault, tuple):
            RequestBody(self.rfile, self.headers).drain()
            self.refuse(int(str(fault)))
            return
        if fault is None:
            super().do_GET()
            return
        body = RequestBody(self.rfile, self.headers)
        with suppress(Fault):
            self.answer(body)
        body.drain()
        if fault == "lose":
            self.close_connection = True
        else:
            self.refuse(fault[1])  # type: ignore[index]

    do_HEAD = do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815

    def refuse(self, status: int) -> None:
        body = b'{"error": "planned"}'
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@pytest.fixture(autouse=True)
def _at_a_home_of_its_own(own_client_home: None) -> None:
    """Every test of this folder."""


@pytest.fixture(params=["regular", "lfs"])
def mode(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """The two ways a client uploads: Xet on, every file inside the commit; Xet off, large files by LFS."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", request.param == "lfs")
    return str(request.param)


def start_hub(folder: Path, mode: str, handler: type[Handler] = Handler) -> LocalHub:
    hub = LocalHub(folder, large_files=mode, part_size=1 << 20, handler=handler)
    hub.store.accounts.ensure("me", orgs=("lab",))
    hub.store.accounts.ensure("other")
    hub.store.accounts.ensure("reader", orgs=("lab",), role="read")
    return hub


def tokens_of(hub: LocalHub) -> SimpleNamespace:
    names = ("me", "other", "reader")
    roles = {"reader": "read"}
    accounts = hub.store.accounts
    return SimpleNamespace(**{name: accounts.ensure(name, role=roles.get(name, "write")).token for name in names})


@pytest.fixture
def hub(tmp_path: Path, mode: str) -> Iterator[LocalHub]:
    """A running local Hub in both modes; it must have known every request at the end."""
    with start_hub(tmp_path / "hub", mode) as running:
        yield running
        assert running.unknown_requests == []


@pytest.fixture
def plain_hub(tmp_path: Path) -> Iterator[LocalHub]:
    """A running local Hub as users start it."""
    with start_hub(tmp_path / "hub", "regular") as running:
        yield running


@pytest.fixture
def tokens(hub: LocalHub) -> SimpleNamespace:
    """The tokens of the hub's users: ``me`` (in the organisation ``lab``), ``other`` and ``reader``."""
    return tokens_of(hub)


@pytest.fixture
def failing_hub(tmp_path: Path, mode: str) -> Iterator[Callable[..., tuple[LocalHub, FaultPlan]]]:
    """Start hubs that fail at chosen requests."""
    running: list[LocalHub] = []

    def start(name: str, faults: dict[int, object] | None = None) -> tuple[LocalHub, FaultPlan]:
        plan = FaultPlan(faults or {})
        handler = type("Planned", (FailingHandler,), {"plan": plan})
        hub = start_hub(tmp_path / name, mode, handler).__enter__()
        running.append(hub)
        return hub, plan

    yield start
    for hub in running:
        hub.__exit__(None, None, None)


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Retries wait no time."""
    monkeypatch.setattr(time, "sleep", lambda seconds: None)


@pytest.fixture
def token_for() -> Callable[..., str]:
    """The token of a user of a hub."""
    return lambda hub, name="me": str(getattr(tokens_of(hub), name))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Something to publish, of the kind "report"."""
    path = tmp_path / "folder"
    write_tensors(path / "report.safetensors", {"a": np.arange(5000, dtype=np.float32)})
    (path / "report.json").write_text('{"format": 1}')
    (path / "figures").mkdir()
    (path / "figures/heads.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(100))
    metadata = {"library_name": "oattn_hub", "base_model": "google-bert/bert-base-uncased", "tags": ["oattn_hub"]}
    mark = {"oattn_hub": {"kind": "report", "summary": "72 heads"}}
    (path / "README.md").write_text(build_readme({**metadata, **mark}, "# Heads\n\n![heads](figures/heads.png)"))
    return path


@pytest.fixture
def run_client(tmp_path: Path) -> Callable[..., str]:
    """Run Python code in a fresh process whose Hub is ours: endpoint, token and home are read at import."""

    def run(hub: LocalHub, code: str, user: str = "me", home: str = "fresh-home", **environment: str) -> str:
        own = {
            "PATH": os.environ["PATH"],
            "OMP_NUM_THREADS": "1",
            "HOME": str(tmp_path / home),
            "HF_ENDPOINT": hub.url,
            "HF_TOKEN": str(getattr(tokens_of(hub), user)),
            "HF_HOME": str(tmp_path / home),
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "HF_HUB_DISABLE_XET": "1" if hub.large_files == "lfs" else "0",
            **environment,
        }
        done = subprocess.run([sys.executable, "-c", code], env=own, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


@pytest.fixture(scope="session")
def tiny_report() -> Report:
    """A real report of a small random BERT: 3 layers x 4 heads, 3 batches of 16 tokens."""
    import torch
    from transformers import BertConfig, BertModel

    from oattn_hub.analyzer import analyze

    torch.manual_seed(0)
    sizes = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64}
    model = BertModel(BertConfig(vocab_size=100, **sizes)).eval()
    batches = [{"input_ids": torch.randint(0, 100, (1, 16))} for _ in range(3)]
    return analyze(model, data=batches, batches=3, tokens=16)
