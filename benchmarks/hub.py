"""The local Hub: throughput of a large download against ``python -m http.server``, crowds, and a publish.

Run: ``python benchmarks/hub.py``. Each pair is measured in turn, several times; medians are printed as a table.
"""

from __future__ import annotations

import argparse
import http.client
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from huggingface_hub import CommitOperationAdd, HfApi

from oattn_hub.hub import publish_folder, pull
from oattn_hub.hub.readme import build_readme

Address = tuple[str, int, str]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=7)
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as scratch, Served(Path(scratch)) as api:
        rows += throughput(Path(scratch), api, args.megabytes * 10**6, args.repeats)
        rows += crowds(api)
        rows += publish_and_pull(Path(scratch), api, args.megabytes * 10**6)
    print("| what | measured |\n|---|---|")
    for name, value in rows:
        print(f"| {name} | {value} |")


class Served:
    """The local Hub in a process of its own, as users run it, and a client for it."""

    def __init__(self, scratch: Path) -> None:
        self.command = [
            sys.executable,
            "-m",
            "oattn_hub.cli",
            "hub",
            "serve",
            "--port",
            "0",
            "--dir",
            str(scratch / "hub"),
        ]

    def __enter__(self) -> HfApi:
        self.process = subprocess.Popen(self.command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        line = next(line for line in self.process.stdout if line.startswith("export "))
        values = dict(word.split("=", 1) for word in line.split()[1:])
        return HfApi(values["HF_ENDPOINT"], token=values["HF_TOKEN"])

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        self.process.wait(10)


def throughput(scratch: Path, api: HfApi, size: int, repeats: int) -> list[tuple[str, str]]:
    """The same bytes from both servers, in turn."""
    content = os.urandom(size)
    (scratch / "plain").mkdir()
    (scratch / "plain/w.bin").write_bytes(content)
    api.create_repo("me/large")
    api.create_commit("me/large", [CommitOperationAdd("w.bin", content)], commit_message="c")
    plain = subprocess.Popen(
        [sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1", "--directory", str(scratch / "plain")],
        stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
    )  # fmt: skip
    assert plain.stdout is not None
    plain_port = int(plain.stdout.readline().split("port ")[1].split()[0])
    ours = ("127.0.0.1", int(api.endpoint.rsplit(":", 1)[1]), "/me/large/resolve/main/w.bin")
    try:
        seconds = in_turn([lambda: read(ours), lambda: read(("127.0.0.1", plain_port, "/w.bin"))], repeats)
    finally:
        plain.terminate()
        plain.wait(10)
    hub, http_server = (size / 1e6 / statistics.median(found) for found in seconds)
    return [
        (f"local Hub, {size // 10**6} MB download", f"{hub:,.0f} MB/s"),
        (f"python -m http.server, the same {size // 10**6} MB", f"{http_server:,.0f} MB/s"),
        ("ratio (goal: at least 0.8)", f"{hub / http_server:.2f}"),
    ]


def read(address: Address) -> None:
    """Download into a buffer that is thrown away."""
    host, port, path = address
    connection = http.client.HTTPConnection(host, port, timeout=60)
    connection.request("GET", path)
    answer = connection.getresponse()
    buffer = bytearray(1 << 20)
    while answer.readinto(buffer):
        pass
    connection.close()


def in_turn(actions: list[Callable[[], None]], repeats: int) -> list[list[float]]:
    """Seconds of each action, measured alternately so that a busy machine is unfair to none."""
    seconds: list[list[float]] = [[] for _ in actions]
    for _ in range(repeats):
        for action, found in zip(actions, seconds, strict=True):
            start = time.perf_counter()
            action()
            found.append(time.perf_counter() - start)
    return seconds


def crowds(api: HfApi) -> list[tuple[str, str]]:
    """200 downloads and 20 commits at once; every one is checked."""
    api.create_repo("me/crowd")
    content = os.urandom(1_000_000)
    api.create_commit("me/crowd", [CommitOperationAdd("w.bin", content)], commit_message="c")
    barrier = threading.Barrier(200)

    def download(_: int) -> bool:
        barrier.wait(60)
        with urllib.request.urlopen(f"{api.endpoint}/me/crowd/resolve/main/w.bin", timeout=120) as answer:
            return bool(answer.read() == content)

    start = time.perf_counter()
    with ThreadPoolExecutor(200) as pool:
        right = sum(pool.map(download, range(200)))
    downloads = time.perf_counter() - start

    def commit(number: int) -> str:
        file = CommitOperationAdd(f"{number}.bin", os.urandom(100_000))
        return str(api.create_commit("me/crowd", [file], commit_message=f"c{number}").oid)

    start = time.perf_counter()
    with ThreadPoolExecutor(20) as pool:
        made = list(pool.map(commit, range(20)))
    commits = time.perf_counter() - start
    kept = {item.commit_id for item in api.list_repo_commits("me/crowd")}
    return [
        ("200 downloads of 1 MB at once", f"{right} right, {downloads:.2f} s"),
        ("20 commits of 100 kB at once", f"{sum(oid in kept for oid in made)} kept, {commits:.2f} s"),
    ]


def publish_and_pull(scratch: Path, api: HfApi, size: int) -> list[tuple[str, str]]:
    """A checkpoint of that size: publish, publish again, download, verify again from the cache."""
    folder = scratch / "checkpoint"
    folder.mkdir()
    header = b'{"w":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}}' % (size, size)
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + os.urandom(size))
    (folder / "config.json").write_text("{}")
    (folder / "README.md").write_text(build_readme({"oattn_hub": {"kind": "checkpoint"}}, "# Benchmark"))
    place = {"token": api.token, "endpoint": api.endpoint}
    publish = lambda: publish_folder(folder, "me/published", "checkpoint", message="m", **place)  # noqa: E731
    download = lambda: pull("me/published", cache_dir=scratch / "cache", **place)  # noqa: E731
    names = ("publish", "publish again (no commit)", "pull and verify", "pull again (cached, verified)")
    rows = []
    for name, action in zip(names, (publish, publish, download, download), strict=True):
        start = time.perf_counter()
        action()
        rows.append((f"{name}, {size // 10**6} MB", f"{time.perf_counter() - start:.2f} s"))
    return rows


if __name__ == "__main__":
    main()
