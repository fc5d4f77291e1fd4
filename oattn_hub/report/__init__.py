"""The Report object, its figures and its page. Needs neither torch nor the model.

======================  ==========================================================================
``Report``              what was found; ``save``, ``load``, ``plot``, ``show``, ``plan``
``GroupResult``         the arrays of one group of heads
``HeadRecord``          one row of ``report.heads``
``compare``             two reports side by side
======================  ==========================================================================
"""

from __future__ import annotations

from oattn_hub.records import ModelInfo as ModelInfo
from oattn_hub.records import Provenance as Provenance
from oattn_hub.records import Settings as Settings
from oattn_hub.report.comparison import Comparison as Comparison
from oattn_hub.report.comparison import compare as compare
from oattn_hub.report.group import GroupResult as GroupResult
from oattn_hub.report.records import HeadRecord as HeadRecord
from oattn_hub.report.records import NetworkRecord as NetworkRecord
from oattn_hub.report.records import StabilityRecord as StabilityRecord
from oattn_hub.report.report import Report as Report

__all__ = [
    "Comparison",
    "GroupResult",
    "HeadRecord",
    "ModelInfo",
    "NetworkRecord",
    "Provenance",
    "Report",
    "Settings",
    "StabilityRecord",
    "compare",
]
