"""One publish, one commit; nothing of anybody's is lost."""

from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub import CommitOperationAdd, HfApi

from oattn_hub.errors import HubAuthError, HubConflict, HubError, HubUnavailable, InvalidInput
from oattn_hub.hub import publish_folder
from oattn_hub.hub.publish import Publication
from oattn_hub.hub.readme import BEGIN, END, build_readme, merge_readme
from oattn_hub.local_hub import LocalHub


@pytest.fixture
def api(hub: LocalHub, tokens: SimpleNamespace) -> HfApi:
    return HfApi(hub.url, token=tokens.me)


def publish(api: HfApi, folder: Path, repo_id: str = "me/x", **options: Any) -> Publication:
    given = {"message": "Head report", "token": api.token, "endpoint": api.endpoint, **options}
    return publish_folder(folder, repo_id, given.pop("kind", "report"), **given)


def titles(api: HfApi, repo: str = "me/x", **where: Any) -> list[str]:
    return [commit.title for commit in api.list_repo_commits(repo, **where)]


def test_a_publish_is_one_commit_and_a_second_is_none(api: HfApi, folder: Path) -> None:
    first = publish(api, folder)
    assert titles(api) == ["Head report", "initial commit"]
    assert (first.changed, first.commit) == (True, api.model_info("me/x").sha)
    assert set(first.files) == {"README.md", "report.json", "report.safetensors", "figures/heads.png"}
    again = publish(api, folder)
    assert (again.changed, again.commit) == (False, first.commit)
    assert "no new commit" in again.lines()[0]
    assert "not huggingface.co" in first.lines()[0]
    (folder / "report.json").write_text('{"format": 2}')
    assert publish(api, folder).changed
    assert titles(api) == ["Head report", "Head report", "initial commit"]


def test_what_an_earlier_report_left_is_removed_and_what_a_person_added_stays(api: HfApi, folder: Path) -> None:
    publish(api, folder)
    api.create_commit("me/x", [CommitOperationAdd("notes.txt", b"mine")], commit_message="notes")
    (folder / "figures/heads.png").rename(folder / "figures/new.png")
    publish(api, folder)
    assert "figures/heads.png" not in api.list_repo_files("me/x")
    assert {"figures/new.png", "notes.txt", ".gitattributes"} < set(api.list_repo_files("me/x"))


def test_private_branch_organisation_and_message(api: HfApi, folder: Path) -> None:
    made = publish(api, folder, "lab/x", private=True, revision="wip/one", message="Mine")
    assert api.model_info("lab/x").private
    assert titles(api, "lab/x", revision="wip/one") == ["Mine", "initial commit"]
    assert titles(api, "lab/x") == ["initial commit"]
    assert made.revision == "wip/one"


def test_a_stale_parent_is_detected_and_explained(api: HfApi, folder: Path) -> None:
    known = publish(api, folder).commit
    api.create_commit("me/x", [CommitOperationAdd("a.txt", b"1")], commit_message="somebody's work")
    (folder / "report.json").write_text("{}")
    with pytest.raises(HubConflict, match=r"changed since .*somebody's work.*Nothing was written"):
        publish(api, folder, parent_commit=known)
    assert len(titles(api)) == 3
    assert publish(api, folder).changed  # knowing the new head, it goes on top


