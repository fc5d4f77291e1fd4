"""The local Hub as a fixture of another project, in a pytest of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]

PROJECT = """
import os
import subprocess
import sys

import pytest
from huggingface_hub import HfApi, create_repo, hf_hub_download, upload_file
from huggingface_hub.errors import HfHubHTTPError

seen = []


def test_the_plain_functions_of_the_client_reach_it(hub_server):
    create_repo("user/model")
    upload_file(path_or_fileobj=b"hello", path_in_repo="a.txt", repo_id="user/model")
    with open(hf_hub_download("user/model", "a.txt")) as file:
        assert file.read() == "hello"
    assert hub_server.api.whoami()["name"] == "user"
    assert hub_server.unknown_requests == []
    seen.append(hub_server.url)


def test_so_does_a_child_process(hub_server):
    script = "from huggingface_hub import whoami; print(whoami()['name'])"
    assert subprocess.check_output([sys.executable, "-c", script], text=True).strip() == "user"


def test_every_test_has_its_own(hub_server):
    assert not hub_server.api.repo_exists("user/model")
    assert hub_server.url not in seen


def test_other_users_have_other_rights(hub_server):
    with pytest.raises(HfHubHTTPError):
        HfApi(token=hub_server.login("guest", role="read")).create_repo("guest/model")
    HfApi(token=hub_server.login("friend", orgs=("team",))).create_repo("team/model")


def test_nothing_is_left_behind():
    assert os.environ.get("HF_ENDPOINT") is None
    assert HfApi().endpoint == "https://huggingface.co"
"""


def test_another_project_uses_the_fixture(tmp_path: Path) -> None:
    (tmp_path / "test_project.py").write_text(PROJECT)
    hidden = ("HF_", "HUGGINGFACE_", "PYTEST_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), environment.get("PYTHONPATH"))))
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "oattn_hub.pytest_plugin",
        "-p",
        "no:randomly",
        "-p",
        "no:xdist",
    ]
    done = subprocess.run([*command, str(tmp_path)], cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 passed" in done.stdout


def test_pytest_finds_it_by_itself() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"oattn_hub.pytest_plugin": "oattn_hub.pytest_plugin"}


def test_a_project_that_does_not_use_it_pays_nothing() -> None:
    script = "import oattn_hub.pytest_plugin, sys; print('huggingface_hub' in sys.modules, 'torch' in sys.modules)"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.check_output([sys.executable, "-c", script], text=True, env=environment).split() == ["False"] * 2
