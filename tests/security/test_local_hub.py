"""Nobody can stop the local Hub: hostile lengths, bodies, cards, headers and connections are refused; it serves on."""

from __future__ import annotations

import base64
import hashlib
import json
import socket
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from oattn_hub.local_hub import LocalHub, server
from oattn_hub.local_hub.body import MAX_BODY
from oattn_hub.local_hub.pages import render_markdown


def token(hub: LocalHub, name: str = "me") -> str:
    role = "read" if name == "reader" else "write"
    return hub.store.accounts.ensure(name, role=role).token


def ask(hub: LocalHub, method: str, path: str, body: Any = None, user: str | None = "me") -> tuple[int, bytes]:
    data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {token(hub, user)}"} if user else {}
    request = urllib.request.Request(hub.url + path, data, headers, method=method)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def raw(hub: LocalHub, text: bytes, more: int = 0) -> bytes:
    """Send bytes as they are; the head of the answer, or nothing if the connection was closed."""
    host, port = hub.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=20) as connection:
        connection.sendall(text + b" " * more)
        connection.shutdown(socket.SHUT_WR)
        try:
            return connection.recv(65536)
        except ConnectionResetError:
            return b""


def commit(hub: LocalHub, files: dict[str, bytes], user: str = "me", revision: str = "main", query: str = "") -> int:
    lines: list[dict[str, Any]] = [{"key": "header", "value": {"summary": "s"}}]
    for path, content in files.items():
        value = {"content": base64.b64encode(content).decode(), "path": path, "encoding": "base64"}
        lines.append({"key": "file", "value": value})
    text = "\n".join(map(json.dumps, lines)).encode()
    return ask(hub, "POST", f"/api/models/me/x/commit/{revision}{query}", text, user)[0]


def assert_serves(hub: LocalHub) -> None:
    assert ask(hub, "GET", "/api/models/me/x")[0] == 200
    assert ask(hub, "GET", "/api/models")[0] == 200
    assert ask(hub, "GET", "/me/x")[0] == 200


def bomb(levels: int = 9) -> bytes:
    lines = ["l0: &l0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]" for n in range(1, levels)]
    return ("---\n" + "\n".join(lines) + "\n---\n").encode()


HOSTILE_CARDS = {
    "alias bomb": bomb(),
    "merge bomb": b"---\na: &a {x: 1}\nb: &b {<<: ["
    + b"*a, " * 9
    + b"*a]}\n"
    + b"".join(
        b"c%d: &c%d {<<: [%s]}\n" % (n, n, b", ".join([b"*b" if n == 0 else b"*c%d" % (n - 1)] * 10)) for n in range(7)
    )
    + b"---\n",
    "alias to itself": b"---\na: &a [*a]\n---\n",
    "deep": b"---\na: " + b"[" * 20000 + b"\n---\n",
    "long": b"---\na: " + b"x" * 300_000 + b"\n---\n",
    "large": b"---\nlicense: mit\n---\n" + b"x" * 3_000_000,
    "long number": b"---\na: " + b"1" * 5000 + b"\n---\n",
    "impossible date": b"---\na: 2024-13-45\n---\n",
    "object": b"---\na: !!python/object/apply:os.system [id]\n---\n",
}


@pytest.mark.parametrize("name", HOSTILE_CARDS)
def test_a_hostile_card_is_refused_and_the_hub_serves_on(hub: LocalHub, name: str) -> None:
    assert commit(hub, {"README.md": HOSTILE_CARDS[name]}) == 400
    if name != "large":
        card = HOSTILE_CARDS[name].decode()
        assert ask(hub, "POST", "/api/validate-yaml", {"content": card})[0] == 400
    assert_serves(hub)


