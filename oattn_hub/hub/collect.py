"""Repos that belong together, as a Collection of the Hub."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from oattn_hub.hub.client import explained, open_api

RepoType = Literal["model", "dataset", "space"]


def collect_repos(
    title: str,
    namespace: str,
    repos: Iterable[tuple[str, RepoType]],
    *,
    description: str | None = None,
    private: bool = False,
    token: str | bool | None = None,
    endpoint: str | None = None,
) -> str:
    """Put repos into the collection ``title`` of ``namespace``, made if it is not there; returns its address.

    Whatever is in it already stays, so the same call can be made again and again.
    """
    api = open_api(token, endpoint)
    with explained("collect", f"{namespace}/{title}", api):
        collection = api.create_collection(
            title, namespace=namespace, description=description, private=private, exists_ok=True
        )
        for repo_id, repo_type in repos:
            api.add_collection_item(collection.slug, repo_id, repo_type, exists_ok=True)
    return str(collection.url)
