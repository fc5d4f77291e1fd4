"""Models that transformers no longer has. Importing this package imports neither torch nor transformers."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedModel

__all__ = ["find_model_class", "register_models"]


@cache
def register_models() -> None:
    """Tell transformers' Auto classes about Transformer-XL (`model_type` "transfo-xl")."""
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

    from oattn_hub.models.transfo_xl import TransfoXLConfig, TransfoXLLMHeadModel, TransfoXLModel

    AutoConfig.register(TransfoXLConfig.model_type, TransfoXLConfig)
    AutoModel.register(TransfoXLConfig, TransfoXLModel)
    AutoModelForCausalLM.register(TransfoXLConfig, TransfoXLLMHeadModel)


def find_model_class(name: str) -> type[PreTrainedModel] | None:
    """The class a checkpoint's `architectures` names, if it is one of ours."""
    from oattn_hub.models import transfo_xl

    return {cls.__name__: cls for cls in (transfo_xl.TransfoXLModel, transfo_xl.TransfoXLLMHeadModel)}.get(name)
