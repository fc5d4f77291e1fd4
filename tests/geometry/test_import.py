"""Importing the geometry costs next to nothing; what is heavy comes when it is used."""

from __future__ import annotations

import subprocess
import sys

import oattn_hub.geometry as geometry


def test_import_is_light() -> None:
    heavy = ("torch", "numba", "networkx", "matplotlib")
    code = f"import sys, oattn_hub.geometry; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_public_names_exist_and_are_sorted() -> None:
    assert list(geometry.__all__) == sorted(geometry.__all__)
    for name in geometry.__all__:
        assert getattr(geometry, name).__doc__, name
