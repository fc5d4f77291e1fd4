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

MAX_JSON = 16 * 2**20
_CHUNK = 1 << 20
_NUMBER = re.compile(r"[0-9]{1,9}", re.ASCII)

TYPE = r"(?P<type>models|datasets|spaces)"
REPO = r"(?P<id>[^/]+(?:/[^/]+)?)"  # without a namespace it names nothing here, and is answered so
REVISION = r"(?P<revision>[^/]+)"


MAX_ITEMS = 10_000


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

    def content(self) -> bytes:
        """The whole body, if it is not too large for that."""
        content = bytearray()
        for chunk in self.chunks():
            content += chunk
            if len(content) > MAX_JSON:
                raise Fault(413, f"The request has more than {MAX_JSON:,} bytes")
        return bytes(content)

    def json(self) -> dict[str, Any]:
        """The body as a JSON object."""
        try:
            value = json.loads(self.content() or b"{}")
        except (ValueError, RecursionError) as error:
            raise Fault(400, f"The body is not JSON: {error}") from error
        if not isinstance(value, dict):
            raise Fault(400, "The body is not a JSON object")
        return value

    def form(self) -> dict[str, list[str]]:
        """The body as a form."""
        try:
            return parse_qs(self.content().decode(), keep_blank_values=True)
        except ValueError as error:
            raise Fault(400, f"The body is not a form: {error}") from error

    def number(self, name: str, default: int) -> int:
        """A count in the query."""
        value = self.query.get(name, [str(default)])[0]
        if not _NUMBER.fullmatch(value):
            raise Fault(400, f"{name} is {value[:20]!r}, not a count")
        return int(value)

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
    body: object = None
    headers: Mapping[str, str] = field(default_factory=dict)
    file: Path | None = None
    span: tuple[int, int] = (0, 0)  # offset and length within the file
    content_type: str = "application/json; charset=utf-8"


def listed(value: Mapping[str, Any], name: str) -> list[dict[str, Any]]:
    """The list of objects that a JSON body has under a name."""
    items = value.get(name, [])
    if not isinstance(items, list) or len(items) > MAX_ITEMS or not all(isinstance(item, dict) for item in items):
        raise Fault(400, f"{name!r} is not a list of at most {MAX_ITEMS} objects")
    return items


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
