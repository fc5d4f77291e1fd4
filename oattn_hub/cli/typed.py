"""The name under which the program was called: ``oattn``, or ``hf oattn`` as an extension of Hugging Face's own."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path

_OURS = "oattn"


def typed_name() -> str:
    """What the user typed before the verb; the script ``hf-oattn`` says so in ``OATTN_COMMAND``."""
    if given := os.environ.get("OATTN_COMMAND"):
        return given
    called = Path(sys.argv[0])
    if called.stem != "hf-oattn":
        return _OURS
    # `hf` keeps the extensions that it installed as Python packages in extensions/hf-oattn/venv
    return "hf oattn" if "extensions" in called.parts else called.stem


def as_typed(text: str, verbs: Iterable[str]) -> str:
    """The text with every ``oattn VERB`` as this user would have to type it."""
    name = typed_name()
    return re.sub(rf"(?<![\w-])(?<!hf ){_OURS} (?=(?:{'|'.join(verbs)})\b)", lambda _: f"{name} ", text)
