"""Routes for accounts, repos, branches, tags and history."""

from __future__ import annotations

import re
from itertools import islice
from typing import TYPE_CHECKING
from urllib.parse import urlencode

from oattn_hub.local_hub.faults import Fault
from oattn_hub.local_hub.metadata import card_data, tags_of
from oattn_hub.local_hub.repos import Commit, Repo
from oattn_hub.local_hub.routing import REPO, REVISION, TYPE, Request, Response, route
from oattn_hub.types import JsonObject

if TYPE_CHECKING:
    from oattn_hub.local_hub.server import LocalHub

_REF_NAME = re.compile(r"(?!.*(\.\.|//|@\{|\.lock$|/$|\.$))[\w][\w./-]*", re.ASCII)
_PAGE = 1000


@route("GET", "/api/whoami-v2")
def whoami(hub: LocalHub, request: Request) -> Response:
    """Whose token it is."""
    account = request.account
    if account is None:
        raise Fault(401, "Invalid username or password.")
    return Response(
        body={
            "type": "user",
            "name": account.name,
            "fullname": f"{account.name} (local Hub, not huggingface.co)",
            "orgs": [{"type": "org", "name": name} for name in account.orgs],
            "auth": {"type": "access_token", "accessToken": {"displayName": "local", "role": account.role}},
        }
    )


@route("GET", "/api/agent-harnesses")
def agent_harnesses(hub: LocalHub, request: Request) -> Response:
    """Asked once by every client process, which takes any answer."""
    raise Fault(404, "Not found")


@route("POST", "/api/repos/create")
def create_repo(hub: LocalHub, request: Request) -> Response:
    """Make an empty repo."""
    if request.account is None:
        raise Fault(401, "Invalid username or password.")
    wanted = request.json()
    repo_type = wanted.get("type") or "model"
    repo_id = f"{wanted.get('organization') or request.account.name}/{wanted.get('name')}"
    private = wanted.get("visibility") == "private" or bool(wanted.get("private"))
    url = repo_url(hub, repo_type, repo_id)
    try:
        hub.store.create(repo_type, repo_id, private, request.account)
    except Fault as fault:
        if fault.status == 409:
            fault.body["url"] = url  # the client wants to know where the existing one is
        raise
    return Response(body={"url": url, "name": repo_id})


@route("DELETE", "/api/repos/delete")
def delete_repo(hub: LocalHub, request: Request) -> Response:
    """Delete a repo."""
    wanted = request.json()
    owner = wanted.get("organization") or (request.account.name if request.account else "")
    hub.store.delete(
        hub.store.open(wanted.get("type") or "model", f"{owner}/{wanted.get('name')}", request.account, True)
    )
    return Response(body={})


@route("POST", "/api/repos/move")
def move_repo(hub: LocalHub, request: Request) -> Response:
    """Rename a repo."""
    wanted = request.json()
    repo = hub.store.open(wanted.get("type") or "model", str(wanted.get("fromRepo")), request.account, write=True)
    assert request.account is not None  # it may write
    hub.store.move(repo, str(wanted.get("toRepo")), request.account)
    return Response(body={})


@route("PUT", f"/api/{TYPE}/{REPO}/settings")
def settings(hub: LocalHub, request: Request) -> Response:
    """Make a repo private, public or gated."""
    repo, wanted = open_repo(hub, request, write=True), request.json()
    if "visibility" in wanted or "private" in wanted:
        repo.save(private=wanted.get("visibility") == "private" or bool(wanted.get("private")))
    if "gated" in wanted:
        if wanted["gated"] not in (False, "auto", "manual"):
            raise Fault(400, "'gated' is not one of false, auto, manual")
        repo.save(gated=wanted["gated"])
    return Response(body={})


@route("GET", f"/api/{TYPE}")
def list_repos(hub: LocalHub, request: Request) -> Response:
    """Repos by tag, author and words, a page at a time."""
    query = {name.removesuffix("[]"): values for name, values in request.query.items()}
    matching = (
        (repo, commit, card)
        for repo in hub.store.visible(request.repo_type, request.account)
        for commit in [repo.resolve("main")]
        for card in [card_data(hub.store.blobs, commit)]
        if _matches(repo, tags_of(card), query)
    )
    start, limit = request.number("skip", 0), request.number("limit", _PAGE)
    found = list(islice(matching, start, start + min(limit, _PAGE) + 1))
    full = any(query.get(name) for name in ("full", "cardData", "expand"))
    body = [_info(repo, commit, card, full, blobs=False) for repo, commit, card in found[:limit][:_PAGE]]
    more = len(found) > len(body) and limit > _PAGE
    return Response(body=body, headers=_next_page(hub, request, start + len(body)) if more else {})


@route("GET", f"/api/{TYPE}/{REPO}")
@route("GET", f"/api/{TYPE}/{REPO}/revision/{REVISION}")
def repo_info(hub: LocalHub, request: Request) -> Response:
    """A repo at a revision: its commit, files, card and tags."""
    repo = open_repo(hub, request)
    commit = repo.resolve(request.revision)
    card = card_data(hub.store.blobs, commit)
    return Response(body=_info(repo, commit, card, full=True, blobs=request.flag("blobs")))


