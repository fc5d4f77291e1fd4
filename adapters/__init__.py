"""What differs between model families, and nothing else.

One file per family, mostly data: which modules are token attention, which group of layers each belongs to, and how its
heads lie in the projections. The logic lives in ``base.py``; ``generic`` serves models nobody described.

>>> from oattn_hub.adapters import get_adapter, list_adapters
>>> list_adapters("*vit*")
['timm_vit', 'vit']
>>> get_adapter("gpt2").groups
{'*crossattention*': 'cross', '*': 'decoder'}
"""

# A checkout run as ``python -m …`` puts this folder on sys.path, where it would shadow AdapterHub's ``adapters`` and
# register every family a second time.
if __name__ != "oattn_hub.adapters":
    raise ImportError("Import this package as oattn_hub.adapters; the top-level name 'adapters' belongs to AdapterHub.")

from oattn_hub.adapters.base import Adapter as Adapter
from oattn_hub.adapters.registry import adapt as adapt
from oattn_hub.adapters.registry import get_adapter as get_adapter
from oattn_hub.adapters.registry import list_adapters as list_adapters
from oattn_hub.adapters.registry import register as register
from oattn_hub.adapters.site import AttentionSite as AttentionSite

__all__ = ["Adapter", "AttentionSite", "adapt", "get_adapter", "list_adapters", "register"]
