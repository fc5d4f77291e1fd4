"""Routes that check a card and make a commit."""

from __future__ import annotations

import base64
import binascii
import json
import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from oattn_hub.files.front_matter import parse_front_matter
from oattn_hub.local_hub.blobs import BlobStore
from oattn_hub.local_hub.discussions import open_pull_request
from oattn_hub.local_hub.faults import Fault
from oattn_hub.local_hub.metadata import check_card
from oattn_hub.local_hub.paths import check_path
from oattn_hub.local_hub.repos import Entry, Repo, entry_for
from oattn_hub.local_hub.repositories import repo_url
from oattn_hub.local_hub.routing import REPO, REVISION, TYPE, Request, Response, route
from oattn_hub.local_hub.uploads import check_sha256, open_for_upload

if TYPE_CHECKING:
    from oattn_hub.local_hub.server import LocalHub

_CONTENT = b'"content": "'
_MAX_TITLE, _MAX_TEXT = 1000, 64_000  # letters
_MAX_FILES = 100_000
_MAX_LINE = 64 * 2**20  # beside the content: other clients' lines are parsed as a whole
_SLICE = 4 * 2**20  # of base64, a multiple of four letters


@route("POST", "/api/validate-yaml")
def validate_yaml(hub: LocalHub, request: Request) -> Response:
    """Whether the Hub would take this card."""
    try:
        parse_front_matter(str(request.json().get("content", "")))
    except ValueError as error:
        return Response(400, {"errors": [{"message": str(error)}], "warnings": []})
    return Response(body={"errors": [], "warnings": []})


@route("POST", f"/api/{TYPE}/{REPO}/commit/{REVISION}")
def commit(hub: LocalHub, request: Request) -> Response:
    """Make one commit of all changes, or none."""
    repo = open_for_upload(hub, request)
    assert request.account is not None  # uploads take an account
    with hub.store.blobs.scratch() as path:
        with path.open("wb") as stream:
            for chunk in request.chunks():
                stream.write(chunk)
        change = _read_change(path, hub.store.blobs, repo)
    if "README.md" in change.files:
        check_card(hub.store.blobs, change.files["README.md"])
    url = repo_url(hub, repo.state.type, repo.state.id)
    words = (change.title, change.description, request.account.name)
    answer: dict[str, object] = {"success": True}
    with repo.lock:
        if request.flag("create_pr"):
            base = repo.resolve(request.revision)
            change.check_parent(base.oid)
            made = repo.write_commit((base.oid,), *words, change.apply(base.files))
            number = open_pull_request(repo, *words, base.oid, made.oid, request.revision)
            answer["pullRequestUrl"] = f"{url}/discussions/{number}"
        else:
            made = repo.append(repo.branch_ref(request.revision), change.apply, *words, change.parent)
    return Response(body={**answer, "commitOid": made.oid, "commitUrl": f"{url}/commit/{made.oid}"})


@dataclass
class _Change:
    """What a commit asks for."""

    title: str = ""
    description: str = ""
    parent: str | None = None
    files: dict[str, Entry] = field(default_factory=dict)
    removed_files: list[str] = field(default_factory=list)
    removed_folders: list[str] = field(default_factory=list)

    def check_parent(self, head: str) -> None:
        """Refuse a change that was made for another head."""
        if self.parent not in (None, head):
            raise Fault(412, f"A commit has happened since. The head is {head}, not {str(self.parent)[:40]}.")

    def apply(self, present: Mapping[str, Entry]) -> dict[str, Entry]:
        """The files after the change."""
        for path in self.removed_files:
            if path not in present:
                raise Fault(404, f"A file with this name doesn't exist: {path}", "EntryNotFound")
        erased = {*self.removed_files}
        folders = tuple(f"{folder.strip('/')}/" for folder in self.removed_folders)
        kept = {p: entry for p, entry in present.items() if p not in erased and not (folders and p.startswith(folders))}
        result = {**kept, **self.files}
        for path in result:
            if any(str(parent) in result for parent in PurePosixPath(path).parents):
                raise Fault(400, f"{path} lies under a path that is a file")
        return result


