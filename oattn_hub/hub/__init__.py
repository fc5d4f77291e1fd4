"""Publish reports and pruned checkpoints, and get them back. The only room that opens a connection."""

from oattn_hub.hub.download import copy_to, from_pretrained, load_report, pull
from oattn_hub.hub.publish import Publication, publish_folder
from oattn_hub.hub.push import card_of, push_checkpoint, push_folder, push_report, write_card
from oattn_hub.hub.variants import Variant, list_variants

__all__ = [
    "Publication",
    "Variant",
    "card_of",
    "copy_to",
    "from_pretrained",
    "list_variants",
    "load_report",
    "publish_folder",
    "pull",
    "push_checkpoint",
    "push_folder",
    "push_report",
    "write_card",
]
