"""What is downloaded is what was published, or it is refused."""

from __future__ import annotations

import json
import pickle
import struct
import zipfile
from collections.abc import Callable
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import CommitOperationAdd, HfApi, constants

from oattn_hub.errors import FormatError, HubAuthError, HubError, HubNotFound, HubUnavailable, InvalidInput
from oattn_hub.hub import copy_to, list_variants, publish_folder, pull
from oattn_hub.hub.content import content_ids
from oattn_hub.hub.publish import Publication
from oattn_hub.local_hub import Handler, LocalHub
from oattn_hub.local_hub.routing import Response


class Tampering(Handler):
    """Changes the bytes of chosen files on the way, for a number of downloads."""

    times = 0
    change: Callable[[bytes], bytes] = staticmethod(lambda content: content)  # type: ignore[assignment]

    def _write(self, response: Response) -> None:
        if response.file is None or self.command == "HEAD" or not self.path.endswith(".safetensors") or self.times <= 0:
            super()._write(response)
            return
        type(self).times -= 1
        content = type(self).change(response.file.read_bytes())
        self.send_response(200)
        for name, value in response.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(response.span[1]))
        self.end_headers()
        self.wfile.write(content)
        self.close_connection = True


@pytest.fixture
def place(plain_hub: LocalHub, token_for: Callable[..., str]) -> dict[str, Any]:
    return {"token": token_for(plain_hub), "endpoint": plain_hub.url}


@pytest.fixture
def published(place: dict[str, Any], folder: Path) -> Publication:
    return publish_folder(folder, "me/x", "report", message="m", **place)


def hostile(place: dict[str, Any], **files: bytes) -> None:
    api = HfApi(**place)
    api.create_repo("me/evil")
    added = [CommitOperationAdd(name.replace("__", "."), content) for name, content in files.items()]
    api.create_commit("me/evil", added, commit_message="c")


def test_a_revision_is_pinned_and_cached(published: Publication, place: dict[str, Any], folder: Path) -> None:
    (folder / "report.json").write_text('{"format": 2}')
    publish_folder(folder, "me/x", "report", message="m", **place)
    assert json.loads((pull("me/x", **place) / "report.json").read_text()) == {"format": 2}
    old = pull("me/x", revision=published.commit, **place)
    assert json.loads((old / "report.json").read_text()) == {"format": 1}
    with pytest.raises(HubNotFound, match="revision is not there"):
        pull("me/x", revision="nowhere", **place)