def _read_change(path: Path, blobs: BlobStore, repo: Repo) -> _Change:
    change = _Change()
    seen_header = False
    for key, value, content in _lines(path):
        if key == "header":
            seen_header = True
            change.title = str(value.get("summary") or "")[:_MAX_TITLE]
            change.description = str(value.get("description") or "")[:_MAX_TEXT]
            change.parent = value.get("parentCommit")
        elif key == "file":
            name = check_path(value["path"])
            if value.get("encoding", "base64") != "base64":
                raise Fault(400, f"The encoding of {name} is not base64")
            # Other clients write the line differently, and their content comes with the rest of it.
            text = memoryview(str(value["content"]).encode()) if value.get("content") else content
            size = len(text) * 3 // 4 - bytes(text[-2:]).count(b"=")
            change.files[name] = entry_for(name, blobs.add(_decoded(text, name), size))
        elif key == "lfsFile":
            name = check_path(value["path"])
            change.files[name] = _uploaded(name, value, repo)
        elif key == "deletedFile":
            change.removed_files.append(check_path(value["path"]))
        elif key == "deletedFolder":
            change.removed_folders.append(check_path(value["path"].rstrip("/")))
        else:
            raise Fault(400, f"The local Hub does not know the operation {key[:40]!r}")
        if len(change.files) > _MAX_FILES:
            raise Fault(413, f"A commit may add {_MAX_FILES} files at once")
    if not seen_header or not change.title:
        raise Fault(400, "The commit has no title")
    return change


def _lines(path: Path) -> Iterator[tuple[str, dict[str, Any], memoryview]]:
    """The operations, one per line; a file's content is handed out apart, as a view of the request on disk."""
    if path.stat().st_size == 0:
        return
    with (
        path.open("rb") as stream,
        mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data,
        memoryview(data) as view,
    ):
        start = 0
        while start < len(data):
            end = data.find(b"\n", start)
            end = len(data) if end < 0 else end
            first, last = _content_span(data, start, end)
            if first - start + end - last > _MAX_LINE:
                raise Fault(413, "A line of the commit is too long")
            with view[first:last] as content:
                yield *_parse(data[start:first] + data[last:end]), content
            start = end + 1


def _content_span(data: mmap.mmap, start: int, end: int) -> tuple[int, int]:
    """Where a line's base64 lies: a model's weights must not go through a JSON parser, nor several times to memory."""
    mark = data.find(_CONTENT, start, min(end, start + 200))
    if mark < 0:
        return end, end
    first = mark + len(_CONTENT)
    last = data.find(b'"', first, end)
    if last < 0:
        raise Fault(400, "A line of the commit is not JSON")
    return first, last


def _parse(line: bytes) -> tuple[str, dict[str, Any]]:
    try:
        item = json.loads(line)
        key, value = item["key"], item["value"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise Fault(400, f"A line of the commit is not an operation: {error}") from error
    if not isinstance(value, dict) or (key != "header" and not isinstance(value.get("path"), str)):
        raise Fault(400, f"The operation {str(key)[:40]!r} has no path")
    return str(key), value


def _decoded(content: memoryview, name: str) -> Iterator[bytes]:
    for start in range(0, len(content), _SLICE):
        try:
            yield base64.b64decode(content[start : start + _SLICE], validate=True)
        except (binascii.Error, ValueError) as error:
            raise Fault(400, f"The content of {name} is not base64: {error}") from error


def _uploaded(name: str, value: dict[str, Any], repo: Repo) -> Entry:
    blob = repo.uploaded(check_sha256(value.get("oid")))
    if blob is None or value.get("algo", "sha256") != "sha256":
        raise Fault(400, f"The large file {name} ({value.get('oid')}) was not uploaded to this repo")
    if value.get("size", blob.size) != blob.size:
        raise Fault(400, f"The large file {name} has {blob.size} bytes, not {value['size']}")
    return entry_for(name, blob)
