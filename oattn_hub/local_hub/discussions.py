"""Routes for pull requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from oattn_hub.local_hub.accounts import Account
from oattn_hub.local_hub.faults import Fault
from oattn_hub.local_hub.repos import Repo, now
from oattn_hub.local_hub.repositories import open_repo
from oattn_hub.local_hub.routing import REPO, TYPE, Request, Response, route
from oattn_hub.local_hub.store import check_role

if TYPE_CHECKING:
    from oattn_hub.local_hub.server import LocalHub

_MAX_PULL_REQUESTS = 1000
_MAX_TITLE, _MAX_TEXT = 1000, 64_000  # letters
_NUMBER = "(?P<number>[0-9]{1,9})"


@route("POST", f"/api/{TYPE}/{REPO}/discussions")
def create_discussion(hub: LocalHub, request: Request) -> Response:
    """Open a pull request to be filled by commits to its reference."""
    account = check_role(request.account)
    repo, wanted = open_repo(hub, request), request.json()
    if not wanted.get("pullRequest"):
        raise Fault(501, "The local Hub knows pull requests, not discussions without one")
    head = repo.resolve("main").oid
    number = open_pull_request(
        repo, str(wanted.get("title")), str(wanted.get("description")), account.name, head, head, "main"
    )
    return Response(body={"num": number, "pullRequest": True})


@route("GET", f"/api/{TYPE}/{REPO}/discussions")
def list_discussions(hub: LocalHub, request: Request) -> Response:
    """The pull requests, newest first."""
    repo = open_repo(hub, request)
    author, status = (request.query.get(name, [""])[0] for name in ("author", "status"))
    found = [
        _describe(repo, item)
        for item in reversed(repo.state.discussions)
        if author in ("", item["author"])
        and (status in ("", "all") or (item["status"] in ("open", "draft")) == (status == "open"))
    ]
    return Response(body={"discussions": found, "count": len(found), "start": 0})


@route("GET", f"/api/{TYPE}/{REPO}/discussions/{_NUMBER}")
def discussion(hub: LocalHub, request: Request) -> Response:
    """One pull request."""
    repo = open_repo(hub, request)
    item = _find(repo, request)
    changes = {"base": f"refs/heads/{item['target']}", "mergeCommitId": item.get("merge_commit")}
    details = {"changes": changes, "filesWithConflicts": [], "events": [], "diff": ""}
    return Response(body={**_describe(repo, item), **details})


@route("POST", f"/api/{TYPE}/{REPO}/discussions/{_NUMBER}/merge")
def merge(hub: LocalHub, request: Request) -> Response:
    """Put what the pull request changed onto its target branch."""
    repo = open_repo(hub, request, write=True)
    assert request.account is not None  # it may write
    with repo.lock:
        item = _find(repo, request)
        _check_open(item)
        target = repo.branch_ref(item["target"])
        base = repo.commit(item["base"]).files
        new = repo.resolve(f"refs/pr/{item['num']}").files
        changed = {path: entry for path, entry in new.items() if base.get(path) != entry}
        removed = base.keys() - new.keys()
        head = repo.resolve(item["target"]).files
        conflicts = [path for path in {*changed, *removed} if head.get(path) not in (base.get(path), new.get(path))]
        if conflicts:
            raise Fault(409, f"The pull request conflicts with {item['target']} in {', '.join(sorted(conflicts))}")
        made = repo.append(
            target,
            lambda files: {**{path: entry for path, entry in files.items() if path not in removed}, **changed},
            f"{item['title']} (#{item['num']})",
            "",
            request.account.name,
        )
        _replace(repo, {**item, "status": "merged", "merge_commit": made.oid})
    return Response(body={})


@route("POST", f"/api/{TYPE}/{REPO}/discussions/{_NUMBER}/status")
def change_status(hub: LocalHub, request: Request) -> Response:
    """Open or close a pull request."""
    repo, status = open_repo(hub, request, write=True), request.json().get("status")
    if status not in ("open", "closed"):
        raise Fault(400, f"The status {status!r} is not one of open, closed")
    with repo.lock:
        item = {**_find(repo, request), "status": status}
        _replace(repo, item)
    event = {"id": "1", "type": "status-change", "createdAt": now(), "author": {"name": item["author"]}, "data": {}}
    return Response(body={"newStatus": {**event, "data": {"status": status}}})


def open_pull_request(repo: Repo, title: str, description: str, author: str, base: str, head: str, target: str) -> int:
    """Add a pull request that leads from commit ``base`` to ``head``; it and its reference appear in one step."""
    with repo.lock:
        repo.branch_ref(target)
        if len(repo.state.discussions) >= _MAX_PULL_REQUESTS:
            raise Fault(403, f"{repo.state.id} has {_MAX_PULL_REQUESTS} pull requests already")
        number = len(repo.state.discussions) + 1
        item = {
            "num": number,
            "title": title[:_MAX_TITLE],
            "description": description[:_MAX_TEXT],
            "author": author,
            "created": now(),
            "status": "open",
            "base": base,
            "target": target.removeprefix("refs/heads/"),
        }
        repo.save(discussions=(*repo.state.discussions, item), refs={**repo.state.refs, f"refs/pr/{number}": head})
    return number


def check_author(repo: Repo, revision: str, account: Account) -> None:
    """Refuse whoever neither opened the pull request ``refs/pr/N`` nor may write to its repo."""
    number = revision.removeprefix("refs/pr/")
    known = number.isascii() and number.isdecimal() and len(number) < 10
    if not known or not 1 <= int(number) <= len(repo.state.discussions):
        raise Fault(404, f"Invalid rev id: {revision}", "RevisionNotFound")
    item = repo.state.discussions[int(number) - 1]
    if account.name != item["author"] and not account.may_write(repo.state.id.split("/")[0]):
        raise Fault(403, f"Pull request {number} was opened by {item['author']}, not by {account.name}")


def _find(repo: Repo, request: Request) -> dict[str, Any]:
    number = int(request.parts["number"])
    if not 1 <= number <= len(repo.state.discussions):
        raise Fault(404, f"There is no pull request {number}")
    return repo.state.discussions[number - 1]


def _check_open(item: dict[str, Any]) -> None:
    if item["status"] not in ("open", "draft"):
        raise Fault(409, f"Pull request {item['num']} is {item['status']}")


def _replace(repo: Repo, item: dict[str, Any]) -> None:
    others = repo.state.discussions
    repo.save(discussions=tuple(item if other["num"] == item["num"] else other for other in others))


def _describe(repo: Repo, item: dict[str, Any]) -> dict[str, Any]:
    return {
        "num": item["num"],
        "title": item["title"],
        "author": {"name": item["author"]},
        "createdAt": item["created"],
        "status": item["status"],
        "isPullRequest": True,
        "repo": {"name": repo.state.id, "type": repo.state.type},
    }
