"""Routes that list and send files."""

from __future__ import annotations

import mimetypes
import re
from typing import TYPE_CHECKING

from oattn_hub.local_hub.faults import Fault
from oattn_hub.local_hub.repos import Commit, Entry, Repo
from oattn_hub.local_hub.repositories import open_repo
from oattn_hub.local_hub.routing import REPO, REVISION, TYPE, Request, Response, route
from oattn_hub.types import JsonObject

if TYPE_CHECKING:
    from oattn_hub.local_hub.server import LocalHub

# A published page may run in a browser, but not as a page of this server.
_SANDBOX = (
    "sandbox allow-scripts; default-src 'none'; script-src 'unsafe-inline' 'unsafe-eval'; "
    "style-src 'unsafe-inline'; img-src data:; font-src data:"
)
_RANGE = re.compile(r"bytes=([0-9]{0,15})-([0-9]{0,15})")


@route("GET", f"/(?:{TYPE}/)?{REPO}/(?:resolve|raw)/{REVISION}/(?P<path>.+)")
def resolve(hub: LocalHub, request: Request) -> Response:
    """A file's bytes, or a range of them."""
    repo = open_repo(hub, request)
    _check_gate(repo, request)
    commit = repo.resolve(request.revision)
    entry = commit.files.get(request.parts["path"])
    if entry is None:
        raise Fault(404, "Entry not found", "EntryNotFound")
    headers = {
        "X-Repo-Commit": commit.oid,
        "ETag": f'"{entry.etag}"',
        "X-Linked-Size": str(entry.size),
        "Accept-Ranges": "bytes",
        "Content-Security-Policy": _SANDBOX,
    }
    if entry.lfs:
        headers["X-Linked-Etag"] = f'"{entry.sha256}"'
    kind = mimetypes.guess_type(request.parts["path"])[0] or "application/octet-stream"
    offset, length, status = _span(request.headers.get("Range"), entry.size)
    if status == 206:
        headers["Content-Range"] = f"bytes {offset}-{offset + length - 1}/{entry.size}"
    path = hub.store.blobs.path(entry.sha256)
    return Response(status, headers=headers, file=path, span=(offset, length), content_type=kind)


@route("GET", f"/api/{TYPE}/{REPO}/tree/{REVISION}(?:/(?P<path>.*))?")
def tree(hub: LocalHub, request: Request) -> Response:
    """The files and folders of a commit."""
    commit = open_repo(hub, request).resolve(request.revision)
    prefix = request.parts.get("path", "").strip("/")
    below = f"{prefix}/" if prefix else ""
    entries = [item for path, item in _tree(commit).items() if path.startswith(below)]
    if prefix and not entries:
        raise Fault(404, f"{prefix} does not exist on {request.revision}", "EntryNotFound")
    if not request.flag("recursive"):
        entries = [item for item in entries if "/" not in str(item["path"])[len(below) :]]
    return Response(body=entries)


@route("POST", f"/api/{TYPE}/{REPO}/paths-info/{REVISION}")
def paths_info(hub: LocalHub, request: Request) -> Response:
    """The same for chosen paths; those that do not exist are left out."""
    commit = open_repo(hub, request).resolve(request.revision)
    known = _tree(commit)
    wanted = [path.strip("/") for path in request.form().get("paths", [])]
    return Response(body=[known[path] for path in wanted if path in known])


def _tree(commit: Commit) -> dict[str, JsonObject]:
    folders = {path[:i] for path in commit.files for i, letter in enumerate(path) if letter == "/"}
    items: dict[str, JsonObject] = {}
    for path in folders:
        items[path] = {"type": "directory", "path": path, "oid": commit.oid, "size": 0}
    return dict(sorted({**items, **{path: _describe(path, entry) for path, entry in commit.files.items()}}.items()))


def _describe(path: str, entry: Entry) -> JsonObject:
    item: JsonObject = {"type": "file", "path": path, "size": entry.size, "oid": entry.oid}
    if entry.lfs:
        item["lfs"] = {"oid": entry.sha256, "size": entry.size, "pointerSize": entry.pointer_size}
    return item


def _check_gate(repo: Repo, request: Request) -> None:
    owner = request.account is not None and request.account.owns(repo.state.id.split("/")[0])
    if repo.state.gated and not owner:
        message = f"Access to model {repo.state.id} is restricted and you are not in the authorized list."
        raise Fault(403 if request.account else 401, message, "GatedRepo")


def _span(header: str | None, size: int) -> tuple[int, int, int]:
    """Offset, length and status for a Range header; only a single range is known."""
    match = _RANGE.fullmatch(header or "")
    if match is None or match[0] == "bytes=-":
        return 0, size, 200
    if match[1]:
        start, end = int(match[1]), min(int(match[2] or size - 1), size - 1)
    else:
        start, end = max(size - int(match[2]), 0), size - 1
    if start > end:
        raise Fault(416, f"The range {header} lies outside the {size} bytes of the file")
    return start, end - start + 1, 206
