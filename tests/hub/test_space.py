"""Spaces and collections: through the real client, to the local Hub."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from huggingface_hub import HfApi

from oattn_hub.cli import main
from oattn_hub.errors import HubAuthError, HubConflict, InvalidInput
from oattn_hub.hub.collect import collect_repos
from oattn_hub.hub.space import push_report_space
from oattn_hub.local_hub import LocalHub
from oattn_hub.sweep import Leaderboard, Status
from oattn_hub.sweep.publishing import report_name
from oattn_hub.sweep.state import Options, SweepFolder

if TYPE_CHECKING:
    from oattn_hub.report import Report


@pytest.fixture
def access(plain_hub: LocalHub) -> dict[str, Any]:
    """Endpoint and token of the local Hub."""
    return {"endpoint": plain_hub.url, "token": plain_hub.store.accounts.ensure("me").token}


def test_a_report_becomes_a_static_space_in_one_commit(access: dict[str, Any], tiny_report: Report) -> None:
    done = push_report_space(tiny_report, "me/heads-page", **access)
    assert (done.changed, set(done.files)) == (True, {"README.md", "index.html"})
    assert done.url.endswith("/spaces/me/heads-page")
    api = HfApi(**access)
    info = api.space_info("me/heads-page")
    assert info.card_data is not None
    assert (info.card_data["sdk"], info.card_data["app_file"]) == ("static", "index.html")
    page = Path(api.hf_hub_download("me/heads-page", "index.html", repo_type="space")).read_text()
    assert tiny_report.model.id in page
    again = push_report_space(tiny_report, "me/heads-page", **access)
    assert (again.changed, again.commit) == (False, done.commit)


def test_a_foreign_space_is_left_alone(access: dict[str, Any], tiny_report: Report) -> None:
    api = HfApi(**access)
    api.create_repo("me/game", repo_type="space", space_sdk="static")
    api.upload_file(path_or_fileobj=b"my game", path_in_repo="index.html", repo_id="me/game", repo_type="space")
    with pytest.raises(HubConflict, match="did not publish"):
        push_report_space(tiny_report, "me/game", **access)
    with pytest.raises(InvalidInput, match="not a repo id"):
        push_report_space(tiny_report, "nonsense", **access)
    with pytest.raises(HubAuthError):
        push_report_space(tiny_report, "somebody/else", **access)


def test_collections_grow_and_keep_what_they_have(access: dict[str, Any], tiny_report: Report) -> None:
    api = HfApi(**access)
    for name in ("me/a", "me/b"):
        api.create_repo(name)
    api.create_repo("me/page", repo_type="space", space_sdk="static")
    first = collect_repos("My heads", "me", [("me/a", "model"), ("me/page", "space")], **access)
    second = collect_repos("My heads", "me", [("me/a", "model"), ("me/b", "model")], **access)
    assert first == second
    collection = api.get_collection(first.rsplit("/collections/")[1])
    assert [(item.item_id, item.item_type) for item in collection.items] == [
        ("me/a", "model"),
        ("me/page", "space"),
        ("me/b", "model"),
    ]
    assert [found.slug for found in api.list_collections(owner="me")] == [collection.slug]
    api.delete_collection_item(collection.slug, collection.items[0].item_object_id)
    assert len(api.get_collection(collection.slug).items) == 2
    api.delete_collection(collection.slug)
    assert list(api.list_collections(owner="me")) == []


def test_a_collection_takes_only_what_is_there_and_only_from_its_owner(
    access: dict[str, Any], plain_hub: LocalHub
) -> None:
    from huggingface_hub.errors import HfHubHTTPError

    api = HfApi(**access)
    collection = api.create_collection("Mine", namespace="me", private=True)
    with pytest.raises(HfHubHTTPError):
        api.add_collection_item(collection.slug, "me/nothing", "model")
    with pytest.raises(HfHubHTTPError):
        api.create_collection("Theirs", namespace="somebody")
    stranger = HfApi(endpoint=plain_hub.url, token=plain_hub.store.accounts.ensure("stranger").token)
    with pytest.raises(HfHubHTTPError):
        stranger.get_collection(collection.slug)
    with pytest.raises(HfHubHTTPError):
        stranger.delete_collection(collection.slug)
    assert list(stranger.list_collections(owner="me")) == []


@pytest.fixture
def sweep(tiny_report: Report, tmp_path: Path) -> SweepFolder:
    """A finished sweep of two models, one of them a folder of this machine."""
    folder = SweepFolder(tmp_path / "our-sweep")
    folder.agree(Options())
    from oattn_hub.sweep import read_models

    (tmp_path / "secret-place/model").mkdir(parents=True)
    for job in read_models(["me/base", str(tmp_path / "secret-place/model")]):
        tiny_report.save(folder.folder(job))
        tiny_report.write_page(folder.folder(job) / "report.html")
        folder.write(job, Status(job.model, "done"))
    failed = read_models([str(tmp_path)])[0]
    folder.write(failed, Status(failed.model).failed(f"{tmp_path} has no config.json", again=False))
    return folder


def test_a_sweep_is_published_as_leaderboard_reports_and_collection(
    plain_hub: LocalHub,
    sweep: SweepFolder,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", plain_hub.url)
    token = plain_hub.store.accounts.ensure("me").token
    monkeypatch.setenv("HF_TOKEN", token)
    words = ["publish", str(sweep.root), "me/board", "--space"]
    assert main([*words, "--dry-run", str(tmp_path / "dry")]) == 0
    pages = {path.relative_to(tmp_path / "dry").as_posix(): path for path in (tmp_path / "dry").rglob("*.*")}
    assert {"index.html", "leaderboard.csv", "README.md"} < set(pages)
    assert not [name for name, path in pages.items() if str(tmp_path) in path.read_text(encoding="utf-8")]

    assert main([*words, "--collection", "Our heads"]) == 0, capsys.readouterr().err
    api = HfApi(endpoint=plain_hub.url, token=token)
    (found,) = api.list_collections(owner="me")
    items = {(item.item_id, item.item_type) for item in api.get_collection(found.slug).items}
    names = {f"me/{report_name(row)}" for row in Leaderboard.of(sweep).rows}
    assert "me/me-base-heads" in names
    assert items == {("me/board", "space"), *((name, "model") for name in names)}
    assert not [name for name in names if "secret" in name]


def test_what_does_not_fit_is_said(sweep: SweepFolder, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["publish", str(sweep.root), "me/x"]) == 1
    assert "publish its leaderboard with --space" in capsys.readouterr().err
    SweepFolder(tmp_path / "empty").agree(Options())
    assert main(["publish", str(tmp_path / "empty"), "me/x", "--space"]) == 1
    assert "has no finished report yet" in capsys.readouterr().err
