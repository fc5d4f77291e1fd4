"""The one test against huggingface.co; it makes a private repo in your account and deletes it again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from huggingface_hub import HfApi

from oattn_hub.hub import publish_folder, pull
from oattn_hub.hub.content import content_ids

ASKED = os.environ.get("OATTN_TEST_REAL_HUB") == "1"
TOKEN = os.environ.get("HF_TOKEN") if ASKED else None  # read before the tests' own home hides it


@pytest.mark.network
@pytest.mark.skipif(not ASKED, reason="set OATTN_TEST_REAL_HUB=1 and HF_TOKEN to try the real Hub")
def test_publish_again_and_pull_on_the_real_hub(downloaded_ids: Any, folder: Path) -> None:
    assert TOKEN, "HF_TOKEN is not set"
    api = HfApi("https://huggingface.co", token=TOKEN)
    repo_id = f"{api.whoami()['name']}/oattn-test-{uuid4().hex[:8]}"
    place = {"token": TOKEN, "endpoint": api.endpoint}
    try:
        first = publish_folder(folder, repo_id, "report", message="Test of oattn_hub", private=True, **place)
        assert first.changed
        assert not publish_folder(folder, repo_id, "report", message="Test of oattn_hub", **place).changed
        assert len(api.list_repo_commits(repo_id)) == 2
        assert downloaded_ids(pull(repo_id, **place)).items() >= content_ids(folder).items()
    finally:
        api.delete_repo(repo_id, missing_ok=True)
