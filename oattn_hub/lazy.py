"""Public names that are imported when they are first used, so that importing a package stays cheap."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any


def lazy_exports(package: str, exports: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The ``__getattr__`` and ``__dir__`` of a package whose names live in other modules (PEP 562).

    Args:
        package: The package's ``__name__``.
        exports: Public name -> module that defines it.
    """

    def get(name: str) -> Any:
        if name not in exports:
            raise AttributeError(f"module {package!r} has no attribute {name!r}; it has {', '.join(sorted(exports))}")
        value = getattr(import_module(exports[name]), name)
        setattr(sys.modules[package], name, value)  # the next look-up is an ordinary one
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *exports})

    return get, names
