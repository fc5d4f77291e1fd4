"""Arguments looked at before anything slow starts: no model is loaded, no connection opened, torch is not imported.

A verb names its checks in ``check(args)``; what is wrong is said in one sentence, and what to do in another.
"""

from __future__ import annotations

import argparse
import os
import re
from codecs import getincrementaldecoder
from importlib.util import find_spec
from pathlib import Path, PurePath

from oattn_hub.errors import InvalidInput, LoadError, MissingDependency
from oattn_hub.files import read_json
from oattn_hub.files.locks import LOCK_FILE
from oattn_hub.inputs.ids import are_ids, read_ids
from oattn_hub.inputs.tables import DATASETS_MISSING, check_columns, is_table

_REPO_ID = re.compile(r"[\w][\w.-]*/[\w][\w.-]*", re.ASCII)
_LONGEST_NAME = 96  # of a repo, as the Hub counts
_FIGURES = (".png", ".svg", ".pdf", ".jpg", ".jpeg", ".webp")
MOST_DRAWS = 10_000  # random removals; each is measured on all inputs
_BEGINNING = 1 << 16  # bytes of a text that are looked at


def path(text: str) -> Path:
    """A path as argparse reads it; an empty one would be the folder that one stands in."""
    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty; name a place, or leave the option out")
    return Path(text)


def part(text: str) -> float:
    """A share as argparse reads it: a number, or per cent.

    >>> part("0.2"), part("20%")
    (0.2, 0.2)
    """
    try:
        return float(text[:-1]) / 100 if text.endswith("%") else float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"it is {text!r}; give a share such as 0.2 or 20%") from None


def count(value: int, name: str, least: int = 1, most: int | None = None) -> None:
    """A whole number that is neither too small nor more than anybody waits for."""
    if value < least:
        raise InvalidInput(f"{name} is {value}; give a whole number, {least} or more.")
    if most is not None and value > most:
        raise InvalidInput(f"{name} is {value}; give a whole number, {most:,} or less.")


def positive(value: float, name: str) -> None:
    """A number above 0; NaN is none."""
    if not value > 0:
        raise InvalidInput(f"{name} is {value:g}; give a number above 0.")


def choice(value: str, name: str, choices: tuple[str, ...]) -> None:
    """One of a few words."""
    if value not in choices:
        raise InvalidInput(f"{name} is {value!r}; choose one of {', '.join(choices)}.")


def share(value: float, name: str) -> None:
    """A part between 0 and 1; NaN is none."""
    if not 0 <= value <= 1:
        raise InvalidInput(f"{name} is {value:g}; give a part between 0 and 1, such as 0.2.")


def model(text: str, gguf_file: str | None = None, allow_pickle: bool = True) -> None:
    """A model that may exist: a folder that may be one, or a name that a Hub or timm could know."""
    from oattn_hub.models.folders import check_model_folder, missing_weights

    if not text.strip():
        raise InvalidInput("The model's name is empty. Give a Hub id (owner/name), a folder or a timm name.")
    if (Path(text) / "report.json").is_file():
        raise InvalidInput(f"{text} is a report and no model. `oattn heads {text}` shows it; name the model it is of.")
    if Path(text).exists():
        is_gguf = check_model_folder(Path(text), gguf_file) is not None
        if (Path(text) / "config.json").is_file() and not is_gguf:
            read_json(Path(text) / "config.json")
            if missing := missing_weights(text, allow_pickle):
                raise LoadError(missing)
        return
    _no_dangling_link(Path(text), "The model")
    if text.startswith((".", "/", "~")) or "\\" in text or text.count("/") > 1:
        raise LoadError(f"There is no folder {text}. Give a folder that exists, a Hub id (owner/name) or a timm name.")
    impossible = ":" not in text and ("--" in text or ".." in text or len(text) > _LONGEST_NAME)
    if impossible or not re.fullmatch(r"[\w][\w.:-]*(/[\w][\w.-]*)?", text, re.ASCII):
        raise InvalidInput(f"{text!r} is neither a folder nor a name. Give a Hub id (owner/name) or a timm name.")


