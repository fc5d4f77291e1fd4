"""A folder becomes exactly one commit, or none.

The commit is bound to the head it was prepared for. When its answer is lost, the head is looked at before anything is
sent again: if it holds our content the commit was made; if it has not moved, the same commit may be sent once more, and
should the lost one still arrive, the Hub refuses the second, since the head has moved.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from fnmatch import fnmatch
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypedDict

from oattn_hub.errors import HubConflict, HubError
from oattn_hub.files import write_text
from oattn_hub.hub.client import (
    FIRST_ANSWER_SECONDS,
    check_repo_id,
    explain,
    explained,
    is_passing,
    is_silence,
    open_api,
)
from oattn_hub.hub.content import ContentId, content_ids
from oattn_hub.hub.readme import merge_readme
from oattn_hub.tokens import is_local
from oattn_hub.types import JsonObject

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import ModelInfo

ATTEMPTS = 4
# What an earlier publication of the same kind may have left behind and a new one replaces.
_OWN_FILES = {
    "report": ("figures/*", "report.*"),
    "checkpoint": ("figures/*", "*.safetensors", "*.safetensors.index.json"),
}
_SHARED_FILES = ("README.md", ".gitattributes")


@dataclass(frozen=True)
class Publication:
    """What a publish did: the commit that holds the content, and whether it was made now."""

    repo_id: str
    kind: str
    url: str
    revision: str
    message: str
    files: dict[str, int]
    commit: str | None = None
    pull_request: str | None = None
    changed: bool = True
    folder: str | None = None

    def to_json(self) -> JsonObject:
        """Plain values for ``--json``."""
        return asdict(self)

    def lines(self) -> list[str]:
        """What was done, for a person."""
        size = f"{len(self.files)} files, {sum(self.files.values()):,} bytes"
        if self.folder is not None:
            listed = [f"  {path}  {n:,} bytes" for path, n in self.files.items()]
            commit = f"One commit {self.message!r} to {self.repo_id} ({self.revision}) would hold:"
            return [f"Dry run, nothing was sent. {self.folder} holds the {size}. {commit}", *listed]
        place = f"{self.url} (a local Hub on this machine, not huggingface.co)" if is_local(self.url) else self.url
        if not self.changed:
            return [f"{place} already has this content ({self.pull_request or self.commit}); no new commit was made."]
        if self.pull_request:
            return [f"Opened {self.pull_request} with the {self.kind} ({size})."]
        return [f"Published the {self.kind} to {place}: commit {self.commit} on {self.revision} ({size})."]


class PublishOptions(TypedDict, total=False):
    """How a folder is published: what :func:`publish_folder` takes beside the folder and its message."""

    private: bool | None
    revision: str | None
    create_pr: bool
    parent_commit: str | None
    token: str | bool | None
    endpoint: str | None


@dataclass(frozen=True)
class _Order:
    """What is to be published where."""

    folder: Path
    repo_id: str
    kind: str
    revision: str
    message: str
    create_pr: bool


def publish_folder(
    folder: Path,
    repo_id: str,
    kind: str,
    *,
    message: str,
    private: bool | None = None,
    revision: str | None = None,
    create_pr: bool = False,
    parent_commit: str | None = None,
    token: str | bool | None = None,
    endpoint: str | None = None,
) -> Publication:
    """Publish all files of ``folder`` (``kind`` is "report" or "checkpoint") in one commit.

    The same content makes no second commit. ``parent_commit`` is the head you know of; if the repo has moved on since,
    nothing is written and :class:`HubConflict` says so.
    """
    check_repo_id(repo_id)
    api = open_api(token, endpoint)
    order = _Order(folder, repo_id, kind, revision or "main", message, create_pr)
    failure: BaseException | None = None
    for attempt in range(ATTEMPTS):
        if failure is not None:
            time.sleep(_pause(failure, attempt))
        try:
            head = _ensure_head(api, order, private)
            # The first head seen binds all attempts: whatever moves it later is either our own commit or a conflict.
            parent_commit = parent_commit or str(head.sha)
            outcome = _publish_once(api, order, head, parent_commit)
            arrived = failure is not None and outcome.commit != parent_commit  # the commit whose answer was lost
            return replace(outcome, changed=outcome.changed or arrived)
        except Exception as error:
            # After a lost answer, a refused parent may mean that the lost commit did arrive: look once more.
            look_again = is_passing(error) or (failure is not None and _is_stale(error))
            if not look_again or (parent_commit is None and is_silence(error)):  # nobody ever answered
                with explained("publish", repo_id, api):
                    raise
            failure = error
    raise explain(failure, "publish", repo_id, api) or HubError(str(failure)) from failure  # type: ignore[arg-type]


def _publish_once(api: HfApi, order: _Order, head: ModelInfo, parent: str) -> Publication:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    with TemporaryDirectory() as scratch:
        local, readme = _wanted(api, order, head, Path(scratch))
        changed, removed = _difference(local, head, order.kind)
        sizes = {path: content.size for path, content in local.items()}
        if not changed and not removed:
            return _publication(api, order, sizes, commit=head.sha, changed=False)
        if order.create_pr and (open_pr := _same_pull_request(api, order, local)):
            return _publication(api, order, sizes, changed=False, **open_pr)
        if head.sha != parent:
            raise HubConflict(
                f"{order.repo_id} changed since {parent[:8]}: its head is {str(head.sha)[:8]} "
                f"({_last_title(api, order)!r}). Nothing was written; look at that commit, then publish again."
            )
        _check_ours(order, local, head)
        additions = [CommitOperationAdd(p, readme if p == "README.md" else order.folder / p) for p in changed]
        commit = api.create_commit(
            order.repo_id,
            [*additions, *(CommitOperationDelete(path) for path in removed)],
            commit_message=order.message,
            revision=order.revision,
            create_pr=order.create_pr,
            parent_commit=parent,
        )
    return _publication(api, order, sizes, commit=commit.oid, pull_request=commit.pr_url)


def _ensure_head(api: HfApi, order: _Order, private: bool | None) -> ModelInfo:
    """The state of the repo's branch; the repo and the branch are made if they are not there."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    try:
        return _head(api, order)
    except GatedRepoError:
        raise
    except RepositoryNotFoundError:
        api.create_repo(order.repo_id, private=private, exist_ok=True)
        if order.revision != "main":
            api.create_branch(order.repo_id, branch=order.revision, exist_ok=True)
    except RevisionNotFoundError:
        api.create_branch(order.repo_id, branch=order.revision, exist_ok=True)
    return _head(api, order)


