"""A small Hub on this machine, for the real client: see :class:`~oattn_hub.local_hub.server.LocalHub`."""

from oattn_hub.local_hub.accounts import Account
from oattn_hub.local_hub.server import Handler, LocalHub

__all__ = ["Account", "Handler", "LocalHub"]
