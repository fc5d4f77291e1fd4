"""The local Hub, spoken to by the real client over HTTP, in both upload modes."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import os
import socket
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi
from huggingface_hub.errors import (
    BadRequestError,
    GatedRepoError,
    HfHubHTTPError,
    RemoteEntryNotFoundError,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from oattn_hub.local_hub import LocalHub

HEADER = {"key": "header", "value": {"summary": "s"}}


@pytest.fixture
def api(hub: LocalHub, tokens: SimpleNamespace) -> HfApi:
    return HfApi(hub.url, token=tokens.me)


def add(api: HfApi, repo: str = "me/x", **files: bytes) -> Any:
    operations = [CommitOperationAdd(path.replace("__", "."), content) for path, content in files.items()]
    return api.create_commit(repo, operations, commit_message="add")


def request(url: str, method: str = "GET", data: bytes | None = None, **headers: str) -> tuple[int, bytes, Any]:
    asked = urllib.request.Request(url, data, {k.replace("_", "-"): v for k, v in headers.items()}, method=method)
    try:
        with urllib.request.urlopen(asked, timeout=120) as answer:
            return answer.status, answer.read(), answer.headers
    except urllib.error.HTTPError as error:
        return error.code, error.read(), error.headers


def test_upload_folder_and_download_in_parts_and_whole(api: HfApi, tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep/er").mkdir(parents=True)
    (source / "weights.safetensors").write_bytes(os.urandom(3_500_000))  # four parts of 1 MiB in LFS mode
    (source / "small.safetensors").write_bytes(b"12345678")
    (source / "deep/er/note ü#%.txt").write_text("text")
    (source / "empty").touch()
    api.create_repo("me/x")
    first = api.upload_folder(repo_id="me/x", folder_path=source)
    assert api.upload_folder(repo_id="me/x", folder_path=source).oid == first.oid  # nothing changed, no commit
    copy = Path(api.snapshot_download("me/x", local_dir=tmp_path / "copy"))
    for path in (path.relative_to(source) for path in source.rglob("*") if path.is_file()):
        assert (copy / path).read_bytes() == (source / path).read_bytes()
    tree = {entry.path: entry for entry in api.list_repo_tree("me/x", recursive=True)}
    content = (source / "weights.safetensors").read_bytes()
    assert tree["weights.safetensors"].lfs.sha256 == hashlib.sha256(content).hexdigest()
    assert tree["deep/er/note ü#%.txt"].blob_id == hashlib.sha1(b"blob 4\0text").hexdigest()
    assert [c.title for c in api.list_repo_commits("me/x")][1:] == ["initial commit"]


def test_history_revisions_tags_and_branches(api: HfApi) -> None:
    api.create_repo("me/x")
    first = add(api, a__txt=b"1")
    api.create_tag("me/x", tag="v1")
    second = add(api, a__txt=b"2")
    api.create_branch("me/x", branch="side/way", revision=first.oid)
    third = api.create_commit("me/x", [CommitOperationDelete("a.txt")], commit_message="del", revision="side/way")

    def content(revision: str) -> str:
        return Path(api.hf_hub_download("me/x", "a.txt", revision=revision)).read_text()

    assert [content(r) for r in ("main", "v1", first.oid, second.oid, "refs/tags/v1")] == ["2", "1", "1", "2", "1"]
    assert api.list_repo_files("me/x", revision=third.oid) == [".gitattributes"]
    refs = api.list_repo_refs("me/x")
    assert {b.name: b.target_commit for b in refs.branches} == {"main": second.oid, "side/way": third.oid}
    assert [t.name for t in refs.tags] == ["v1"]
    with pytest.raises(HfHubHTTPError, match="409"):
        api.create_tag("me/x", tag="v1", revision=second.oid)
    api.delete_tag("me/x", tag="v1")
    api.delete_branch("me/x", branch="side/way")
    with pytest.raises(RevisionNotFoundError):
        content("v1")
    with pytest.raises(RemoteEntryNotFoundError):
        api.hf_hub_download("me/x", "b.txt")


def test_pull_requests_are_made_found_and_merged(hub: LocalHub, api: HfApi, tokens: SimpleNamespace) -> None:
    api.create_repo("me/x")
    visitor = HfApi(hub.url, token=tokens.other)
    change = [CommitOperationAdd("b.txt", b"b")]
    with pytest.raises(HfHubHTTPError, match="403"):
        visitor.create_commit("me/x", change, commit_message="Add b")
    made = visitor.create_commit("me/x", change, commit_message="Add b", create_pr=True)
    assert made.pr_num == 1
    assert "b.txt" not in api.list_repo_files("me/x")
    assert "b.txt" in api.list_repo_files("me/x", revision="refs/pr/1")
    (found,) = api.get_repo_discussions("me/x", discussion_status="open")
    assert (found.title, found.author, found.status) == ("Add b", "other", "open")
    api.merge_pull_request("me/x", 1)
    assert "b.txt" in api.list_repo_files("me/x")
    assert api.get_discussion_details("me/x", 1).status == "merged"
    assert list(api.get_repo_discussions("me/x", discussion_status="open")) == []


def test_upload_folder_as_a_pull_request(api: HfApi, folder: Path) -> None:
    api.create_repo("me/x")
    made = api.upload_folder(repo_id="me/x", folder_path=folder, create_pr=True)
    assert made.pr_url.endswith("/discussions/1")
    assert "report.json" in api.list_repo_files("me/x", revision="refs/pr/1")
    assert api.list_repo_files("me/x") == [".gitattributes"]


def test_a_conflicting_pull_request_is_not_merged(api: HfApi) -> None:
    api.create_repo("me/x")
    change = [CommitOperationAdd("b.txt", b"theirs")]
    api.create_commit("me/x", change, commit_message="Add b", create_pr=True)
    add(api, b__txt=b"ours")
    with pytest.raises(HfHubHTTPError, match="conflicts with main in b"):
        api.merge_pull_request("me/x", 1)
    assert Path(api.hf_hub_download("me/x", "b.txt")).read_text() == "ours"


def test_a_stale_parent_is_refused(api: HfApi) -> None:
    api.create_repo("me/x")
    first = add(api, a__txt=b"1")
    add(api, a__txt=b"2")
    with pytest.raises(HfHubHTTPError, match="412"):
        api.create_commit("me/x", [CommitOperationAdd("a.txt", b"3")], commit_message="late", parent_commit=first.oid)
    assert len(api.list_repo_commits("me/x")) == 3


def test_who_may_do_what(hub: LocalHub, api: HfApi, tokens: SimpleNamespace) -> None:
    assert api.whoami()["name"] == "me"
    assert [org["name"] for org in api.whoami()["orgs"]] == ["lab"]
    api.create_repo("lab/private", private=True)
    api.create_repo("me/x")
    stranger, reader = HfApi(hub.url, token=tokens.other), HfApi(hub.url, token=tokens.reader)
    assert reader.model_info("lab/private").private
    for nobody in (stranger, HfApi(hub.url, token=False)):
        with pytest.raises(RepositoryNotFoundError):
            nobody.model_info("lab/private")
        assert [m.id for m in nobody.list_models()] == ["me/x"]
    for no_writer in (stranger, reader):
        with pytest.raises(HfHubHTTPError, match="403"):
            add(no_writer, a=b"1")
    with pytest.raises(HfHubHTTPError, match="401"):
        add(HfApi(hub.url, token=False), a=b"1")
    foreign = HfApi(hub.url, token="hf_somebodys_real_token")
    with pytest.raises(HfHubHTTPError, match="Invalid user token"):
        foreign.whoami()
    with pytest.raises(HfHubHTTPError, match="401"):
        foreign.model_info("me/x")
    with pytest.raises(HfHubHTTPError, match="403"):
        stranger.create_repo("me/y")
    with pytest.raises(HfHubHTTPError, match="403"):
        stranger.delete_repo("me/x")


def test_gated_private_moved_and_deleted(hub: LocalHub, api: HfApi, tokens: SimpleNamespace) -> None:
    api.create_repo("me/x")
    add(api, a__txt=b"1")
    api.update_repo_settings("me/x", gated="manual")
    with pytest.raises(GatedRepoError):
        HfApi(hub.url, token=tokens.other).hf_hub_download("me/x", "a.txt")
    api.move_repo("me/x", "lab/y")
    assert not api.repo_exists("me/x")
    assert Path(api.hf_hub_download("lab/y", "a.txt")).read_text() == "1"
    api.update_repo_settings("lab/y", visibility="private")
    assert api.model_info("lab/y").private
    api.delete_repo("lab/y")
    assert not api.repo_exists("lab/y")
    api.delete_repo("lab/y", missing_ok=True)


@pytest.mark.parametrize("name", ["../up", "a/b", "", "x" * 97, ".hidden", "a..b", "a--b", "ü"])
def test_names_that_lead_astray_are_refused(hub: LocalHub, tokens: SimpleNamespace, name: str) -> None:
    body = json.dumps({"name": name, "organization": "me"}).encode()
    assert request(f"{hub.url}/api/repos/create", "POST", body, Authorization=f"Bearer {tokens.me}")[0] == 400
    assert list((hub.store.root / "repos").rglob("*")) == []


@pytest.mark.parametrize(
    ("card", "why"),
    [
        ("---\na: [1\n---\n", "not valid YAML"),
        ("---\n- 1\n---\n", "not a mapping"),
        ("---\nlicense: 3\n---\n", "license"),
        ("---\nbase_model: ../evil\n---\n", "base_model"),
        ("---\nmodel-index:\n- name: x\n  results: [{}]\n---\n", "model-index"),
        ("---\nlicense: mit\n", "not closed"),
    ],
)
def test_a_broken_card_is_refused_everywhere(hub: LocalHub, api: HfApi, card: str, why: str) -> None:
    api.create_repo("me/x")
    with pytest.raises(ValueError, match=why):
        add(api, README__md=card.encode())
    content = base64.b64encode(card.encode()).decode()
    readme = {"key": "file", "value": {"content": content, "path": "README.md", "encoding": "base64"}}
    assert post_commit(hub, api, [HEADER, readme])[0] == 400  # past the client's own check
    assert api.list_repo_files("me/x") == [".gitattributes"]


def post_commit(hub: LocalHub, api: HfApi, lines: list[dict[str, Any]]) -> tuple[int, bytes, Any]:
    body = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    return request(f"{hub.url}/api/models/me/x/commit/main", "POST", body, Authorization=f"Bearer {api.token}")


@pytest.mark.parametrize(
    "path", ["../x", "/x", "a/../../x", "a//b", "a/./b", ".git/config", "a\\b", "a\x00b", "", "x" * 1001]
)
def test_paths_that_lead_astray_are_refused(hub: LocalHub, api: HfApi, path: str) -> None:
    api.create_repo("me/x")
    for key, value in (
        ("file", {"content": "eA==", "encoding": "base64"}),
        ("deletedFolder", {}),
        ("lfsFile", {"oid": "0" * 64}),
    ):
        lines = [HEADER, {"key": key, "value": {**value, "path": path}}]
        assert post_commit(hub, api, lines)[0] == 400
    assert len(api.list_repo_commits("me/x")) == 1


@pytest.mark.parametrize(
    "lines",
    [
        [{"key": "file", "value": {"content": "eA==", "path": "a", "encoding": "base64"}}],  # no header
        [HEADER, {"key": "file", "value": {"content": "e!==", "path": "a"}}],
        [HEADER, {"key": "file", "value": {"content": "eA=", "path": "a"}}],
        [HEADER, {"key": "new", "value": {"path": "a"}}],
        [HEADER, {"key": "lfsFile", "value": {"path": "a", "oid": "0" * 64}}],
        [HEADER, {"key": "lfsFile", "value": {"path": "a", "oid": "../../x"}}],
        [HEADER, {"key": "deletedFile", "value": {"path": "not-there"}}],
        [
            HEADER,
            {"key": "file", "value": {"content": "eA==", "path": "a"}},
            {"key": "file", "value": {"content": "eA==", "path": "a/b"}},
        ],
        [],
    ],
)
def test_a_commit_that_is_wrong_in_part_is_refused_whole(
    hub: LocalHub, api: HfApi, lines: list[dict[str, Any]]
) -> None:
    api.create_repo("me/x")
    assert post_commit(hub, api, lines)[0] in (400, 404, 422)
    assert api.list_repo_files("me/x") == [".gitattributes"]


@pytest.mark.parametrize("separators", [(", ", ": "), (",", ":")], ids=["python", "compact"])
@pytest.mark.parametrize("n_bytes", [0, 1, 2, 3, 5_000_000])
def test_contents_inside_a_commit_arrive_however_the_line_is_written(
    plain_hub: LocalHub, token_for: Callable[..., str], separators: tuple[str, str], n_bytes: int
) -> None:
    api = HfApi(plain_hub.url, token=token_for(plain_hub))
    api.create_repo("me/x")
    content = os.urandom(n_bytes)
    encoded = base64.b64encode(content).decode()
    names = ('a"content": "b.bin', "plain.bin")
    for value in ({"content": encoded, "path": names[0]}, {"path": names[1], "content": encoded}):
        lines = (HEADER, {"key": "file", "value": {**value, "encoding": "base64"}})
        body = "\n".join(json.dumps(line, separators=separators) for line in lines).encode()
        url = f"{plain_hub.url}/api/models/me/x/commit/main"
        assert request(url, "POST", body, Authorization=f"Bearer {api.token}")[0] == 200
    for name in names:
        assert Path(api.hf_hub_download("me/x", name)).read_bytes() == content


def test_an_lfs_object_must_have_its_hash_and_be_this_repos(hub: LocalHub, api: HfApi, tokens: SimpleNamespace) -> None:
    api.create_repo("me/x")
    api.create_repo("me/y")
    content = b"secret weights"
    oid = hashlib.sha256(content).hexdigest()

    def batch(repo: str) -> dict[str, Any]:
        body = json.dumps({"operation": "upload", "objects": [{"oid": oid, "size": len(content)}]}).encode()
        url = f"{hub.url}/{repo}.git/info/lfs/objects/batch"
        answer = json.loads(request(url, "POST", body, Authorization=f"Bearer {tokens.me}")[1])
        return dict(answer["objects"][0])

    place = batch("me/x")["actions"]["upload"]["href"]
    assert request(place, "PUT", b"other  weights")[0] == 400
    assert request(place, "PUT", content[:-1])[0] == 400
    assert request(place, "PUT", content + b"!")[0] == 400
    assert request(place[:-4] + "0000", "PUT", content)[0] == 403
    assert "actions" in batch("me/x")
    assert request(place, "PUT", content)[0] == 200
    assert "actions" not in batch("me/x")
    # Knowing the name of a content is not having it: another repo cannot commit it.
    assert "actions" in batch("me/y")
    header, file = HEADER, {"key": "lfsFile", "value": {"path": "w.bin", "oid": oid, "size": 14}}
    body = b"\n".join(json.dumps(line).encode() for line in (header, file))
    for repo, status in (("me/y", 400), ("me/x", 200)):
        url = f"{hub.url}/api/models/{repo}/commit/main"
        assert request(url, "POST", body, Authorization=f"Bearer {tokens.me}")[0] == status
    assert Path(api.hf_hub_download("me/x", "w.bin")).read_bytes() == content


def test_ranges_and_headers_of_a_download(hub: LocalHub, api: HfApi) -> None:
    api.create_repo("me/x")
    commit = add(api, a__txt=b"0123456789")
    url = f"{hub.url}/me/x/resolve/main/a.txt"
    status, body, headers = request(url)
    assert (status, body, headers["X-Repo-Commit"]) == (200, b"0123456789", commit.oid)
    cases = {"bytes=2-4": b"234", "bytes=7-": b"789", "bytes=-2": b"89", "bytes=0-99": b"0123456789"}
    for asked, expected in cases.items():
        status, body, headers = request(url, Range=asked)
        assert (status, body) == (206, expected)
        assert headers["Content-Range"].endswith("/10")
    assert request(url, Range="bytes=10-")[0] == 416
    assert request(url, Range="nonsense")[:2] == (200, b"0123456789")
    status, body, headers = request(url, "HEAD")
    assert (status, body, headers["Content-Length"]) == (200, b"", "10")


def test_listing_by_tag_base_model_author_and_words(hub: LocalHub, api: HfApi) -> None:
    for number in range(3):
        api.create_repo(f"me/m{number}")
        add(
            api,
            f"me/m{number}",
            README__md=f"---\nbase_model: a/b{number % 2}\ntags: [t, u]\nlicense: mit\n---\n".encode(),
        )
    api.create_repo("lab/z")

    def ids(**query: Any) -> list[str]:
        return [model.id for model in api.list_models(**query)]

    assert ids() == ["lab/z", "me/m0", "me/m1", "me/m2"]
    assert ids(filter=["t", "base_model:a/b0"]) == ["me/m0", "me/m2"]
    assert ids(filter="license:mit", limit=2) == ["me/m0", "me/m1"]
    assert ids(author="lab") == ["lab/z"]
    assert ids(search="M1") == ["me/m1"]
    assert ids(filter="absent") == []
    assert api.model_info("me/m0").card_data.license == "mit"


def test_an_unknown_request_is_said_so(plain_hub: LocalHub, capsys: pytest.CaptureFixture[str]) -> None:
    status, body, _ = request(f"{plain_hub.url}/api/brand-new")
    assert (status, b"does not know GET /api/brand-new" in body) == (501, True)
    assert plain_hub.unknown_requests == ["GET /api/brand-new"]
    assert "unknown request" in capsys.readouterr().err


def test_a_request_nobody_expected_is_answered(plain_hub: LocalHub, token_for: Callable[..., str]) -> None:
    HfApi(plain_hub.url, token=token_for(plain_hub)).create_repo("me/x")
    headers = {"Authorization": f"Bearer {token_for(plain_hub)}"}
    connection = http.client.HTTPConnection(plain_hub.url.removeprefix("http://"))
    for body, status in ((b'{"files": [{}]}', 400), (b"[]", 400), (b"{", 400), (b'{"files": []}', 200)):
        connection.request("POST", "/api/models/me/x/preupload/main", body, headers)
        answer = connection.getresponse()
        answer.read()
        assert answer.status == status
    connection.close()


def test_a_full_disk_is_said_so(
    plain_hub: LocalHub, token_for: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    api = HfApi(plain_hub.url, token=token_for(plain_hub))
    api.create_repo("me/x")

    def full(self: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("oattn_hub.local_hub.blobs.Draft.finish", full)
        with pytest.raises(HfHubHTTPError, match="507"):
            add(api, a__txt=b"1")
    assert api.list_repo_files("me/x") == [".gitattributes"]
    add(api, a__txt=b"1")


def test_requests_without_a_clear_end_close_the_connection(plain_hub: LocalHub) -> None:
    host, port = plain_hub.url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=120) as connection:
        connection.sendall(b"POST /api/repos/create HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n")
        answer = b""
        while chunk := connection.recv(4096):
            answer += chunk
    assert answer.startswith(b"HTTP/1.1 400")


def test_chunked_bodies_are_read(plain_hub: LocalHub, token_for: Callable[..., str]) -> None:
    connection = http.client.HTTPConnection(plain_hub.url.removeprefix("http://"))
    headers = {"Authorization": f"Bearer {token_for(plain_hub)}"}
    for _ in range(2):  # twice on one connection: the first body was read to its end
        pieces = iter([b'{"name": "chun', b'ked"', b"}"])
        connection.request("POST", "/api/repos/create", pieces, headers, encode_chunked=True)
        answer = connection.getresponse()
        answer.read()
    assert answer.status == 409
    connection.close()


def test_the_pages_say_that_the_hub_is_local(plain_hub: LocalHub, token_for: Callable[..., str]) -> None:
    api = HfApi(plain_hub.url, token=token_for(plain_hub))
    api.create_repo("me/x")
    add(api, README__md=b"---\nlicense: mit\n---\n# Title <script>alert(1)</script>\n\n![f](figures/a.png)\n")
    for path in ("/", "/me/x"):
        status, body, headers = request(plain_hub.url + path)
        assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
        assert b"Nothing here is on huggingface.co" in body
    assert b"<script>" not in body
    assert b"license: mit" not in body
    assert plain_hub.url.startswith("http://127.0.0.1:")


def test_names_of_tags_and_branches_are_checked(api: HfApi) -> None:
    api.create_repo("me/x")
    for name in ("a..b", "-a", "a.lock", "a//b"):
        with pytest.raises(BadRequestError):
            api.create_tag("me/x", tag=name)
