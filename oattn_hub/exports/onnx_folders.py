"""A folder that optimum, onnxruntime and transformers.js read: ``onnx/model.onnx`` beside config and tokenizer.

The names of inputs and outputs are those that these tools expect: ``input_ids`` …, ``logits`` or
``last_hidden_state``; a model that writes text takes ``past_key_values.N.key`` and gives ``present.N.key``.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from oattn_hub.errors import InvalidInput, MissingDependency, SurgeryError
from oattn_hub.exports.graphs import CachedGraph, Graph, PlainGraph
from oattn_hub.files import atomic_path, write_json
from oattn_hub.inputs import calibration_inputs
from oattn_hub.models.describe import pretrained
from oattn_hub.models.load import LoadedModel, Source, load_model
from oattn_hub.pruning.belongings import copy_belongings
from oattn_hub.records import PRUNING_KEY

MODEL = "onnx/model.onnx"
_TOLERANCE = 1e-3  # of the output's size; onnxruntime fuses operations and rounds otherwise


def export_onnx(model: Source, folder: str | Path, inputs: Mapping[str, torch.Tensor] | None = None) -> Path:
    """Write a model as an ONNX folder, run it in onnxruntime on another shape, and return the folder.

    Args:
        model: a pruned checkpoint's folder, or anything ``load_model`` takes.
        folder: made if it does not exist.
        inputs: forward arguments to trace with; None makes some.
    """
    runtime = _onnxruntime()
    loaded = load_model(model)
    _check_served(loaded)
    graph = _graph(loaded, inputs)
    where = Path(folder)
    (where / MODEL).parent.mkdir(parents=True, exist_ok=True)
    with atomic_path(where / MODEL) as draft:
        _write(graph, draft)
        _compare(graph, runtime.InferenceSession(str(draft), providers=["CPUExecutionProvider"]))
    if loaded.processor is not None:
        loaded.processor.save_pretrained(where)
    copy_belongings(loaded, where)
    write_json(where / "config.json", _config(loaded, graph))
    return where


def _onnxruntime() -> ModuleType:
    try:
        import onnxscript  # noqa: F401 - torch's exporter needs it

        return import_module("onnxruntime")
    except ImportError as error:
        raise MissingDependency("Exporting to ONNX needs its packages: pip install 'oattn_hub[onnx]'.") from error


def _check_served(loaded: LoadedModel) -> None:
    config = getattr(loaded.model, "config", None)
    if loaded.library != "transformers":
        raise InvalidInput(
            f"{loaded.model_id} is a model of {loaded.library}; the folder is for tools that read transformers' "
            "configs. Call torch.onnx.export on the model."
        )
    if getattr(config, "is_encoder_decoder", False):
        raise InvalidInput(
            f"{loaded.model_id} is an encoder with a decoder, which these tools read as several files that are not "
            "written yet. Export its masked variant with optimum."
        )


def _graph(loaded: LoadedModel, inputs: Mapping[str, torch.Tensor] | None) -> Graph:
    batch = dict(inputs) if inputs is not None else dict(calibration_inputs(loaded, None, batches=1, tokens=16)[0])
    model = pretrained(copy.deepcopy(loaded.model).float())
    writes = "input_ids" in batch and getattr(model, "can_generate", bool)() and "CausalLM" in type(model).__name__
    return CachedGraph(model, batch) if writes else PlainGraph(model, batch)


def _write(graph: Graph, file: Path) -> None:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")  # the exporter's advice about names of axes
        try:
            program: Any = torch.onnx.export(
                graph,
                kwargs={"tensors": graph.example},
                dynamic_shapes={"tensors": graph.shapes},
                input_names=graph.input_names,
                output_names=graph.output_names,
                dynamo=True,
                verbose=False,
            )
            graph.mend(program)
            program.save(file)
        except (RuntimeError, ValueError, TypeError) as error:
            reason = " ".join(str(error).split())[:200]
            raise SurgeryError(
                f"torch cannot export this {type(graph.model).__name__} to ONNX ({type(error).__name__}: {reason}). "
                "Load it with attn_implementation='eager', or use the masked variant with optimum."
            ) from error


def _compare(graph: Graph, session: Any) -> None:
    """Make sure that the file has the model's outputs, on a shape that it was not traced with."""
    tensors = graph.other_example()
    given = {name: tensor.numpy() for name, tensor in zip(graph.input_names, tensors, strict=True)}
    wanted = {entry.name for entry in session.get_inputs()}
    found = session.run(graph.output_names, {name: value for name, value in given.items() if name in wanted})
    with torch.no_grad():
        expected = graph(tensors)
    for name, ours, theirs in zip(graph.output_names, expected, found, strict=True):
        difference, size = (ours - torch.from_numpy(theirs)).abs().max().item(), ours.abs().max().item()
        if not difference <= _TOLERANCE * max(1.0, size):
            raise SurgeryError(
                f"onnxruntime's {name} differs from the model's by {difference:.2g} (it reaches {size:.2g}), so "
                "nothing was written. Load the model with attn_implementation='eager' and export again."
            )


def _config(loaded: LoadedModel, graph: Graph) -> dict[str, Any]:
    """The original class's config: no tool runs our code, and the shapes are in the graph."""
    config: dict[str, Any] = getattr(loaded.model, "config").to_dict()  # noqa: B009 - a torch module has any attribute
    plain = {name: value for name, value in config.items() if name not in (PRUNING_KEY, "auto_map")}
    return {**plain, **graph.settings()}
