"""Who a model is: names that may be published, Hub ids, fingerprints, the licence."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from oattn_hub.files import exists_here, fingerprint, is_folder, joint_fingerprint, sha256_file
from oattn_hub.files.front_matter import card_metadata
from oattn_hub.models.options import HubOptions
from oattn_hub.tokens import default_token
from oattn_hub.types import Array

if TYPE_CHECKING:
    from torch import nn

_HUB_ID = re.compile(r"\w[\w.-]*/\w[\w.-]*", re.ASCII)
_WEIGHTS = ("*.safetensors", "*.gguf", "*.bin")


def is_hub_id(text: str) -> bool:
    """Whether the text has the form of a repo's name on the Hub.

    >>> is_hub_id("google-bert/bert-base-uncased"), is_hub_id("bert"), is_hub_id("../models/bert")
    (True, False, False)
    """
    return _HUB_ID.fullmatch(text) is not None


def is_hub_repo(source: str) -> bool:
    """Whether ``source`` names a repo on the Hub and no folder here."""
    return is_hub_id(source) and not exists_here(source)


def public_name(source: str) -> str:
    """A Hub id as it is, a folder by its last two names: reports are published, home directories are not."""
    return "/".join(Path(source).resolve().parts[-2:]) if is_folder(source) else source


def content_fingerprint(folder: Path) -> str:
    """SHA-256 over the weights and the config of a model's folder."""
    files = [path for pattern in (*_WEIGHTS, "config.json") for path in sorted(folder.glob(pattern))]
    return fingerprint([[path.name, sha256_file(path)] for path in files])


def weights_fingerprint(model: nn.Module) -> str:
    """SHA-256 of the weights of a module that came without a name."""
    return joint_fingerprint(_identity(model))


def _identity(model: nn.Module) -> Iterator[str | Array]:
    """The class, and every weight by name, one at a time."""
    from torch import Tensor

    from oattn_hub.models.offloaded import StoredState

    yield type(model).__qualname__
    for name, value in StoredState(model).items():
        known = isinstance(value, Tensor) and not value.is_meta  # else packed (quantised), or without values
        yield name
        yield value.detach().cpu().float().numpy() if known else str(value)


def batch_fingerprint(*batches: Mapping[str, object]) -> str:
    """SHA-256 of the tensors a model was given, by name; other arguments do not count."""
    from torch import Tensor

    parts: list[str | Array] = []
    for batch in batches:
        for name, value in sorted(batch.items()):
            if isinstance(value, Tensor) and not value.is_nested:
                parts += [name, value.detach().cpu().float().numpy()]
    return fingerprint(*parts)


def license_of(source: str | None, **hub_options: Unpack[HubOptions]) -> str | None:
    """What the card of a folder or of a Hub repo says; None where there is no card, or it does not say.

    Args:
        source: A folder or a Hub id.
        hub_options: Arguments of ``hf_hub_download``: revision, token, cache_dir, local_files_only.
    """
    from huggingface_hub import hf_hub_download

    if source is None:
        return None
    card = Path(source) / "README.md"
    if is_hub_repo(source):
        hub_options["token"] = default_token(hub_options.get("token"))
        if not _answers(source, hub_options):
            hub_options["local_files_only"] = True
        try:
            card = Path(hf_hub_download(source, "README.md", **hub_options))
        except (OSError, ValueError):  # no card, or no connection: not worth failing for
            return None
    return _license_name(card_metadata(card).get("license"))


def _answers(source: str, options: HubOptions) -> bool:
    """Whether the Hub answers a question about this card: a download asks five times more, for half a minute."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_url
    from huggingface_hub.errors import HfHubHTTPError

    if options.get("local_files_only"):
        return False
    try:
        url = hf_hub_url(source, "README.md", revision=options.get("revision"))
        get_hf_file_metadata(url, token=options.get("token"))
    except HfHubHTTPError:  # an answer, if not a good one
        return True
    except Exception:  # by name these classes differ between versions of the client
        return False
    return True


def _license_name(named: object) -> str | None:
    """The one name that the Hub knows a licence by; several together are ``other`` there."""
    names = named if isinstance(named, list) else [named]
    if not names or not all(isinstance(name, str) for name in names):
        return None
    return str(names[0]) if len(names) == 1 else "other"
