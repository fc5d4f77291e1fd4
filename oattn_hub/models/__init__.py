"""Models that transformers no longer has. Importing this package imports neither torch nor transformers."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["TASKS", "find_model_class", "register_models"]

# task -> Auto class, for a checkpoint whose config names no architecture, or when another head is wanted
TASKS = {
    "base": "AutoModel",
    "causal-lm": "AutoModelForCausalLM",
    "masked-lm": "AutoModelForMaskedLM",
    "seq2seq-lm": "AutoModelForSeq2SeqLM",
    "text-classification": "AutoModelForSequenceClassification",
    "image-classification": "AutoModelForImageClassification",
    "speech-seq2seq": "AutoModelForSpeechSeq2Seq",
}


@cache
def register_models() -> None:
    """Tell transformers' Auto classes about Transformer-XL (`model_type` "transfo-xl")."""
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

    from oattn_hub.models.transfo_xl import TransfoXLConfig, TransfoXLLMHeadModel, TransfoXLModel

    AutoConfig.register(TransfoXLConfig.model_type, TransfoXLConfig)
    AutoModel.register(TransfoXLConfig, TransfoXLModel)
    AutoModelForCausalLM.register(TransfoXLConfig, TransfoXLLMHeadModel)


def find_model_class(name: str, model_type: str | None = None) -> type[PreTrainedModel] | None:
    """The class that a checkpoint names: of transformers, also one that it does not export, or one of ours.

    Args:
        name: As in the config's `architectures`.
        model_type: Where to look for a class that `import transformers` does not show (towers, encoders alone).
    """
    import transformers

    from oattn_hub.models import transfo_xl

    ours = {cls.__name__: cls for cls in (transfo_xl.TransfoXLModel, transfo_xl.TransfoXLLMHeadModel)}
    found = ours.get(name) or getattr(transformers, name, None) or _hidden_class(name, model_type)
    return found if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel) else None


def _hidden_class(name: str, model_type: str | None) -> object:
    """A class in the modeling file of a type that transformers knows; no other module is ever imported."""
    from transformers import CONFIG_MAPPING

    if model_type is None or model_type not in CONFIG_MAPPING:
        return None
    config_module = CONFIG_MAPPING[model_type].__module__
    if not config_module.startswith("transformers.models."):
        return None
    try:
        modeling = import_module(config_module.replace(".configuration_", ".modeling_"))
    except ImportError:
        return None
    return getattr(modeling, name, None)
