"""Routes for collections, as the client makes, fills, lists and reads them."""

from __future__ import annotations

import re
import secrets
from threading import Lock
from typing import TYPE_CHECKING, Any

from oattn_hub.files import read_json, write_json
from oattn_hub.local_hub.accounts import Account
from oattn_hub.local_hub.faults import Fault
from oattn_hub.local_hub.repos import now
from oattn_hub.local_hub.routing import Request, Response, route
from oattn_hub.local_hub.store import REPO_TYPES, check_write

if TYPE_CHECKING:
    from oattn_hub.local_hub.server import LocalHub

SLUG = r"(?P<slug>[^/]+/[^/]+)"
_ITEM = r"(?P<item>[0-9a-f]{24})"
_lock = Lock()
Collections = dict[str, dict[str, Any]]


@route("POST", "/api/collections")
def create_collection(hub: LocalHub, request: Request) -> Response:
    """Make a collection; one of that title in that namespace is a conflict that names it."""
    wanted = request.json()
    title, namespace = str(wanted.get("title") or ""), str(wanted.get("namespace") or "")
    if not 0 < len(title) < 60:
        raise Fault(400, "The title of a collection has 1 to 59 characters")
    if len(str(wanted.get("description") or "")) > 150:
        raise Fault(400, "The description of a collection has at most 150 characters")
    check_write(request.account, namespace)
    with _lock:
        known = _read(hub)
        for slug, collection in known.items():
            if (collection["owner"]["name"], collection["title"]) == (namespace, title):
                raise Fault(409, f"The collection {title!r} is already there", body={"slug": slug})
        slug = f"{namespace}/{re.sub(r'[^a-z0-9]+', '-', title.lower()).strip('-')}-{secrets.token_hex(12)}"
        known[slug] = {
            "slug": slug,
            "title": title,
            "description": wanted.get("description"),
            "owner": {"name": namespace},
            "private": bool(wanted.get("private")),
            "theme": "blue",
            "upvotes": 0,
            "position": len(known),
            "lastUpdated": now(),
            "items": [],
        }
        return _written(hub, known, slug)


@route("GET", "/api/collections")
def list_collections(hub: LocalHub, request: Request) -> Response:
    """The collections of an owner, or of all."""
    owners = request.query.get("owner")
    found = [entry for entry in _read(hub).values() if _may_read(entry, request.account)]
    wanted = [entry for entry in found if owners is None or entry["owner"]["name"] in owners]
    # the client counts the positions of a list itself, and takes none
    return Response(body=[{key: value for key, value in entry.items() if key != "position"} for entry in wanted])


@route("GET", f"/api/collections/{SLUG}")
def get_collection(hub: LocalHub, request: Request) -> Response:
    """One collection with its items."""
    return Response(body=_open(_read(hub), request))


@route("DELETE", f"/api/collections/{SLUG}")
def delete_collection(hub: LocalHub, request: Request) -> Response:
    """Take the collection away; its repos stay."""
    with _lock:
        known = _read(hub)
        del known[_open(known, request, write=True)["slug"]]
        _write(hub, known)
    return Response(body={})


@route("POST", f"/api/collections/{SLUG}/items")
def add_item(hub: LocalHub, request: Request) -> Response:
    """Add a repo that is here; a second time is a conflict."""
    wanted = request.json()
    item = wanted.get("item")
    repo_type, repo_id = (str(item.get(key)) for key in ("type", "id")) if isinstance(item, dict) else ("", "")
    if repo_type not in REPO_TYPES:
        raise Fault(400, f"An item has a type ({', '.join(REPO_TYPES)}) and an id")
    hub.store.open(repo_type, repo_id, request.account)  # a repo that is not here, or not to be seen, is refused
    with _lock:
        known = _read(hub)
        collection = _open(known, request, write=True)
        if any((entry["type"], entry["id"]) == (repo_type, repo_id) for entry in collection["items"]):
            raise Fault(409, f"{repo_id} is already in this collection")
        entry = {"_id": secrets.token_hex(12), "type": repo_type, "id": repo_id, "position": len(collection["items"])}
        note = wanted.get("note")
        collection["items"].append(entry | ({"note": {"text": str(note)}} if note else {}))
        return _written(hub, known, collection["slug"])


@route("DELETE", f"/api/collections/{SLUG}/items/{_ITEM}")
def delete_item(hub: LocalHub, request: Request) -> Response:
    """Take an item out."""
    with _lock:
        known = _read(hub)
        collection = _open(known, request, write=True)
        rest = [entry for entry in collection["items"] if entry["_id"] != request.parts["item"]]
        if len(rest) == len(collection["items"]):
            raise Fault(404, "No such item in this collection")
        collection["items"] = rest
        return _written(hub, known, collection["slug"])


def _open(known: Collections, request: Request, write: bool = False) -> dict[str, Any]:
    """The collection that is asked for, also by its slug without the title, as the Hub takes it."""
    mark = request.parts["slug"].rsplit("-", 1)[-1]
    found = next((entry for slug, entry in known.items() if slug.rsplit("-", 1)[-1] == mark), None)
    if found is None or not _may_read(found, request.account):
        raise Fault(404, "No such collection")
    if write:
        check_write(request.account, found["owner"]["name"])
    return found


def _may_read(collection: dict[str, Any], account: Account | None) -> bool:
    return not collection["private"] or (account is not None and account.owns(collection["owner"]["name"]))


def _read(hub: LocalHub) -> Collections:
    file = hub.store.root / "collections.json"
    return dict(read_json(file)) if file.exists() else {}


def _written(hub: LocalHub, known: Collections, slug: str) -> Response:
    known[slug]["lastUpdated"] = now()
    _write(hub, known)
    return Response(body=known[slug])


def _write(hub: LocalHub, known: Collections) -> None:
    write_json(hub.store.root / "collections.json", known)