def test_unusual_but_honest_cards_are_taken_and_shown(hub: LocalHub) -> None:
    unusual = b"1: one\n2024-01-02: x\nset: !!set {a, b}\nbits: !!binary aGk=\nbig: .inf\nb: &b [1]\nc: *b\n"
    card = b"---\ndate: 2024-01-01\n" + unusual + b"---\n"
    assert commit(hub, {"README.md": card}) == 200
    assert_serves(hub)
    data = json.loads(ask(hub, "GET", "/api/models/me/x")[1])["cardData"]
    assert data["date"] == "2024-01-01"
    assert data["c"] == [1]


def test_a_card_that_an_older_version_stored_does_not_stop_the_hub_after_a_restart(
    hub: LocalHub, tmp_path: Path
) -> None:
    blob = hub.store.blobs.add([bomb()], len(bomb()))
    from oattn_hub.local_hub.repos import entry_for

    repo = hub.store.repo("model", "me/x")
    repo.append("refs/heads/main", lambda files: {**files, "README.md": entry_for("README.md", blob)}, "s", "", "me")
    assert_serves(hub)


def test_a_card_by_way_of_large_files_is_not_read_whole(hub: LocalHub) -> None:
    content = b"---\nlicense: mit\n---\n" + b"x" * 3_000_000
    oid = hashlib.sha256(content).hexdigest()
    repo = hub.store.repo("model", "me/x")
    repo.note_upload(hub.store.blobs.add([content], len(content)))
    lines = [
        {"key": "header", "value": {"summary": "s"}},
        {"key": "lfsFile", "value": {"path": "README.md", "algo": "sha256", "oid": oid, "size": len(content)}},
    ]
    text = "\n".join(map(json.dumps, lines)).encode()
    assert ask(hub, "POST", "/api/models/me/x/commit/main", text)[0] == 400


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: -5", b"Content-Length: " + b"9" * 5000, b"Content-Length: 1_0", b"Content-Length: +5",
        b"Content-Length: 0x10", b"Content-Length: 5\r\nContent-Length: 6", b"Content-Length: \xd9\xa3",
        b"Transfer-Encoding: gzip, chunked", b"Transfer-Encoding: chunked\r\nContent-Length: 5",
        b"Content-Length: %d" % (MAX_BODY + 1), b"Content-Length: 999999999999999",
    ],
)  # fmt: skip
def test_hostile_lengths_are_refused_at_once(hub: LocalHub, head: bytes) -> None:
    answer = raw(hub, b"POST /api/validate-yaml HTTP/1.1\r\nHost: x\r\n" + head + b"\r\n\r\n")
    assert answer.split()[1] in (b"400", b"413")
    assert_serves(hub)


@pytest.mark.parametrize("size", [b"-5", b"-0", b"1_0", b"0x5", b"+5", b"", b"f" * 5000, b"fffffffffffff", b" 5"])
def test_hostile_chunks_end_the_connection(hub: LocalHub, size: bytes) -> None:
    start = b"POST /api/validate-yaml HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
    answer = raw(hub, start + size + b"\r\n" + b"x" * 100)
    assert answer == b"" or answer.split()[1] in (b"400", b"413")
    assert_serves(hub)


def test_a_body_that_is_too_large_for_the_disk_is_refused_before_it_comes(
    hub: LocalHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda path: type("Usage", (), {"free": 2**28})())
    head = b"PUT /_lfs/x HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999\r\n\r\n"
    assert raw(hub, head).split()[1] == b"507"
    assert ask(hub, "GET", "/api/models/me/x")[0] == 200


def test_forms_and_json_are_bounded(hub: LocalHub) -> None:
    big = b"paths=" + b"x" * (20 * 2**20)
    assert ask(hub, "POST", "/api/models/me/x/paths-info/main", big)[0] == 413
    assert ask(hub, "POST", "/api/validate-yaml", b"[" * 100_000)[0] == 400
    assert ask(hub, "POST", "/api/validate-yaml", b"1" * 10_000)[0] == 400
    assert ask(hub, "POST", "/api/models/me/x/commit/main", b'{"a":' * 100_000)[0] == 400
    assert_serves(hub)


