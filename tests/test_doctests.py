"""Every example in a docstring runs and prints what it says."""

from __future__ import annotations

import doctest
import pkgutil
import warnings
from importlib import import_module
from pathlib import Path

import pytest

import oattn_hub

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(oattn_hub.__path__, "oattn_hub.")
    if not module.name.endswith("__main__")
)


@pytest.mark.parametrize("name", MODULES)
def test_examples(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = import_module(name)
    assert doctest.testmod(module, optionflags=doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE).failed == 0
