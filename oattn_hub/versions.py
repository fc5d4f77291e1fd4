"""Versions of what computes the numbers, without importing any of it."""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version

import oattn_hub

_PACKAGES = ("torch", "transformers", "timm", "numpy", "scipy", "numba")


def versions() -> dict[str, str]:
    """Name -> version of this package, of Python and of the libraries underneath."""
    return dict(_found())


@cache  # reading what is installed takes longer than some analyses
def _found() -> dict[str, str]:
    found = {"oattn_hub": oattn_hub.__version__, "python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found