@pytest.mark.parametrize("size", [10**15, -1, 10**400, 1.5, True, None, "5", MAX_BODY + 1])
def test_sizes_that_no_file_has_are_refused(hub: LocalHub, size: Any) -> None:
    asked = {"operation": "upload", "transfers": ["multipart"], "objects": [{"oid": "a" * 64, "size": size}]}
    assert ask(hub, "POST", "/me/x.git/info/lfs/objects/batch", asked)[0] == 422
    files = {"files": [{"path": "a", "size": size, "sample": ""}]}
    assert ask(hub, "POST", "/api/models/me/x/preupload/main", files)[0] == 422
    assert_serves(hub)


def test_an_upload_in_endless_parts_is_refused(hub: LocalHub) -> None:
    objects = [{"oid": f"{n:064x}", "size": MAX_BODY} for n in range(10)]
    asked = {"operation": "upload", "transfers": ["multipart"], "objects": objects}
    assert ask(hub, "POST", "/me/x.git/info/lfs/objects/batch", asked)[0] == 413


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/api/models/me/x/preupload/main", {"files": [1]}),
        ("POST", "/api/models/me/x/preupload/main", {"files": {}}),
        ("POST", "/api/models/me/x/preupload/main", {"files": [{}]}),
        ("POST", "/me/x.git/info/lfs/objects/batch", {"operation": "upload", "objects": [[]]}),
        ("POST", "/me/x.git/info/lfs/objects/batch", {"operation": "upload", "objects": 5}),
        ("GET", "/api/models?limit=abc", None),
        ("GET", "/api/models?skip=-1", None),
        ("GET", "/api/models?skip=" + "9" * 5000, None),
        ("PUT", "/api/models/me/x/settings", {"gated": {"a": [1] * 1000}}),
        ("POST", "/api/models/me/x/branch/" + "a" * 5000, {}),
        ("POST", "/api/models/me/x/commit/main", b'{"key": "file", "value": {"path": ["a"]}}'),
        ("POST", "/api/models/me/x/commit/main", b'{"key": "file", "value": {"path": "' + b"a/" * 400 + b'a"}}'),
        ("POST", "/api/models/me/x/paths-info/main", b"\xff\xfe"),
    ],
)
def test_malformed_requests_are_the_clients_fault(hub: LocalHub, method: str, path: str, body: Any) -> None:
    assert 400 <= ask(hub, method, path, body)[0] < 500
    assert_serves(hub)