@route("GET", f"/api/{TYPE}/{REPO}/refs")
def list_refs(hub: LocalHub, request: Request) -> Response:
    """Branches, tags and pull requests."""
    refs = open_repo(hub, request).state.refs

    def under(prefix: str) -> list[dict[str, str]]:
        found = ((name, oid) for name, oid in refs.items() if name.startswith(prefix))
        return [{"name": name.removeprefix(prefix), "ref": name, "targetCommit": oid} for name, oid in found]

    groups = {"branches": under("refs/heads/"), "converts": [], "tags": under("refs/tags/")}
    return Response(body={**groups, "pullRequests": under("refs/pr/")} if request.flag("include_prs") else groups)


@route("POST", f"/api/{TYPE}/{REPO}/branch/{REVISION}")
def create_branch(hub: LocalHub, request: Request) -> Response:
    """Start a branch."""
    repo = open_repo(hub, request, write=True)
    start = repo.resolve(request.json().get("startingPoint") or "main")
    repo.add_ref(f"refs/heads/{_ref_name(request.revision)}", start.oid)
    return Response(body={})


@route("DELETE", f"/api/{TYPE}/{REPO}/branch/{REVISION}")
def delete_branch(hub: LocalHub, request: Request) -> Response:
    """Delete a branch; its commits stay reachable by id."""
    open_repo(hub, request, write=True).remove_ref(f"refs/heads/{request.revision}")
    return Response(body={})


@route("POST", f"/api/{TYPE}/{REPO}/tag/{REVISION}")
def create_tag(hub: LocalHub, request: Request) -> Response:
    """Name a commit."""
    repo = open_repo(hub, request, write=True)
    repo.add_ref(f"refs/tags/{_ref_name(request.json().get('tag'))}", repo.resolve(request.revision).oid)
    return Response(body={})


@route("DELETE", f"/api/{TYPE}/{REPO}/tag/{REVISION}")
def delete_tag(hub: LocalHub, request: Request) -> Response:
    """Take a name back."""
    open_repo(hub, request, write=True).remove_ref(f"refs/tags/{request.revision}")
    return Response(body={})


@route("GET", f"/api/{TYPE}/{REPO}/commits/{REVISION}")
def list_commits(hub: LocalHub, request: Request) -> Response:
    """The history, newest first."""
    repo = open_repo(hub, request)
    history = repo.history(repo.resolve(request.revision))
    described = [
        {"id": c.oid, "title": c.title, "message": c.message, "authors": [{"user": c.author}], "date": c.date}
        for c in history
    ]
    return Response(body=described, headers={"X-Total-Count": str(len(history))})


def open_repo(hub: LocalHub, request: Request, write: bool = False) -> Repo:
    """The repo in the request's path, if the caller may read (or write) it."""
    return hub.store.open(request.repo_type, request.repo_id, request.account, write)


def repo_url(hub: LocalHub, repo_type: str, repo_id: str) -> str:
    """Where a browser finds the repo."""
    return f"{hub.url}/{repo_id}" if repo_type == "model" else f"{hub.url}/{repo_type}s/{repo_id}"


def _info(repo: Repo, commit: Commit, card: JsonObject, full: bool, blobs: bool) -> JsonObject:
    brief: JsonObject = {
        "_id": repo.state.id,
        "id": repo.state.id,
        "modelId": repo.state.id,
        "author": repo.state.id.split("/")[0],
        "private": repo.state.private,
        "gated": repo.state.gated,
        "disabled": False,
        "createdAt": repo.state.created,
        "lastModified": commit.date,
        "sha": commit.oid,
        "tags": tags_of(card),
        "downloads": 0,
        "likes": 0,
        **{key: card[key] for key in ("library_name", "pipeline_tag") if key in card},
    }
    return {**brief, "cardData": card or None, "siblings": _siblings(commit, blobs)} if full else brief


def _siblings(commit: Commit, blobs: bool) -> list[JsonObject]:
    if not blobs:
        return [{"rfilename": path} for path in commit.files]
    listed = []
    for path, entry in commit.files.items():
        item: JsonObject = {"rfilename": path, "size": entry.size, "blobId": entry.oid}
        if entry.lfs:
            item["lfs"] = {"sha256": entry.sha256, "size": entry.size, "pointerSize": entry.pointer_size}
        listed.append(item)
    return listed


def _matches(repo: Repo, tags: list[str], query: dict[str, list[str]]) -> bool:
    wanted = [tag for value in query.get("filter", []) for tag in value.split(",")] + query.get("pipeline_tag", [])
    words = query.get("search", [""])[0].lower()
    author = query.get("author", [""])[0]
    own = author in ("", repo.state.id.split("/")[0])
    return set(wanted) <= set(tags) and words in repo.state.id.lower() and own


def _next_page(hub: LocalHub, request: Request, skip: int) -> dict[str, str]:
    query = urlencode({**request.query, "skip": [skip]}, doseq=True)
    return {"Link": f'<{hub.url}{request.path}?{query}>; rel="next"'}


def _ref_name(name: object) -> str:
    if not isinstance(name, str) or len(name) > 200 or not _REF_NAME.fullmatch(name):
        raise Fault(400, f"{str(name)[:100]!r} is not a valid name for a branch or a tag")
    return name
