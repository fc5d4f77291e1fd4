"""``hf oattn``: installed by the real ``hf`` client from this checkout, and run by it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from oattn_hub.cli import main

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "hf-oattn"
COMMIT = "0123456789abcdef0123456789abcdef01234567"

pytest.importorskip("huggingface_hub.cli.extensions", reason="this client has no extensions yet")
pytestmark = pytest.mark.skipif(os.name == "nt", reason="hf itself refuses shell extensions on Windows")

# The client's own `hf extensions install`; only github.com is played by this checkout.
INSTALL = f"""
import sys
from pathlib import Path
from huggingface_hub import set_client_factory
from huggingface_hub.cli import extensions
from huggingface_hub.cli.hf import main

http = extensions.httpx2 if hasattr(extensions, "httpx2") else extensions.httpx

def github(request):
    host, path = request.url.host, request.url.path
    if host == "raw.githubusercontent.com":
        file = Path({str(ROOT)!r}) / path.split("/HEAD/")[1]
        return http.Response(200, content=file.read_bytes()) if file.is_file() else http.Response(404)
    if path.endswith(".git/info/refs"):
        return http.Response(200, text="0000{COMMIT} HEAD\\0symref")
    return http.Response(200 if path == "/someone/hf-oattn" else 404)

set_client_factory(lambda: http.Client(transport=http.MockTransport(github)))
sys.argv = ["hf", "extensions", *sys.argv[1:]]
main()
"""


def _bare(home: Path, path: str = "") -> dict[str, str]:
    """A new user's environment, with the system's programs and those in ``path``."""
    keep = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
    folders = ":".join(filter(None, (path, "/usr/bin", "/bin")))
    return {**keep, "HOME": str(home), "PATH": folders, "HF_HUB_DISABLE_UPDATE_CHECK": "1", "HF_HUB_OFFLINE": "1"}


def _run(command: list[str], env: dict[str, str], cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, env=env, cwd=cwd, capture_output=True, text=True, timeout=120)


def _stub(folder: Path, name: str) -> None:
    """A program that prints what it was called with."""
    folder.mkdir(exist_ok=True)
    (folder / name).write_text('#!/bin/sh\nprintf "%s|" "$(basename "$0")" "$@"\nprintf "as %s" "$OATTN_COMMAND"\n')
    (folder / name).chmod(0o755)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home in which the real client installed the extension."""
    home = tmp_path_factory.mktemp("home")
    env = {name: value for name, value in _bare(home).items() if name != "HF_HUB_OFFLINE"}
    done = _run([sys.executable, "-c", INSTALL, "install", "someone/hf-oattn"], env)
    assert done.returncode == 0, done.stderr
    return home


def _package(home: Path) -> str:
    """What to install: the commit that the client noted; clients before 2.3 note none."""
    noted = json.loads(_installed(home).with_name("manifest.json").read_text())
    assert noted.get("commit_sha") in (None, COMMIT)
    return f"oattn_hub @ https://github.com/someone/hf-oattn/archive/{noted.get('commit_sha') or 'HEAD'}.zip"


def _installed(home: Path) -> Path:
    return home / ".local/share/hf/extensions/hf-oattn/hf-oattn"


def test_the_real_client_installs_and_runs_it(home: Path, tmp_path: Path) -> None:
    hf = Path(sys.executable).with_name("hf")
    if not (hf.exists() and hf.with_name("oattn").exists()):
        pytest.skip("hf and oattn are not scripts beside this Python")
    listed = _run([str(hf), "extensions", "list"], _bare(home))
    assert "hf oattn" in listed.stdout
    assert "Which attention heads" in listed.stdout  # the description, from pyproject.toml
    # its environment is not on PATH: the extension finds the oattn beside the hf that runs
    helped = _run([str(hf), "oattn", "publish", "--help"], _bare(home), tmp_path)
    assert helped.stdout.startswith("usage: hf oattn publish")
    assert "written by `hf oattn analyze`, `hf oattn prune` or `hf oattn sweep`" in " ".join(helped.stdout.split())
    refused = _run([str(hf), "oattn", "compare", "nowhere", "nowhere"], _bare(home), tmp_path)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith(
        "hf oattn: There is no report at nowhere. Name a folder that `hf oattn analyze` wrote"
    )
    assert refused.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("programs", "printed"),
    [
        (("oattn", "uvx", "pipx"), "oattn|compare|a b|as hf oattn"),
        (("uvx", "pipx"), "uvx|--python|>=3.11|--from|{package}|oattn|compare|a b|as hf oattn"),
        (("pipx",), "pipx|run|--spec|{package}|oattn|compare|a b|as hf oattn"),
    ],
)
def test_it_takes_the_first_way_that_is_there(
    home: Path, tmp_path: Path, programs: tuple[str, ...], printed: str
) -> None:
    for name in programs:
        _stub(tmp_path / "bin", name)
    done = _through_shell(_installed(home), home, tmp_path, "compare", "a b")
    assert done.stdout == printed.format(package=_package(home)), done.stderr


def test_without_any_way_it_says_what_to_install(home: Path, tmp_path: Path) -> None:
    done = _through_shell(_installed(home), home, tmp_path, "analyze", "bert")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("hf oattn: oattn_hub is not installed here")
    assert f"pip install '{_package(home)}'" in done.stderr


def test_a_checkout_runs_itself(tmp_path: Path) -> None:
    _stub(tmp_path / "bin", "uvx")
    done = _through_shell(SCRIPT, tmp_path, tmp_path, "--version")
    assert done.stdout == f"uvx|--python|>=3.11|--from|{ROOT}|oattn|--version|as hf oattn"


def test_a_folder_of_that_name_is_not_an_installed_package(home: Path, tmp_path: Path) -> None:
    (tmp_path / "oattn_hub").mkdir()
    (tmp_path / "oattn_hub/__init__.py").write_text("print('wrong')")
    done = _through_shell(_installed(home), home, tmp_path, "--version")
    assert (done.returncode, done.stdout) == (1, "")


def _through_shell(script: Path, home: Path, folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run by a shell, which has no oattn beside it, with a python3 that has no packages."""
    (folder / "bin").mkdir(exist_ok=True)
    python = folder / "bin/python3"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "$@"\n')
    python.chmod(0o755)
    env = _bare(home, str(folder / "bin"))
    env.pop("PYTHONPATH", None)
    return _run(["/bin/sh", "-c", '"$0" "$@"; exit $?', str(script), *words], env, folder)


@pytest.mark.parametrize(
    ("called", "name"),
    [
        ("/venv/bin/oattn", "oattn"),
        ("/venv/bin/hf-oattn", "hf-oattn"),
        ("/home/me/.local/share/hf/extensions/hf-oattn/venv/bin/hf-oattn", "hf oattn"),
        ("/venv/lib/oattn_hub/cli/__main__.py", "oattn"),
    ],
)
def test_errors_carry_the_name_that_was_typed(
    called: str, name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.delenv("OATTN_COMMAND", raising=False)
    monkeypatch.setattr(sys, "argv", [called])
    assert main(["compare", str(tmp_path / "a"), str(tmp_path / "b")]) == 1
    assert capsys.readouterr().err.startswith(f"{name}: There is no report at")
    with pytest.raises(SystemExit):
        main(["compare"])
    missing = "the following arguments are required: a, b"
    assert capsys.readouterr().err == f"{name} compare: {missing}. See `{name} compare --help`.\n"
    with pytest.raises(SystemExit):
        main(["compare", "--help"])
    assert f"written by `{name} analyze`" in " ".join(capsys.readouterr().out.split())
