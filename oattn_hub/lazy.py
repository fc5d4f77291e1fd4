"""What is imported when it is first used: public names, and packages that not every use of oattn_hub needs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from oattn_hub.errors import MissingDependency

ANALYSIS = ("numba", "matplotlib")  # capturing, publishing and downloading do without


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


def require(*packages: str, what: str) -> None:
    """Refuse early, in one sentence, what needs packages that are not installed, as after ``pip install --no-deps``."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise MissingDependency(
            f"{what} needs {' and '.join(missing)}, not installed here: pip install {' '.join(missing)}. "
            "Capturing alone works without."
        )
