"""Whatever goes wrong on the way, a publish is one commit or none, and a second run finishes the first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import HfApi

from oattn_hub.errors import HubAuthError, HubConflict, HubError, HubUnavailable
from oattn_hub.hub import publish_folder, pull
from oattn_hub.hub.content import content_ids
from oattn_hub.local_hub import LocalHub

# What can happen to a request: nothing is done and the connection goes, or the Hub refuses; or all is done and the
# answer is lost, or it says that it failed.
FAULTS = ["cut", "lose", 429, 500, 503, ("after", 500), ("after", 503)]
Start = Callable[..., tuple[LocalHub, Any]]


def publish(hub: LocalHub, token: str, folder: Path, **options: Any) -> Any:
    return publish_folder(folder, "me/x", "report", message="Head report", token=token, endpoint=hub.url, **options)


def check_state(hub: LocalHub, token: str, folder: Path) -> None:
    """Exactly one commit, with exactly our content."""
    repo = hub.store.repo("model", "me/x")
    commits = repo.history(repo.resolve("main"))
    assert [commit.title for commit in commits] == ["Head report", "initial commit"]
    wanted = {path: content.sha256 for path, content in content_ids(folder).items()}
    found = {path: entry.sha256 for path, entry in commits[0].files.items() if path != ".gitattributes"}
    assert found == wanted


@pytest.mark.usefixtures("no_pauses")
@pytest.mark.parametrize("fault", FAULTS, ids=str)
def test_a_fault_at_every_request_of_a_publish(
    failing_hub: Start, token_for: Callable[..., str], folder: Path, fault: object
) -> None:
    clean, plan = failing_hub("clean")
    publish(clean, token_for(clean), folder)
    n_requests = len(plan.requests)
    assert n_requests >= 6
    for index in range(n_requests):
        hub, plan = failing_hub(f"at-{index}", {index: fault})
        token = token_for(hub)
        done = publish(hub, token, folder)
        assert done.changed, plan.requests
        check_state(hub, token, folder)
        again = publish(hub, token, folder)
        assert (again.changed, again.commit) == (False, done.commit)
        check_state(hub, token, folder)


@pytest.mark.usefixtures("no_pauses")
@pytest.mark.parametrize("fault", ["cut", 503], ids=str)
def test_a_hub_that_dies_in_the_middle_is_finished_by_a_second_run(
    failing_hub: Start, token_for: Callable[..., str], folder: Path, fault: object
) -> None:
    clean, plan = failing_hub("clean")
    publish(clean, token_for(clean), folder)
    for index in range(len(plan.requests)):
        hub, broken = failing_hub(f"from-{index}", dict.fromkeys(range(index, index + 500), fault))
        token = token_for(hub)
        with pytest.raises(HubError, match=r"[Rr]un the same command again"):
            publish(hub, token, folder)
        broken.faults.clear()
        publish(hub, token, folder)
        check_state(hub, token, folder)


@pytest.mark.usefixtures("no_pauses")
@pytest.mark.parametrize(
    ("status", "kind", "words"),
    [
        (402, HubError, "storage is full"),
        (403, HubAuthError, "may not write there"),
        (409, HubConflict, "somebody else changed it"),
        (413, HubError, "storage is full"),
        (429, HubUnavailable, "too many requests"),
        (500, HubUnavailable, "the Hub fails"),
        (507, HubError, "storage is full"),
    ],
)
def test_a_refused_commit_in_plain_words(
    failing_hub: Start, token_for: Callable[..., str], folder: Path, status: int, kind: type[HubError], words: str
) -> None:
    hub, plan = failing_hub("hub")
    publish(hub, token_for(hub), folder)
    (folder / "report.json").write_text("{}")
    plan.faults = dict.fromkeys(range(len(plan.requests) + 1, 500), status)  # all but the first look at the head
    with pytest.raises(kind, match=words):
        publish(hub, token_for(hub), folder)
    plan.faults = {}
    assert publish(hub, token_for(hub), folder).changed


@pytest.mark.usefixtures("no_pauses")
def test_a_lost_pull_request_is_not_opened_twice(
    failing_hub: Start, token_for: Callable[..., str], folder: Path
) -> None:
    clean, plan = failing_hub("clean")
    publish(clean, token_for(clean), folder, create_pr=True)
    for index in range(len(plan.requests)):
        hub, _ = failing_hub(f"pr-{index}", {index: "lose"})
        publish(hub, token_for(hub), folder, create_pr=True)
        assert len(hub.store.repo("model", "me/x").state.discussions) == 1


@pytest.mark.usefixtures("no_pauses")
@pytest.mark.parametrize("fault", ["cut", 429, 500, 503], ids=str)
def test_a_fault_at_every_request_of_a_download(
    downloaded_ids: Any, failing_hub: Start, token_for: Callable[..., str], folder: Path, tmp_path: Path, fault: object
) -> None:
    hub, plan = failing_hub("hub")
    token = token_for(hub)
    publish(hub, token, folder)
    start = len(plan.requests)
    pull("me/x", token=token, endpoint=hub.url, cache_dir=tmp_path / "clean")
    for index in range(len(plan.requests) - start):
        plan.faults = {len(plan.requests) + index: fault}
        options: dict[str, Any] = {"token": token, "endpoint": hub.url, "cache_dir": tmp_path / f"cache-{index}"}
        try:
            got = pull("me/x", **options)
        except HubError:  # said in our words; the next run finds everything in order
            got = pull("me/x", **options)
        assert content_ids(folder).items() <= downloaded_ids(got).items()


@pytest.mark.usefixtures("no_pauses")
def test_a_commit_refused_for_its_parent_after_a_lost_answer_is_recognised(
    hub: LocalHub, token_for: Callable[..., str], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first answer is lost, and when the head is read again the commit is still on its way."""
    create_commit, model_info = HfApi.create_commit, HfApi.model_info
    before: list[Any] = []  # the head as it was when the commit was sent; read once more, too early

    def losing(self: HfApi, *args: Any, **options: Any) -> Any:
        sent_first = not before
        before.append(model_info(self, "me/x", files_metadata=True))
        made = create_commit(self, *args, **options)
        if sent_first:
            raise ConnectionError("lost")
        return made

    def too_early(self: HfApi, *args: Any, **options: Any) -> Any:
        return before[0] if len(before) == 1 else model_info(self, *args, **options)

    monkeypatch.setattr(HfApi, "create_commit", losing)
    monkeypatch.setattr(HfApi, "model_info", too_early)
    token = token_for(hub)
    assert publish(hub, token, folder).changed
    assert len(before) == 2  # the second was refused with 412
    check_state(hub, token, folder)