@pytest.mark.parametrize("letters", ["%0d", "%0a", "%0d%0aX-Evil:%201", "%1b[2J", "%c2%85"])
def test_nothing_in_a_request_becomes_a_header_or_steers_a_terminal(
    hub: LocalHub, letters: str, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = raw(hub, f"GET /me/x/resolve/ma{letters}in/a HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    head = answer.split(b"\r\n\r\n")[0]
    assert b"404" in head.split(b"\r\n")[0]
    assert all(b"\r" not in line and b"\n" not in line for line in head.split(b"\r\n"))
    assert b"\r\nX-Evil" not in head
    raw(hub, b"GET /no/such/\x1b[2Jroute HTTP/1.1\r\nHost: x\r\n\r\n")
    shown = capsys.readouterr()
    assert "\x1b" not in shown.out + shown.err


def test_idle_connections_make_room_for_those_that_ask(hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 10)
    host, port = hub.url.removeprefix("http://").split(":")
    idle = []
    for number in range(60):
        connection = socket.create_connection((host, int(port)), timeout=20)
        connection.sendall(b"GET / HTTP/1.1\r\nX-Slow: " if number % 2 else b"")  # half of them drip their headers
        idle.append(connection)
    for _ in range(20):
        assert_serves(hub)
    assert len(hub._http._idle) + len(hub._http._busy) <= 10
    for connection in idle:
        connection.close()


@pytest.mark.parametrize("head", ["Content-Length: 100", "Transfer-Encoding: chunked"])
def test_requests_that_never_end_make_room_for_those_that_do(
    hub: LocalHub, monkeypatch: pytest.MonkeyPatch, head: str
) -> None:
    monkeypatch.setattr(server, "MAX_CONNECTIONS", 4)
    monkeypatch.setattr(server, "PATIENCE", 0.0)
    host, port = hub.url.removeprefix("http://").split(":")
    dripping = []
    for _ in range(12):
        connection = socket.create_connection((host, int(port)), timeout=20)
        connection.sendall(f"POST /api/models/me/x/preupload/main HTTP/1.1\r\nHost: x\r\n{head}\r\n\r\n".encode())
        dripping.append(connection)
    for _ in range(5):
        assert_serves(hub)
    for connection in dripping:
        connection.close()


def test_unknown_requests_do_not_fill_the_memory(hub: LocalHub) -> None:
    for number in range(1200):
        hub.note_unknown(str(number))
    assert len(hub.unknown_requests) <= 1000


def test_a_damaged_repo_does_not_keep_the_others_from_being_served(tmp_path: Path, capsys: Any) -> None:
    first = LocalHub(tmp_path / "h")
    me = first.store.accounts.ensure("me")
    for name in ("me/a", "me/b"):
        first.store.create("model", name, private=False, account=me)
    first.close()
    (tmp_path / "h/repos/models/me/a/repo.json").write_text('{"id": ')
    with LocalHub(tmp_path / "h") as again:
        assert [repo.state.id for repo in again.store.visible("model", me)] == ["me/b"]
    assert "me/a is damaged" in capsys.readouterr().err


def test_many_opened_comments_render_in_linear_time() -> None:
    assert render_markdown("a <!-- b --> c <!-- d").count("&lt;!--") == 1
    assert "<pre>" in render_markdown("<!-- " * 400_000)


def test_a_token_that_may_only_read_writes_nowhere(hub: LocalHub) -> None:
    assert commit(hub, {"a": b"1"}, "other", query="?create_pr=1") == 200
    for revision, query in (("main", ""), ("main", "?create_pr=1"), ("refs%2Fpr%2F1", "")):
        assert commit(hub, {"a": b"2"}, "reader", revision, query) == 403
    asked = {"operation": "upload", "objects": []}
    assert ask(hub, "POST", "/me/x.git/info/lfs/objects/batch", asked, "reader")[0] == 403
    opened = {"title": "t", "description": "", "pullRequest": True}
    assert ask(hub, "POST", "/api/models/me/x/discussions", opened, "reader")[0] == 403
    assert ask(hub, "POST", "/api/models/me/x/discussions", opened, None)[0] == 401


def test_a_pull_request_takes_commits_from_its_author_and_the_owner_only(hub: LocalHub) -> None:
    hub.store.accounts.ensure("third")
    assert commit(hub, {"a": b"1"}, "other", query="?create_pr=1") == 200
    assert commit(hub, {"a": b"2"}, "third", "refs%2Fpr%2F1") == 403
    assert commit(hub, {"a": b"3"}, "other", "refs%2Fpr%2F1") == 200
    assert commit(hub, {"a": b"4"}, "me", "refs%2Fpr%2F1") == 200
    for number in ("2", "0", "x", "9" * 50, "%D9%A1"):
        assert commit(hub, {"a": b"5"}, "other", f"refs%2Fpr%2F{number}") == 404


def test_the_name_of_a_file_is_no_script_on_the_page_of_its_repo(hub: LocalHub) -> None:
    assert commit(hub, {"javascript:alert(1)": b"x", "data:text/html,<script>alert(1)<script>": b"x"}) == 200
    status, page = ask(hub, "GET", "/me/x")
    assert status == 200
    assert b'href="./javascript' in page
    assert b'href="javascript' not in page
    assert b'href="data:' not in page
    assert b"<script" not in page
    head = raw(hub, b"GET /me/x HTTP/1.1\r\nHost: x\r\n\r\n").split(b"\r\n\r\n")[0]
    assert b"Content-Security-Policy: default-src 'none'" in head
