"""Which token goes to which Hub: a real one never goes to a Hub on this machine unless it is passed by name."""

from __future__ import annotations

import ipaddress
import socket
from urllib.parse import urlsplit

#: How the tokens of a local Hub begin; they mean nothing anywhere else.
LOCAL_TOKEN_PREFIX = "oattn_local_"


def is_local(endpoint: str) -> bool:
    """Whether that address is this machine, however it is written.

    >>> is_local("http://127.0.0.1:8642"), is_local("http://localhost:1"), is_local("https://huggingface.co")
    (True, True, False)
    >>> is_local("http://127.1:8642"), is_local("http://[::ffff:127.0.0.1]"), is_local("http://0.0.0.0")
    (True, True, True)
    """
    host = (urlsplit(endpoint).hostname or "").rstrip(".")
    address = _address(host)
    if address is None:
        return host in ("localhost", "localhost.localdomain", "ip6-localhost") or host.endswith(".localhost")
    inner = getattr(address, "ipv4_mapped", None) or address
    return bool(inner.is_loopback or inner.is_unspecified)


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The address that a host is, in any form that the system takes (127.1, 0x7f000001); None for a name."""
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        pass
    try:
        return ipaddress.IPv4Address(socket.inet_aton(host))
    except (OSError, ValueError):
        return None


def token_for(endpoint: str, token: str | bool | None) -> str | bool | None:
    """The token to send there: the one given; otherwise, to a local Hub, only one that a local Hub made."""
    from huggingface_hub import constants, get_token

    if isinstance(token, str) or token is False or not is_local(endpoint):
        return token
    implicit = get_token() or ""
    if implicit.startswith(LOCAL_TOKEN_PREFIX):
        return implicit
    if is_local(constants.ENDPOINT):
        # Libraries above the client make requests of their own and name no token; then the client would take this one.
        constants.HF_HUB_DISABLE_IMPLICIT_TOKEN = True
    return False


def default_token(token: str | bool | None) -> str | bool | None:
    """The same for the Hub that this process is set to (``HF_ENDPOINT``)."""
    from huggingface_hub import constants

    return token_for(constants.ENDPOINT, token)
