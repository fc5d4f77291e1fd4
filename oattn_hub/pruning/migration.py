"""Old checkpoints with ``pruned_heads``: transformers 4 wrote them, transformers 5 cannot load them.

The heads are missing in the weights already; what is needed is a model of the right shape. Surgery knows how to make
one: build the model from its config, cut the heads that ``pruned_heads`` names, and load the weights into that.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn

from oattn_hub.errors import FormatError, InvalidInput, LoadError
from oattn_hub.files import read_json
from oattn_hub.models import find_model_class
from oattn_hub.models.describe import pretrained
from oattn_hub.models.load import LoadedModel
from oattn_hub.models.options import Processor
from oattn_hub.models.screening import screen_folder
from oattn_hub.pruning.checkpoint import save_checkpoint
from oattn_hub.pruning.costs import PruningResult
from oattn_hub.pruning.plan import PruningPlan
from oattn_hub.pruning.pruned import PrunedModel
from oattn_hub.pruning.sites import all_heads, head_sites, structure_fingerprint
from oattn_hub.pruning.surgery import cut
from oattn_hub.records import PRUNING_KEY, ModelInfo


def migrate(folder: str | Path, out: str | Path, allow_pickle: bool = False) -> PrunedModel:
    """Write the checkpoint of ``folder`` to ``out`` in the form that loads, and return it.

    Args:
        folder: with ``config.json``, whose ``pruned_heads`` names heads, and the weights.
        out: the new folder; the old one is not touched.
        allow_pickle: also read ``pytorch_model.bin``; only tensors are unpickled.
    """
    import transformers

    where = Path(folder)
    config_file = read_json(where / "config.json")
    heads = _pruned_heads(config_file, where)
    state = _weights(where, allow_pickle)
    name = (config_file.get("architectures") or [""])[0]
    model_class: Any = find_model_class(str(name), config_file.get("model_type"))
    if model_class is None:
        raise LoadError(
            f"{where} holds a {name or 'model without a name'}, which this version of transformers does not have."
        )
    screen_folder(where, config_file)
    config = transformers.AutoConfig.from_pretrained(where, trust_remote_code=False)
    config.__dict__.pop("pruned_heads", None)
    model: nn.Module = model_class(config).eval()
    sites = head_sites(model)
    plan = PruningPlan(
        heads=sorted(heads),
        n_heads=len(all_heads(sites)),
        structure=structure_fingerprint(sites),
        model=ModelInfo(where.resolve().name, library="transformers", modality="text"),
        chosen_by={"pruned_heads": "of the old config"},
    )
    before = sum(parameter.numel() for parameter in model.parameters())
    cuts = cut(model, plan.heads)
    setattr(config, PRUNING_KEY, cuts)
    _load(model, state, where)
    after = sum(parameter.numel() for parameter in model.parameters())
    result = PruningResult(plan.n_heads, plan.n_heads - len(plan.heads), before, after)
    loaded = LoadedModel(model, _processor(where), plan.model)
    pruned = PrunedModel(model, plan, cuts, result, loaded)
    save_checkpoint(pruned, Path(out))
    return pruned


def _pruned_heads(config: dict[str, Any], where: Path) -> list[tuple[int, int]]:
    found = config.get("pruned_heads") if isinstance(config, dict) else None
    if not found:
        raise InvalidInput(f"{where}/config.json names no pruned_heads; there is nothing to migrate.")
    try:
        return [(int(layer), int(head)) for layer, heads in found.items() for head in heads]
    except (AttributeError, TypeError, ValueError) as error:
        raise FormatError(f"{where}/config.json has pruned_heads that name no heads ({error}). Mend them.") from error


def _weights(where: Path, allow_pickle: bool) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    files = sorted(where.glob("*.safetensors"))
    if files:
        return {name: tensor for file in files for name, tensor in load_file(file).items()}
    pickles = sorted(where.glob("pytorch_model*.bin"))
    if pickles and not allow_pickle:
        raise LoadError(
            f"{where} has only pickled weights ({pickles[0].name}). Pass allow_pickle=True (--allow-pickle)."
        )
    if not pickles:
        raise LoadError(f"{where} has no weights (*.safetensors or pytorch_model.bin).")
    return {k: v for file in pickles for k, v in torch.load(file, map_location="cpu", weights_only=True).items()}


def _load(model: nn.Module, state: dict[str, torch.Tensor], where: Path) -> None:
    """Load what the old file has; names of buffers that newer versions no longer save may be left over."""
    try:
        missing = model.load_state_dict(state, strict=False).missing_keys
    except RuntimeError as error:
        raise FormatError(
            f"The weights in {where} do not have the shape that its pruned_heads ask for: {error}"
        ) from error
    tied = {name for name in missing if not name.endswith("position_ids")} - set(
        getattr(model, "_tied_weights_keys", None) or ()
    )
    if tied:
        raise FormatError(
            f"{where} lacks {sorted(tied)[0]} and {len(tied) - 1} others; it is not a {type(model).__name__}."
        )
    transformers_model = pretrained(model)
    transformers_model.tie_weights()


def _processor(where: Path) -> Processor | None:
    import transformers

    try:
        return transformers.AutoTokenizer.from_pretrained(where, trust_remote_code=False)
    except (OSError, ValueError, KeyError):
        return None
