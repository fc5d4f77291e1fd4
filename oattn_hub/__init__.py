"""Which attention heads does this model need?

``import oattn_hub as oh`` costs next to nothing: every public name is imported when it is first used, so that
``oattn --help`` and a machine that only reads a report never pay for torch or transformers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oattn_hub.lazy import lazy_exports

__version__ = "0.1.0"

if TYPE_CHECKING:
    from oattn_hub.adapters import adapt as adapt
    from oattn_hub.analyzer import Analyzer as Analyzer
    from oattn_hub.analyzer import analyze as analyze
    from oattn_hub.attention import AttentionStore as AttentionStore
    from oattn_hub.attention import capture as capture
    from oattn_hub.errors import OattnError as OattnError
    from oattn_hub.hub import from_pretrained as from_pretrained
    from oattn_hub.hub import list_variants as list_variants
    from oattn_hub.hub import load_report as load_report
    from oattn_hub.models.load import load_model as load_model
    from oattn_hub.pruning import PruningPlan as PruningPlan
    from oattn_hub.pruning import evaluate as evaluate
    from oattn_hub.report import Report as Report
    from oattn_hub.report import compare as compare
    from oattn_hub.watch import HeadWatch as HeadWatch

# public name -> module that defines it
_EXPORTS = {
    "Analyzer": "oattn_hub.analyzer",
    "AttentionStore": "oattn_hub.attention",
    "HeadWatch": "oattn_hub.watch",
    "OattnError": "oattn_hub.errors",
    "PruningPlan": "oattn_hub.pruning",
    "Report": "oattn_hub.report",
    "adapt": "oattn_hub.adapters",
    "analyze": "oattn_hub.analyzer",
    "capture": "oattn_hub.attention",
    "compare": "oattn_hub.report",
    "evaluate": "oattn_hub.pruning",
    "from_pretrained": "oattn_hub.hub",
    "list_variants": "oattn_hub.hub",
    "load_model": "oattn_hub.models.load",
    "load_report": "oattn_hub.hub",
}

__all__ = [*_EXPORTS, "__version__"]

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