def test_a_race_between_reading_and_writing_is_a_conflict(
    api: HfApi, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    publish(api, folder)
    (folder / "report.json").write_text("{}")
    create_commit = HfApi.create_commit

    def after_somebody_else(self: HfApi, *args: Any, **options: Any) -> Any:
        create_commit(api, "me/x", [CommitOperationAdd("a.txt", b"1")], commit_message="faster")
        return create_commit(self, *args, **options)

    monkeypatch.setattr(HfApi, "create_commit", after_somebody_else)
    with pytest.raises(HubConflict, match="somebody else changed it meanwhile"):
        publish(api, folder)
    assert titles(api)[0] == "faster"


def test_a_pull_request_is_opened_once(hub: LocalHub, api: HfApi, tokens: SimpleNamespace, folder: Path) -> None:
    publish(api, folder)
    (folder / "report.json").write_text("{}")
    visitor = HfApi(hub.url, token=tokens.other)
    first = publish(visitor, folder, create_pr=True)
    assert first.pull_request == f"{hub.url}/me/x/discussions/1"
    again = publish(visitor, folder, create_pr=True)
    assert (again.changed, again.pull_request) == (False, first.pull_request)
    assert len(list(api.get_repo_discussions("me/x"))) == 1
    assert len(titles(api)) == 2
    with pytest.raises(HubAuthError, match="no write right"):
        publish(visitor, folder)


def test_foreign_files_are_not_written_over(api: HfApi, folder: Path) -> None:
    api.create_repo("me/x")
    api.create_commit("me/x", [CommitOperationAdd("report.json", b"theirs")], commit_message="c")
    with pytest.raises(HubConflict, match=r"did not publish.*\(report\.json\)"):
        publish(api, folder)
    assert len(titles(api)) == 2


def test_a_checkpoint_does_not_go_where_a_report_is(api: HfApi, folder: Path) -> None:
    publish(api, folder)
    (folder / "report.json").write_text("{}")
    with pytest.raises(HubConflict, match="holds a report"):
        publish(api, folder, kind="checkpoint")


def test_what_a_person_wrote_in_the_readme_stays(api: HfApi, folder: Path) -> None:
    publish(api, folder)
    readme = Path(api.hf_hub_download("me/x", "README.md")).read_text()
    edited = readme.replace("---\n\n", "---\n\nHello from me.\n\n", 1) + "\nAnd a last word.\n"
    edited = edited.replace("tags:\n", "language: en\ntags:\n- my-tag\n", 1)
    api.create_commit("me/x", [CommitOperationAdd("README.md", edited.encode())], commit_message="edit")
    assert not publish(api, folder).changed  # our section is as it was
    (folder / "README.md").write_text((folder / "README.md").read_text().replace("# Heads", "# New heads"))
    assert publish(api, folder).changed
    merged = Path(api.hf_hub_download("me/x", "README.md")).read_text()
    assert merged == edited.replace("# Heads", "# New heads")
    assert api.model_info("me/x").card_data.language == "en"
    assert not publish(api, folder).changed


def test_a_readme_without_marks_keeps_its_text() -> None:
    ours = build_readme({"license": "mit", "tags": ["oattn_hub"]}, "# Heads")
    merged = merge_readme("---\nlicense: apache-2.0 # of the base\nextra: 1\n---\n# Mine\n", ours)
    assert merged.index("# Mine") < merged.index(BEGIN) < merged.index("# Heads") < merged.index(END)
    assert "license: mit" in merged
    assert "extra: 1" in merged
    assert merge_readme(merged, ours) == merged
    assert merge_readme("Just text", ours).count("Just text") == 1


def test_a_broken_card_is_refused_before_anything_is_written(api: HfApi, folder: Path) -> None:
    (folder / "README.md").write_text("---\nlicense: [\n---\n")
    with pytest.raises(HubError, match="refuses the card's metadata"):
        publish(api, folder)
    assert titles(api) == ["initial commit"]


@pytest.mark.parametrize("name", ["a b/c", "x", "me/../x", "me/x/y", ""])
def test_a_bad_name_is_said_so(hub: LocalHub, folder: Path, tokens: SimpleNamespace, name: str) -> None:
    with pytest.raises(InvalidInput, match="repo id looks like"):
        publish_folder(folder, name, "report", message="m", token=tokens.me, endpoint=hub.url)


def test_refusals_in_plain_words(hub: LocalHub, api: HfApi, tokens: SimpleNamespace, folder: Path) -> None:
    with pytest.raises(HubAuthError, match=r"local Hub: set HF_TOKEN"):
        publish(HfApi(hub.url, token=False), folder)  # type: ignore[arg-type]
    with pytest.raises(HubAuthError, match="Invalid credentials"):
        publish(HfApi(hub.url, token="hf_wrong"), folder)
    with pytest.raises(HubAuthError, match="may not write there"):
        publish(HfApi(hub.url, token=tokens.other), folder, "me/not-mine")
    assert not api.repo_exists("me/not-mine")


@pytest.mark.usefixtures("no_pauses")
def test_a_xet_client_at_an_lfs_hub_is_told_what_to_do(tmp_path: Path, folder: Path) -> None:
    with LocalHub(tmp_path / "lfs-hub", large_files="lfs") as hub:
        token = hub.store.accounts.ensure("me").token
        with pytest.raises(HubUnavailable, match="set HF_HUB_DISABLE_XET=1"):
            publish_folder(folder, "me/x", "report", message="m", token=token, endpoint=hub.url)
        assert len(hub.store.repo("model", "me/x").history(hub.store.repo("model", "me/x").resolve("main"))) == 1


def test_silence_is_not_waited_for_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An address where connections are taken and nothing is ever said."""
    monkeypatch.setattr("oattn_hub.hub.publish.FIRST_ANSWER_SECONDS", 0.5)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        with pytest.raises(HubUnavailable, match="no connection"):
            address = f"http://127.0.0.1:{silent.getsockname()[1]}"
            publish_folder(folder, "me/x", "report", message="m", endpoint=address)
        silent.setblocking(False)
        silent.accept()[0].close()
        with pytest.raises(BlockingIOError):
            silent.accept()  # nobody called a second time


def test_a_dead_address_fails_in_seconds(folder: Path, no_pauses: None) -> None:
    with pytest.raises(HubUnavailable, match=r"no connection to http://127.0.0.1:9.*run the same command again"):
        publish_folder(folder, "me/x", "report", message="m", endpoint="http://127.0.0.1:9")