def _head(api: HfApi, order: _Order, revision: str | None = None) -> ModelInfo:
    # Not retried by the client, and with a time limit: without a network this says so in seconds.
    return api.model_info(
        order.repo_id, revision=revision or order.revision, files_metadata=True, timeout=FIRST_ANSWER_SECONDS
    )


def _wanted(api: HfApi, order: _Order, head: ModelInfo, scratch: Path) -> tuple[dict[str, ContentId], Path]:
    """The content to publish; the card is joined with what a person wrote in the repo's README."""
    local = content_ids(order.folder)
    readme = order.folder / "README.md"
    remote = next((file for file in head.siblings or [] if file.rfilename == "README.md"), None)
    if remote is None or local["README.md"].is_remote(remote):
        return local, readme
    present = api.hf_hub_download(order.repo_id, "README.md", revision=head.sha, cache_dir=scratch / "cache")
    merged = scratch / "README.md"
    write_text(merged, merge_readme(Path(present).read_text(encoding="utf-8"), readme.read_text(encoding="utf-8")))
    return {**local, "README.md": ContentId.of(merged)}, merged


def _difference(local: dict[str, ContentId], head: ModelInfo, kind: str) -> tuple[list[str], list[str]]:
    remote = {file.rfilename: file for file in head.siblings or []}
    changed = [path for path, content in local.items() if path not in remote or not content.is_remote(remote[path])]
    stale = [path for path in remote if path not in local and any(fnmatch(path, own) for own in _OWN_FILES[kind])]
    return changed, stale if _kind_of(head) == kind else []


def _check_ours(order: _Order, local: dict[str, ContentId], head: ModelInfo) -> None:
    """Refuse to write over files that something else put there."""
    present = _kind_of(head)
    if present is not None and present != order.kind:
        raise HubConflict(f"{order.repo_id} holds a {present}. Publish the {order.kind} under another name.")
    foreign = {file.rfilename for file in head.siblings or []} & local.keys() - set(_SHARED_FILES)
    if present is None and foreign:
        raise HubConflict(
            f"{order.repo_id} holds files that oattn_hub did not publish and would write over "
            f"({', '.join(sorted(foreign)[:3])}). Choose another name."
        )


def _kind_of(head: ModelInfo) -> str | None:
    mark = head.card_data.get("oattn_hub") if head.card_data else None
    return mark.get("kind") if isinstance(mark, dict) else None


def _same_pull_request(api: HfApi, order: _Order, local: dict[str, ContentId]) -> dict[str, Any] | None:
    """An open pull request with this very content: one whose answer was lost, or an earlier publish."""
    requests = api.get_repo_discussions(order.repo_id, discussion_type="pull_request", discussion_status="open")
    for request in islice((r for r in requests if r.title == order.message), 10):
        state = _head(api, order, request.git_reference)
        if _difference(local, state, order.kind) == ([], []):
            return {"commit": state.sha, "pull_request": request.url}
    return None


def _last_title(api: HfApi, order: _Order) -> str:
    return api.list_repo_commits(order.repo_id, revision=order.revision)[0].title


def _publication(api: HfApi, order: _Order, sizes: dict[str, int], **outcome: Any) -> Publication:
    url = f"{api.endpoint}/{order.repo_id}"
    return Publication(order.repo_id, order.kind, url, order.revision, order.message, sizes, **outcome)


def _is_stale(error: BaseException) -> bool:
    response = getattr(error, "response", None)
    return response is not None and response.status_code == 412


def _pause(failure: BaseException, attempt: int) -> float:
    """Seconds to wait: what the Hub asks for, else 1, 2, 4."""
    response = getattr(failure, "response", None)
    asked = response.headers.get("Retry-After", "") if response is not None else ""
    return float(asked) if asked.isdecimal() else 2.0 ** (attempt - 1)
