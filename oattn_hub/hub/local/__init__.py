"""A small Hub on this machine, for the real client: see :class:`~oattn_hub.hub.local.server.LocalHub`."""

from oattn_hub.hub.local.accounts import TOKEN_PREFIX, Account
from oattn_hub.hub.local.server import Handler, LocalHub

__all__ = ["TOKEN_PREFIX", "Account", "Handler", "LocalHub"]
