"""What was committed stays, whatever happens to the process."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from huggingface_hub import CommitOperationAdd, HfApi
from huggingface_hub.errors import HfHubHTTPError

from oattn_hub.errors import StorageError
from oattn_hub.local_hub import LocalHub
from oattn_hub.local_hub.store import HubStore

SERVE = [sys.executable, "-m", "oattn_hub.cli", "hub", "serve", "--port", "0", "--dir"]


def serve(folder: Path) -> tuple[subprocess.Popen[str], HfApi]:
    """``oattn hub serve`` in a process of its own, and a client for it by what it printed."""
    process = subprocess.Popen([*SERVE, str(folder)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    line = next(line for line in process.stdout if line.startswith("export "))
    values = dict(word.split("=", 1) for word in line.split()[1:])
    return process, HfApi(values["HF_ENDPOINT"], token=values["HF_TOKEN"])


def check_everything(folder: Path) -> dict[str, list[str]]:
    """Open the storage as the next start does: every commit of every branch is whole. Returns the titles by repo."""
    store = HubStore(folder)
    titles = {}
    for repo in store.visible("model", store.accounts.ensure("me")):
        history = repo.history(repo.resolve("main"))
        for commit in history:
            for path, entry in commit.files.items():
                content = store.blobs.path(entry.sha256)
                assert content.stat().st_size == entry.size, path
        titles[repo.state.id] = [commit.title for commit in history]
    assert list((folder / "incoming").iterdir()) == []
    store.close()
    return titles


def test_killed_at_any_moment_no_commit_is_lost_or_half(tmp_path: Path) -> None:
    chance = random.Random(0)
    folder, acknowledged, tried = tmp_path / "hub", [], 0
    for _ in range(6):
        process, api = serve(folder)
        api.create_repo("me/x", exist_ok=True)
        stop = threading.Timer(chance.uniform(0.05, 0.6), process.send_signal, [signal.SIGKILL])
        stop.start()
        try:
            while True:
                tried += 1
                files = [CommitOperationAdd(f"{name}.bin", os.urandom(200_000)) for name in "ab"]
                api.create_commit("me/x", files, commit_message=f"commit {tried}")
                acknowledged.append(f"commit {tried}")
        except Exception:  # killed
            process.wait(10)
        stop.join()
        if process.stdout:
            process.stdout.close()
        titles = check_everything(folder)["me/x"][::-1]
        assert titles[0] == "initial commit"
        # Everything that was acknowledged is there, in order; at most the last one of a life came without its answer.
        assert [title for title in titles if title in acknowledged] == acknowledged
        assert len(set(titles)) == len(titles)
    assert acknowledged


def test_a_restart_keeps_repos_tokens_and_history(tmp_path: Path) -> None:
    with LocalHub(tmp_path / "hub") as hub:
        token = hub.store.accounts.ensure("me").token
        api = HfApi(hub.url, token=token)
        api.create_repo("me/x", private=True)
        made = api.create_commit("me/x", [CommitOperationAdd("a.txt", b"1")], commit_message="c", create_pr=True)
        api.create_tag("me/x", tag="v1")
    (tmp_path / "hub/incoming/left-over").write_bytes(b"draft")
    with LocalHub(tmp_path / "hub") as hub:
        again = HfApi(hub.url, token=token)
        assert again.model_info("me/x").private
        assert again.list_repo_refs("me/x").tags[0].name == "v1"
        assert again.model_info("me/x", revision="refs/pr/1").sha == made.oid
        assert list((tmp_path / "hub/incoming").iterdir()) == []
    assert (tmp_path / "hub/accounts.json").stat().st_mode & 0o077 == 0


def test_two_servers_do_not_share_a_folder(tmp_path: Path) -> None:
    with LocalHub(tmp_path / "hub"), pytest.raises(StorageError, match="Another local Hub"):
        LocalHub(tmp_path / "hub")


def test_equal_contents_are_stored_once(plain_hub: LocalHub, token_for: Callable[..., str]) -> None:
    api = HfApi(plain_hub.url, token=token_for(plain_hub))
    for name in ("a", "b"):
        api.create_repo(f"me/{name}")
        api.create_commit(f"me/{name}", [CommitOperationAdd("w.bin", bytes(100_000))], commit_message="c")
    sizes = [path.stat().st_size for path in (plain_hub.store.root / "blobs").rglob("*") if path.is_file()]
    assert sizes.count(100_000) == 1


def test_twenty_commits_at_once_are_all_there(hub: LocalHub, token_for: Callable[..., str]) -> None:
    api = HfApi(hub.url, token=token_for(hub))
    api.create_repo("me/x")

    def commit(number: int) -> str:
        file = CommitOperationAdd(f"{number}.bin", bytes([number]) * 50_000)
        return str(api.create_commit("me/x", [file], commit_message=f"c{number}").oid)

    with ThreadPoolExecutor(20) as pool:
        oids = list(pool.map(commit, range(20)))
    history = [item.commit_id for item in api.list_repo_commits("me/x")]
    assert len(history) == 21
    assert set(oids) < set(history)
    assert {f"{n}.bin" for n in range(20)} < set(api.list_repo_files("me/x"))


def test_of_twenty_commits_on_one_parent_one_wins(hub: LocalHub, token_for: Callable[..., str]) -> None:
    api = HfApi(hub.url, token=token_for(hub))
    api.create_repo("me/x")
    parent = api.model_info("me/x").sha

    def commit(number: int) -> int:
        try:
            file = CommitOperationAdd("a.txt", str(number).encode())
            api.create_commit("me/x", [file], commit_message=f"c{number}", parent_commit=parent)
        except HfHubHTTPError as error:
            return error.response.status_code
        return 200

    with ThreadPoolExecutor(20) as pool:
        assert sorted(pool.map(commit, range(20))) == [200] + [412] * 19
    assert len(api.list_repo_commits("me/x")) == 2


def test_two_hundred_downloads_at_once(plain_hub: LocalHub, token_for: Callable[..., str]) -> None:
    import urllib.request

    api = HfApi(plain_hub.url, token=token_for(plain_hub))
    api.create_repo("me/x")
    content = os.urandom(300_000)
    api.create_commit("me/x", [CommitOperationAdd("w.bin", content)], commit_message="c")
    barrier = threading.Barrier(200)

    def download(_: int) -> bool:
        barrier.wait(300)  # only a hang takes so long; a busy machine is not an error
        with urllib.request.urlopen(f"{plain_hub.url}/me/x/resolve/main/w.bin", timeout=300) as answer:
            return bool(answer.read() == content)

    with ThreadPoolExecutor(200) as pool:
        assert all(pool.map(download, range(200)))