def loading(args: argparse.Namespace) -> None:
    """The options of verbs that load a model by its name."""
    from oattn_hub.adapters import get_adapter
    from oattn_hub.models import TASKS

    if args.task is not None:
        choice(args.task, "--task", tuple(TASKS))
    if args.revision is not None and not args.revision.strip():
        raise InvalidInput("--revision is empty; give a branch, a tag or a commit, or leave it out.")
    place = getattr(args, "model", None) or getattr(args, "explain", None)
    if args.revision is not None and place is not None and Path(place).exists():
        raise InvalidInput(f"--revision is {args.revision!r}, but {place} is a folder, which has none. Leave it out.")
    if args.gguf_file is not None and (
        PurePath(args.gguf_file).is_absolute() or ".." in PurePath(args.gguf_file).parts
    ):
        raise InvalidInput(f"--gguf-file is {args.gguf_file!r}; give the name of a file in the model's folder.")
    if getattr(args, "adapter", None) is not None:
        get_adapter(args.adapter)
    placement(args)


def placement(args: argparse.Namespace) -> None:
    """Where the model is put."""
    if args.device is not None and args.device_map is not None:
        raise InvalidInput(f"--device is {args.device!r} and --device-map is {args.device_map!r}; give one of them.")
    if args.offload_folder is not None and Path(args.offload_folder).is_file():
        raise InvalidInput(f"--offload-folder is {args.offload_folder}, which is a file; name a folder.")


def report(folder: Path, what: str = "report") -> None:
    """A folder that holds a report."""
    if not folder.exists():
        raise LoadError(f"There is no {what} at {folder}. Name a folder that `oattn analyze` wrote.")
    if not (folder / "report.json").is_file():
        raise LoadError(f"{folder} is no {what}: it has no report.json. Name a folder that `oattn analyze` wrote.")


def data(text: str | None, name: str = "--data") -> None:
    """Data that is there and not empty; a dataset of the Hub only by its form."""
    if text is None:
        return
    if text.startswith("dataset:"):
        if not re.match(r"dataset:[\w][\w.-]*(/[\w][\w.-]*)?(\?|$)", text, re.ASCII):
            raise InvalidInput(f"{name} is {text!r}; write dataset:owner/name?split=test&column=text.")
        if find_spec("datasets") is None:
            raise MissingDependency(DATASETS_MISSING)
        return
    path = Path(text).expanduser()
    _no_dangling_link(path, name)
    if not text.strip() or not path.exists():
        raise LoadError(f"There is no data at {text!r}. Give a text file, a folder, or dataset:owner/name.")
    if not path.is_file() and not path.is_dir():  # a pipe can be read once; data is read again, for its fingerprint
        raise InvalidInput(f"{name} is {text}, which is neither a file nor a folder. Save what it gives to a file.")
    if path.is_file() and path.stat().st_size == 0:
        raise InvalidInput(f"{text} is empty. Give a file with text in it.")
    if path.is_file() and path.suffix == ".txt":
        _check_text(path)
    if path.is_file() and is_table(text):
        check_columns(path)
    if path.is_file() and are_ids(text):
        read_ids(path, None)
    if path.is_dir() and not any(item.is_file() for item in path.rglob("*")):
        raise InvalidInput(f"The folder {text} has no files in it. Give a folder of images or sounds.")


def _check_text(path: Path) -> None:
    """The beginning of a file of text is text."""
    try:
        with path.open("rb") as file:
            beginning = getincrementaldecoder("utf-8")().decode(file.read(_BEGINNING))
            whole = not file.read(1)
    except OSError as error:
        raise LoadError(f"{path} cannot be read ({error.strerror}). Give a text file.") from error
    except UnicodeDecodeError as error:
        raise LoadError(f"{path} is not UTF-8 text ({error}). Give a text file.") from error
    if whole and not beginning.strip():
        raise InvalidInput(f"{path} holds nothing but blanks. Give a file with text in it.")


def repo_id(text: str) -> None:
    """The name of a repo on the Hub."""
    if not _REPO_ID.fullmatch(text) or ".." in text or "--" in text or len(text) > _LONGEST_NAME:
        raise InvalidInput(f"{text!r} is not a repo id; write owner/name, e.g. me/minilm-heads.")


