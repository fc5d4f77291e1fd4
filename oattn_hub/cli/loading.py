"""The options of every verb that loads a model, and the same options as ``load_model`` takes them."""

from __future__ import annotations

import argparse
from typing import Any

_NAMES = (
    "revision",
    "token",
    "cache_dir",
    "local_files_only",
    "trust_remote_code",
    "allow_pickle",
    "gguf_file",
    "task",
    "device",
    "device_map",
    "offload_folder",
)


def add_loading_arguments(parser: argparse.ArgumentParser, dtype: str = "--dtype") -> None:
    """Where the model comes from and what may be done to load it; ``dtype`` is the flag of the weights' format."""
    group = add_permission_arguments(parser, dtype)
    group.add_argument("--revision", help="branch, tag or commit on the Hub")
    group.add_argument("--gguf-file", help="which GGUF file, if the folder has several")
    group.add_argument("--task", help="which head to load instead of the model's own")


def add_permission_arguments(parser: argparse.ArgumentParser, dtype: str = "--dtype") -> argparse._ArgumentGroup:
    """What may be done to load the model that a report or a plan names, and where to put it; files never say so."""
    group = parser.add_argument_group("loading")
    group.add_argument("--token", help="a Hub token, if not the one you are logged in with")
    group.add_argument("--cache-dir", help="where downloads are kept")
    group.add_argument("--local-files-only", action="store_true", help="never contact the Hub")
    group.add_argument("--trust-remote-code", action="store_true", help="run code that comes with the model")
    group.add_argument("--allow-pickle", action="store_true", help="also load .bin weights, which are pickles")
    group.add_argument("--device", help="where to put the model, e.g. cuda or mps")
    group.add_argument("--device-map", help="auto: let accelerate spread it over devices, memory and disk")
    formats = ("float32", "bfloat16", "float16")
    group.add_argument(dtype, dest="weights_dtype", choices=formats, help="number format of the weights")
    group.add_argument("--offload-folder", help="where accelerate puts what fits into no memory")
    return group


def loading_options(args: argparse.Namespace) -> dict[str, Any]:
    """The options that were given, by the names ``load_model`` and ``analyze`` know them."""
    given = {name: getattr(args, name, None) for name in _NAMES} | {"dtype": getattr(args, "weights_dtype", None)}
    return {name: value for name, value in given.items() if value not in (None, False)}