def test_without_a_network_the_cache_serves_and_is_checked(
    downloaded_ids: Any, published: Publication, place: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    got = pull("me/x", **place)
    dead = {"token": place["token"], "endpoint": "http://127.0.0.1:9"}
    assert pull("me/x", local_files_only=True, **dead) == got
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert pull("me/x", **dead) == got
    with pytest.raises(HubUnavailable, match=r"not .* in the cache"):
        pull("me/other", **dead)
    weights = got / "report.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"!")
    with pytest.raises(HubError, match="damaged in the cache"):
        pull("me/x", **dead)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    assert downloaded_ids(pull("me/x", **place)).items() >= content_ids(folder).items()


def test_a_damaged_cache_is_mended(published: Publication, place: dict[str, Any], folder: Path) -> None:
    got = pull("me/x", **place)
    weights = got / "report.safetensors"
    good = weights.read_bytes()
    weights.write_bytes(good[:-1] + b"!")
    assert (pull("me/x", **place) / "report.safetensors").read_bytes() == good


@pytest.mark.usefixtures("no_pauses")
@pytest.mark.parametrize(
    "change",
    [
        pytest.param(lambda content: content[:-1] + bytes([content[-1] ^ 1]), id="one bit"),
        pytest.param(lambda content: content[:100] + bytes(len(content) - 100), id="zeros"),
        pytest.param(lambda content: content[: len(content) // 2], id="cut off"),
    ],
)
@pytest.mark.parametrize("times", [1, 100])
def test_bytes_changed_on_the_way_are_noticed(
    downloaded_ids: Any, tmp_path: Path, folder: Path, change: Callable[[bytes], bytes], times: int
) -> None:
    handler = type("OwnTampering", (Tampering,), {"change": staticmethod(change)})
    with LocalHub(tmp_path / "tampering", handler=handler) as hub:
        place: dict[str, Any] = {"token": hub.store.accounts.ensure("me").token, "endpoint": hub.url}
        publish_folder(folder, "me/x", "report", message="m", **place)
        handler.times = times  # type: ignore[attr-defined]
        if times == 1:
            assert downloaded_ids(pull("me/x", **place)).items() >= content_ids(folder).items()
            return
        with pytest.raises(HubError):
            pull("me/x", **place)
        handler.times = 0  # type: ignore[attr-defined]
        assert downloaded_ids(pull("me/x", **place)).items() >= content_ids(folder).items()  # nothing bad was kept


def test_a_name_that_leads_out_of_the_folder_is_refused(
    published: Publication, place: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model_info = HfApi.model_info
    for name in ("../x.json", "/etc/x.json", "a/../../x.json", "a\\..\\x.json", "C:x.json", "a\nb.json"):

        def lying(self: HfApi, *args: Any, name: str = name, **options: Any) -> Any:
            info = model_info(self, *args, **options)
            info.siblings[0].rfilename = name
            return info

        monkeypatch.setattr(HfApi, "model_info", lying)
        with pytest.raises(FormatError, match="outside its folder"):
            pull("me/x", **place)


def test_weights_that_are_a_pickle_are_refused(place: dict[str, Any]) -> None:
    hostile(place, config__json=b"{}", pytorch_model__bin=pickle.dumps([1]))
    with pytest.raises(FormatError, match="pickle"):
        pull("me/evil", **place)


def _zip() -> bytes:
    buffer = BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps([1]))
    return buffer.getvalue()


def _tensors(header: bytes, data: bytes = b"", size: int | None = None) -> bytes:
    return struct.pack("<Q", len(header) if size is None else size) + header + data


@pytest.mark.parametrize(
    ("content", "why"),
    [
        pytest.param(pickle.dumps(list(range(100))), "pickle under the name", id="pickle"),
        pytest.param(_zip(), "pickle under the name", id="torch zip"),
        pytest.param(_tensors(b"{}", size=2**63), "header claims", id="oversized header"),
        pytest.param(_tensors(b"{}", size=3), "header claims", id="header longer than the file"),
        pytest.param(b"1234", "header claims", id="too short"),
        pytest.param(_tensors(b"not json"), "cannot be read", id="no json"),
        pytest.param(_tensors(b"[" * 100_000), "cannot be read", id="deep json"),
        pytest.param(_tensors(b'{"a": {"data_offsets": [0, 99]}}', b"x"), "cut off or padded", id="offsets"),
        pytest.param(_tensors(b'{"a": {"data_offsets": [0, 1]}}', b"xy"), "cut off or padded", id="hidden tail"),
    ],
)
def test_files_that_pretend_to_be_safetensors_are_refused(place: dict[str, Any], content: bytes, why: str) -> None:
    hostile(place, config__json=b"{}", model__safetensors=content)
    with pytest.raises(FormatError, match=why):
        pull("me/evil", **place)


def test_code_is_fetched_only_on_request(place: dict[str, Any]) -> None:
    code = {"modeling_pruned__py": b"1 / 0", "other__py": b"1 / 0"}
    hostile(place, config__json=b"{}", **code, old__bin=b"x", model__safetensors=_tensors(b"{}"))
    names = [path.name for path in pull("me/evil", **place).iterdir()]
    assert sorted(names) == ["config.json", "model.safetensors", "modeling_pruned.py"]
    with_code = pull("me/evil", trust_remote_code=True, **place)
    assert (with_code / "other.py").exists()
    assert not (with_code / "old.bin").exists()


def test_refusals_in_plain_words(plain_hub: LocalHub, place: dict[str, Any], token_for: Callable[..., str]) -> None:
    api = HfApi(**place)
    with pytest.raises(HubNotFound, match="no such repo"):
        pull("me/nothing", **place)
    api.create_repo("me/data", repo_type="dataset")
    with pytest.raises(HubNotFound, match="is a dataset, not a model"):
        pull("me/data", **place)
    api.create_repo("me/empty")
    with pytest.raises(HubNotFound, match="no report and no checkpoint"):
        pull("me/empty", **place)
    api.create_repo("me/gated")
    api.create_commit("me/gated", [CommitOperationAdd("config.json", b"{}")], commit_message="c")
    api.update_repo_settings("me/gated", gated="manual")
    with pytest.raises(HubAuthError, match="gated"):
        pull("me/gated", token=token_for(plain_hub, "other"), endpoint=plain_hub.url)
    with pytest.raises(InvalidInput, match="not a repo id"):
        pull("../up", **place)
    with pytest.raises(HubUnavailable, match="no connection"):
        pull("me/x", endpoint="http://127.0.0.1:9")


def test_a_real_token_is_not_sent_to_a_local_hub(
    plain_hub: LocalHub, published: Publication, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[str | None] = []
    authenticate = LocalHub.authenticate
    monkeypatch.setattr(
        LocalHub, "authenticate", lambda self, header: (seen.append(header), authenticate(self, header))[1]
    )
    monkeypatch.setenv("HF_TOKEN", "hf_a_real_one")
    pull("me/x", endpoint=plain_hub.url)
    list_variants("google-bert/bert-base-uncased", endpoint=plain_hub.url)
    assert set(seen) == {None}
    token = plain_hub.store.accounts.ensure("me").token
    monkeypatch.setenv("HF_TOKEN", token)  # the local Hub's own token goes there by itself
    pull("me/x", endpoint=plain_hub.url)
    assert f"Bearer {token}" in seen


def test_variants_of_a_model_are_found(plain_hub: LocalHub, place: dict[str, Any], published: Publication) -> None:
    HfApi(**place).create_repo("me/unrelated")
    (found,) = list_variants("google-bert/bert-base-uncased", **place)
    assert (found.repo_id, found.kind, found.summary, found.revision) == (
        "me/x",
        "report",
        "72 heads",
        published.commit,
    )
    assert list_variants("someone/else", **place) == []


def test_a_copy_is_made_of_files_not_of_links(published: Publication, place: dict[str, Any], folder: Path) -> None:
    copy = copy_to(pull("me/x", **place), folder.parent / "copy")
    assert content_ids(copy).items() >= content_ids(folder).items()
    assert not any(path.is_symlink() for path in copy.rglob("*"))
    with pytest.raises(InvalidInput, match="not empty"):
        copy_to(copy, folder)


def test_a_private_repo_is_not_there_for_others(
    plain_hub: LocalHub, place: dict[str, Any], token_for: Callable[..., str]
) -> None:
    HfApi(**place).create_repo("me/private", private=True)
    for token in (token_for(plain_hub, "other"), False):
        with pytest.raises(HubNotFound, match="private"):
            pull("me/private", token=token, endpoint=plain_hub.url)
