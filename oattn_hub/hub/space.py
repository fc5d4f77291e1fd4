"""Pages as a static Space: ``index.html`` and what lies beside it, which the Hub serves as they are."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, TypedDict, Unpack

import yaml

from oattn_hub.cards import markdown_text
from oattn_hub.errors import HubConflict
from oattn_hub.files import storage_errors, write_text
from oattn_hub.hub.client import check_repo_id, explained, open_api
from oattn_hub.hub.content import content_ids
from oattn_hub.hub.publish import Publication
from oattn_hub.hub.push import shareable
from oattn_hub.letters import TURNING
from oattn_hub.models.identify import is_hub_id

if TYPE_CHECKING:
    from huggingface_hub import HfApi

    from oattn_hub.report import Report

KIND = "space"
INDEX = "index.html"


class SpaceOptions(TypedDict, total=False):
    """What :func:`publish_space` takes beside the pages and their title."""

    private: bool | None
    commit_message: str | None
    token: str | bool | None
    endpoint: str | None
    dry_run: str | Path | None


def push_report_space(report: Report, repo_id: str, **options: Unpack[SpaceOptions]) -> Publication:
    """Publish a report's page as a static Space; ``options`` are those of :func:`publish_space`."""
    with TemporaryDirectory() as scratch:
        shareable(report).write_page(Path(scratch) / INDEX)
        title = f"Heads of {report.model.id.rsplit('/', 1)[-1]}"
        return publish_space(Path(scratch), repo_id, title, [report.model.id], **options)


def publish_space(
    folder: Path,
    repo_id: str,
    title: str,
    models: Iterable[str] = (),
    *,
    private: bool | None = None,
    commit_message: str | None = None,
    token: str | bool | None = None,
    endpoint: str | None = None,
    dry_run: str | Path | None = None,
) -> Publication:
    """Publish the pages of ``folder`` as a static Space in one commit; the same pages make no second one.

    Args:
        folder: Holds ``index.html``; its card is written here.
        repo_id: The Space. One that holds something else is refused.
        title: What the Hub shows.
        models: Models that the pages are about; those with a Hub id are linked with the Space.
        dry_run: Write everything there and send nothing.
    """
    check_repo_id(repo_id)
    write_text(folder / "README.md", _card(title, [model for model in models if is_hub_id(model)]))
    message = commit_message or title
    sizes = {path: content.size for path, content in content_ids(folder).items()}
    api = open_api(token, endpoint)
    url = f"{api.endpoint}/spaces/{repo_id}"
    if dry_run is not None:
        with storage_errors(Path(dry_run)):
            shutil.copytree(folder, dry_run, dirs_exist_ok=True)
        return Publication(repo_id, KIND, url, "main", message, sizes, folder=str(dry_run))
    with explained("publish", repo_id, api):
        before = _head(api, repo_id, private)
        commit = _commit(api, folder, repo_id, list(sizes), message, before)
    return Publication(repo_id, KIND, url, "main", message, sizes, commit=commit, changed=commit != before)


def _head(api: HfApi, repo_id: str, private: bool | None) -> str:
    """The Space's head, made if it is not there; a Space that somebody else filled is refused."""
    api.create_repo(repo_id, repo_type="space", space_sdk="static", private=private, exist_ok=True)
    info = api.space_info(repo_id)
    pages = [file.rfilename for file in info.siblings or [] if file.rfilename.endswith((".html", ".py"))]
    mark = info.card_data.get("oattn_hub") if info.card_data else None
    if pages and not (isinstance(mark, dict) and mark.get("kind") == KIND):
        raise HubConflict(f"The Space {repo_id} holds pages that oattn_hub did not publish. Choose another name.")
    return str(info.sha)


def _commit(api: HfApi, folder: Path, repo_id: str, paths: Sequence[str], message: str, parent: str) -> str:
    from huggingface_hub import CommitOperationAdd

    files = [CommitOperationAdd(path, folder / path) for path in paths]
    done = api.create_commit(repo_id, files, commit_message=message, repo_type="space", parent_commit=parent)
    return str(done.oid)


def _card(title: str, models: list[str]) -> str:
    title = TURNING.sub("", title)
    head: dict[str, object] = {"title": title[:100], "emoji": "🧭", "colorFrom": "blue", "colorTo": "gray"}
    head |= {"sdk": "static", "app_file": INDEX, "pinned": False, "tags": ["oattn_hub"]}
    head |= {"models": models} if models else {}
    head |= {"oattn_hub": {"kind": KIND}}
    words = "Which attention heads does this model need? Made by `oattn publish … --space` of oattn_hub."
    return (
        f"---\n{yaml.safe_dump(head, sort_keys=False, allow_unicode=True)}---\n\n# {markdown_text(title)}\n\n{words}\n"
    )
