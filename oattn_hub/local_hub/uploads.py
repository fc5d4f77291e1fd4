"""Routes by which contents come in before a commit: what goes where, and git-LFS uploads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oattn_hub.local_hub.body import MAX_BODY
from oattn_hub.local_hub.discussions import check_author
from oattn_hub.local_hub.faults import Fault
from oattn_hub.local_hub.paths import check_path
from oattn_hub.local_hub.repos import Repo, is_large
from oattn_hub.local_hub.repositories import open_repo
from oattn_hub.local_hub.routing import MAX_ITEMS, REPO, REVISION, TYPE, Request, Response, listed, route
from oattn_hub.local_hub.store import check_role
from oattn_hub.types import JsonObject

if TYPE_CHECKING:
    from oattn_hub.local_hub.server import LocalHub

_SHA256 = re.compile(r"[0-9a-f]{64}")
_OBJECT = f"/_lfs/{TYPE}/{REPO}/(?P<oid>[0-9a-f]{{64}})/(?P<size>[0-9]{{1,15}})"


@route("POST", f"/api/{TYPE}/{REPO}/preupload/{REVISION}")
def preupload(hub: LocalHub, request: Request) -> Response:
    """For each file: whether it goes by LFS or inside the commit, and what the repo has under that name."""
    repo = open_for_upload(hub, request)
    present = repo.resolve(request.revision).files
    answers = []
    for file in listed(request.json(), "files"):
        path, size = check_path(file.get("path")), check_size(file.get("size"))
        by_lfs = hub.large_files == "lfs" and is_large(path, size)
        answer = {"path": path, "uploadMode": "lfs" if by_lfs else "regular", "shouldIgnore": False}
        if path in present:
            answer["oid"] = present[path].sha256 if by_lfs else present[path].git_oid
        answers.append(answer)
    return Response(body={"files": answers})


@route("POST", f"/(?:{TYPE}/)?{REPO}\\.git/info/lfs/objects/batch")
def lfs_batch(hub: LocalHub, request: Request) -> Response:
    """Where each large file is to be put; one that this repo has needs no upload."""
    check_role(request.account)
    repo, wanted = open_repo(hub, request), request.json()
    if wanted.get("operation") != "upload":
        raise Fault(422, f"The operation {wanted.get('operation')!r} is not supported")
    items = listed(wanted, "objects")
    if sum(_n_parts(hub, check_size(item.get("size"))) for item in items) > MAX_ITEMS:
        raise Fault(413, f"The large files would come in more than {MAX_ITEMS} parts; ask for fewer at once")
    objects = [_object(hub, repo, item) for item in items]
    kinds = {item.pop("transfer", "basic") for item in objects}
    transfers = wanted.get("transfers", [])
    multipart = "multipart" in kinds and isinstance(transfers, list) and "multipart" in transfers
    transfer = "multipart" if multipart else "basic"
    return Response(body={"transfer": transfer, "objects": objects})


@route("PUT", _OBJECT + "/(?P<signature>[0-9a-f]+)")
def put_object(hub: LocalHub, request: Request) -> Response:
    """A large file in one piece; its SHA-256 must be what was announced."""
    repo, oid, size = _signed_object(hub, request, "whole")
    repo.note_upload(hub.store.blobs.add(request.chunks(), size, oid))
    return Response(body={})


@route("PUT", _OBJECT + "/part/(?P<part>[0-9]{1,9})/(?P<signature>[0-9a-f]+)")
def put_part(hub: LocalHub, request: Request) -> Response:
    """One part of a large file."""
    part = int(request.parts["part"])
    _, oid, size = _signed_object(hub, request, part)
    expected = min(hub.part_size, size - (part - 1) * hub.part_size)
    with hub.store.blobs.scratch() as draft:
        count = 0
        with draft.open("wb") as stream:
            for chunk in request.chunks():
                count += len(chunk)
                if count > expected:
                    break
                stream.write(chunk)
        if count != expected:
            raise Fault(400, f"Part {part} has {count} bytes or more, expected were {expected}")
        draft.replace(hub.store.blobs.part_path(oid, part))
    return Response(body={}, headers={"ETag": f'"{hub.sign(oid, part)[:32]}"'})


@route("POST", _OBJECT + "/complete/(?P<signature>[0-9a-f]+)")
def complete_parts(hub: LocalHub, request: Request) -> Response:
    """Join the parts; their SHA-256 must be what was announced."""
    repo, oid, size = _signed_object(hub, request, "complete")
    count = _n_parts(hub, size)
    parts = listed(request.json(), "parts")
    named = [(part.get("partNumber"), str(part.get("etag")).strip('"')) for part in parts]
    if named != [(part, hub.sign(oid, part)[:32]) for part in range(1, count + 1)]:
        raise Fault(400, f"The list of parts is not that of the {count} uploaded parts")
    paths = [hub.store.blobs.part_path(oid, part) for part in range(1, count + 1)]
    if not all(path.exists() for path in paths):
        raise Fault(400, "A part is missing; upload the file again")
    repo.note_upload(hub.store.blobs.add(_joined(paths), size, oid))
    for path in paths:
        path.unlink(missing_ok=True)
    return Response(body={})


@route("POST", f"/_lfs/{TYPE}/{REPO}/verify")
def verify_object(hub: LocalHub, request: Request) -> Response:
    """Whether a large file arrived, in full."""
    repo, wanted = open_repo(hub, request), request.json()
    blob = repo.uploaded(check_sha256(wanted.get("oid")))
    if blob is None or blob.size != wanted.get("size"):
        raise Fault(404, f"The object {wanted.get('oid')} was not uploaded")
    return Response(body={})


def open_for_upload(hub: LocalHub, request: Request) -> Repo:
    """Whoever may read a repo, and has a token that may write, may open a pull request there and add to his own."""
    if not request.flag("create_pr") and not request.revision.startswith("refs/pr/"):
        return open_repo(hub, request, write=True)
    account = check_role(request.account)
    repo = open_repo(hub, request)
    if not request.flag("create_pr"):
        check_author(repo, request.revision, account)
    return repo


def check_sha256(oid: object) -> str:
    """Refuse a name for a large file that is none; it becomes part of a file name here."""
    if not isinstance(oid, str) or not _SHA256.fullmatch(oid):
        raise Fault(422, f"{str(oid)[:80]!r} is not a SHA-256")
    return oid


def check_size(size: object) -> int:
    """Refuse a size that no file has; memory and disk are taken for it."""
    if not isinstance(size, int) or isinstance(size, bool) or not 0 <= size <= MAX_BODY:
        raise Fault(422, f"{str(size)[:40]!r} is not a file size between 0 and {MAX_BODY:,} bytes")
    return size


def _object(hub: LocalHub, repo: Repo, item: dict[str, Any]) -> JsonObject:
    oid, size = check_sha256(item.get("oid")), check_size(item.get("size"))
    answer: JsonObject = {"oid": oid, "size": size}
    if repo.uploaded(oid):
        return answer
    base = f"{hub.url}/_lfs/{repo.state.type}s/{repo.state.id}"
    place = f"{base}/{oid}/{size}"

    def signed(step: object) -> str:
        return hub.sign(repo.state.type, repo.state.id, oid, size, step)

    upload: JsonObject = {"href": f"{place}/{signed('whole')}"}
    if size > hub.part_size:
        answer["transfer"] = "multipart"
        numbers = range(1, _n_parts(hub, size) + 1)
        parts = {f"{n:05d}": f"{place}/part/{n}/{signed(n)}" for n in numbers}
        upload = {
            "href": f"{place}/complete/{signed('complete')}",
            "header": {"chunk_size": str(hub.part_size), **parts},
        }
    return {**answer, "actions": {"upload": upload, "verify": {"href": f"{base}/verify"}}}


def _signed_object(hub: LocalHub, request: Request, step: object) -> tuple[Repo, str, int]:
    oid, size = request.parts["oid"], int(request.parts["size"])
    hub.check_signature(request.parts["signature"], request.repo_type, request.repo_id, oid, size, step)
    return hub.store.repo(request.repo_type, request.repo_id), oid, size


def _n_parts(hub: LocalHub, size: int) -> int:
    return -(-size // hub.part_size)


def _joined(paths: list[Path]) -> Iterator[bytes]:
    for path in paths:
        with path.open("rb") as stream:
            while chunk := stream.read(1 << 20):
                yield chunk