def repo_owner(text: str, name: str) -> None:
    """The part of a repo's name before the slash."""
    if not re.fullmatch(r"\w[\w.-]*", text, re.ASCII) or len(text) > _LONGEST_NAME:
        raise InvalidInput(f"{name} is {text!r}; give a name of letters, digits, dots and dashes, such as me.")


def scores(names: list[str]) -> None:
    """Names of scores, or all."""
    from oattn_hub.pruning.scores import get_score

    for name in names:
        if name != "all":
            get_score(name)


def lengths(values: list[int] | None) -> None:
    """Context lengths."""
    for value in values or ():
        count(value, "--lengths", least=2)


def checkpoint(folder: Path) -> None:
    """A folder that holds a pruned checkpoint."""
    if not folder.exists():
        raise LoadError(f"There is no checkpoint at {folder}. Name a folder that `oattn prune` wrote.")
    if not (folder / "oattn_pruned.json").is_file():
        raise LoadError(f"{folder} is no pruned checkpoint: it has no oattn_pruned.json. Name one `oattn prune` wrote.")


def input_file(path: Path | None, name: str) -> None:
    """A file to read, with something in it."""
    if path is not None and (not path.is_file() or path.stat().st_size == 0):
        raise LoadError(f"{name} is {path}, where there is no file with anything in it. Name one that exists.")


def output_file(path: Path | None, name: str) -> None:
    """A file to write to: no folder, and nothing on the way to it is a file."""
    if path is None:
        return
    if path.is_dir():
        raise InvalidInput(f"{name} is {path}, which is a folder; name a file.")
    if path.exists() and not path.is_file():
        raise InvalidInput(f"{name} is {path}, which is no file; name one.")
    _writable_name(path, name)


def figure_file(path: Path | None, name: str) -> None:
    """A file to draw to, of a kind that can be drawn."""
    output_file(path, name)
    if path is not None and path.suffix.lower() not in _FIGURES:
        raise InvalidInput(f"{name} is {path}; name a file that ends in {', '.join(_FIGURES)}.")


def output_folder(folder: Path | None, marks: tuple[str, ...], what: str, name: str = "--out") -> None:
    """A folder to write to: new, empty, or one that holds an older result of the same kind."""
    if folder is None or not folder.exists():
        _writable_name(folder, name)
        return
    if not folder.is_dir():
        raise InvalidInput(f"{name} is {folder}, which is a file; name a folder.")
    # a lock that nobody gave back: the folder was being written by a process that was killed
    if any(folder.iterdir()) and not any((folder / mark).exists() for mark in (*marks, LOCK_FILE)):
        raise InvalidInput(f"{name} is {folder}, which holds something else than {what}. Name a new or empty folder.")


def new_folder(folder: Path | None, name: str) -> None:
    """A folder to write to that is not there, or empty."""
    if folder is not None and folder.is_dir() and any(folder.iterdir()):
        raise InvalidInput(f"{name} is {folder}, which is not empty. Name a new or an empty folder.")
    output_folder(folder, (), "nothing", name)


def _no_dangling_link(path: Path, name: str) -> None:
    """A link that is there must lead somewhere."""
    if path.is_symlink() and not path.exists():
        raise LoadError(f"{name} is {path}, a link to what is not there. Mend the link or name another place.")


def _writable_name(path: Path | None, name: str) -> None:
    """No part of the way to something new may be a file or a broken link, and what is there must let us write."""
    for place in (path, *path.parents) if path is not None else ():
        _no_dangling_link(place, name)
    for parent in path.parents if path is not None else ():
        if parent.exists() and not parent.is_dir():
            raise InvalidInput(f"{name} is {path}, but {parent} is a file; name another place.")
    nearest = next((parent for parent in path.parents if parent.exists()), None) if path is not None else None
    if nearest is not None and not os.access(nearest, os.W_OK):
        raise InvalidInput(f"{name} is {path}, but {nearest} may not be written to; name another place.")
