"""Which function answers which request.

A route is a function ``(hub, request) -> Response`` registered for a method and a path pattern. A request that no
route knows is answered 501: a client that learned a new call must show up, not be guessed at.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import parse_qs, unquote

from oattn_hub.local_hub.accounts import Account
from oattn_hub.local_hub.faults import Fault

if TYPE_CHECKING:
    from oattn_hub.local_hub.server import LocalHub

_JSON_LIMIT = 64 * 2**20
_CHUNK = 1 << 20

TYPE = r"(?P<type>models|datasets|spaces)"
REPO = r"(?P<id>[^/]+(?:/[^/]+)?)"  # without a namespace it names nothing here, and is answered so
REVISION = r"(?P<revision>[^/]+)"


class Body(Protocol):
    """The bytes that came with a request."""

    def read(self, size: int) -> bytes: ...


@dataclass(frozen=True)
class Request:
    """A request, as the routes see it."""

    method: str
    path: str  # still URL-quoted
    query: Mapping[str, list[str]]
    headers: Message
    body: Body
    account: Account | None
    parts: Mapping[str, str] = field(default_factory=dict)  # what the route's pattern matched, unquoted

    def chunks(self) -> Iterator[bytes]:
        """The body in pieces."""
        while chunk := self.body.read(_CHUNK):
            yield chunk

    def json(self) -> dict[str, Any]:
        """The body as a JSON object."""
        content = bytearray()
        for chunk in self.chunks():
            content += chunk
            if len(content) > _JSON_LIMIT:
                raise Fault(413, "The request is too large")
        try:
            value = json.loads(content or b"{}")
        except ValueError as error:
            raise Fault(400, f"The body is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise Fault(400, "The body is not a JSON object")
        return value

    def form(self) -> dict[str, list[str]]:
        """The body as a form."""
        return parse_qs(b"".join(self.chunks()).decode(), keep_blank_values=True)

    def flag(self, name: str) -> bool:
        """Whether the query asks for ``name``."""
        return self.query.get(name, [""])[0].lower() in ("1", "true")

    @property
    def repo_type(self) -> str:
        """``model``, ``dataset`` or ``space``; a path without a type means a model."""
        return self.parts.get("type", "models").removesuffix("s")

    @property
    def repo_id(self) -> str:
        """``namespace/name``."""
        return self.parts["id"]

    @property
    def revision(self) -> str:
        """The branch, tag or commit in the path."""
        return self.parts.get("revision", "main")


@dataclass(frozen=True)
class Response:
    """An answer: JSON, text, or a stretch of a file."""

    status: int = 200
    body: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    file: Path | None = None
    span: tuple[int, int] = (0, 0)  # offset and length within the file
    content_type: str = "application/json; charset=utf-8"


Route = Callable[["LocalHub", Request], Response]
_ROUTES: list[tuple[str, re.Pattern[str], Route]] = []


def route(method: str, pattern: str) -> Callable[[Route], Route]:
    """Register the function for requests of that method whose whole path matches."""

    def register(function: Route) -> Route:
        _ROUTES.append((method, re.compile(pattern), function))
        return function

    return register


def find_route(method: str, path: str) -> tuple[Route, dict[str, str]] | None:
    """The function for a request, and what its pattern matched. HEAD is answered by the route for GET."""
    wanted = "GET" if method == "HEAD" else method
    for known, pattern, function in _ROUTES:
        if known == wanted and (match := pattern.fullmatch(path)):
            return function, {key: unquote(value) for key, value in match.groupdict().items() if value is not None}
    return None
