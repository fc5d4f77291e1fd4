"""The local Hub as an HTTP server: ``oattn hub serve``.

It binds to 127.0.0.1 only. It speaks what the ``huggingface_hub`` client speaks, as far as publishing and downloading
models need it, and is strict where the Hub is: a lax stand-in would let mistakes through that the Hub refuses.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import sys
import time
import traceback
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import SHUT_RDWR, socket
from threading import Lock, Thread
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, urlsplit

from oattn_hub.local_hub import (  # noqa: F401 - routes
    collections,
    commits,
    discussions,
    downloads,
    pages,
    repositories,
    uploads,
)
from oattn_hub.local_hub.accounts import Account
from oattn_hub.local_hub.body import RequestBody
from oattn_hub.local_hub.faults import Fault
from oattn_hub.local_hub.routing import Request, Response, find_route
from oattn_hub.local_hub.store import HubStore

HOST = "127.0.0.1"
MAX_CONNECTIONS = 128
PATIENCE = 30.0  # seconds that a request may take while others find no room
_MAX_NOTED = 1000


class Handler(BaseHTTPRequestHandler):
    """One connection: reads requests, finds the route, writes answers."""

    protocol_version = "HTTP/1.1"
    server_version = "oattn-local-hub"
    disable_nagle_algorithm = True
    timeout = 120  # seconds that a client may be silent in the middle of a request
    server: _Server

    def do_GET(self) -> None:
        """Answer one request, whatever its method."""
        self.server.begin_request(self.connection)
        try:
            self._answer_one()
        finally:
            self.server.end_request(self.connection)

    def _answer_one(self) -> None:
        try:
            body = RequestBody(self.rfile, self.headers)
        except Fault as fault:  # where this request ends is unknown, so the connection ends with it
            self.close_connection = True
            return self._write(_refusal(fault))
        try:
            self.server.hub.store.check_room(body.length)
            response = self.answer(body)
        except Fault as fault:
            response = _refusal(fault)
        except ConnectionError:
            raise
        except OSError as error:
            response = _refusal(Fault(507, f"The local Hub cannot store this: {error}"))
        except Exception:  # a request that no route expected must not take the connection with it
            traceback.print_exc()
            response = _refusal(Fault(500, "The local Hub failed on this request; its terminal says why"))
        if not body.drain():
            self.close_connection = True
        self._write(response)

    do_HEAD = do_POST = do_PUT = do_DELETE = do_GET  # noqa: N815

    def answer(self, body: RequestBody) -> Response:
        """Run the route of this request."""
        hub = self.server.hub
        url = urlsplit(self.path)
        found = find_route(self.command, url.path)
        if found is None:
            hub.note_unknown(f"{self.command} {url.path}")
            raise Fault(501, f"The local Hub does not know {self.command} {url.path}")
        function, parts = found
        account = hub.authenticate(self.headers.get("Authorization"))
        query = parse_qs(url.query, keep_blank_values=True)
        return function(hub, Request(self.command, url.path, query, self.headers, body, account, parts))

    def _write(self, response: Response) -> None:
        content = b"" if response.body is None else _encode(response.body)
        length = response.span[1] if response.file else len(content)
        self.send_response(response.status)
        for name, value in {"Content-Type": response.content_type, **response.headers}.items():
            self.send_header(name, _one_line(value))
        self.send_header("Content-Length", str(length))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        if self.command == "HEAD" or not length:
            return
        if response.file is None:
            self.wfile.write(content)
        else:
            with response.file.open("rb") as stream:
                self.connection.sendfile(stream, *response.span)

    def log_message(self, format: str, *args: object) -> None:
        """Show requests only where they were asked for."""
        if self.server.hub.verbose:
            print(f"{self.log_date_time_string()} {_one_line(format % args)}", file=sys.stderr)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512  # many clients connect at once
    hub: LocalHub

    def __init__(self, address: tuple[str, int], handler: type[Handler]) -> None:
        self._lock = Lock()
        self._idle: dict[socket, None] = {}  # connections between two requests, the longest waiting first
        self._busy: dict[socket, float] = {}  # connections at work, and since when
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give the connection a thread; where there are too many, one of the others has to go."""
        with self._lock:
            full = len(self._idle) + len(self._busy) >= MAX_CONNECTIONS
            leaving = self._send_away() if full else None
            self._idle[request] = None
        if leaving is not None:
            with suppress(OSError):
                leaving.shutdown(SHUT_RDWR)  # its thread reads the end of the connection, and ends
        if full and leaving is None:  # all others are at work, and have not been for long
            self.shutdown_request(request)
        else:
            super().process_request(request, client_address)

    def _send_away(self) -> socket | None:
        """The connection that idles longest; or else the one whose request, sent or read drop by drop, never ends."""
        connections = self._idle or self._busy
        longest = next(iter(connections))
        if not self._idle and time.monotonic() - self._busy[longest] < PATIENCE:
            return None
        del connections[longest]
        return longest

    def shutdown_request(self, request: Any) -> None:
        """Forget the connection."""
        with self._lock:
            self._idle.pop(request, None)
            self._busy.pop(request, None)
        super().shutdown_request(request)

    def begin_request(self, connection: socket) -> None:
        """A whole request head has come in: this connection is at work."""
        with self._lock:
            self._idle.pop(connection, None)
            self._busy[connection] = time.monotonic()

    def end_request(self, connection: socket) -> None:
        """The answer is out."""
        with self._lock:
            self._busy.pop(connection, None)
            self._idle[connection] = None

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that goes away is no event; anything else is shown."""
        if not isinstance(sys.exc_info()[1], (ConnectionError, TimeoutError)):
            super().handle_error(request, client_address)


class LocalHub:
    """A running local Hub.

    ``large_files="regular"`` takes every file inside the commit, which works with every client; ``"lfs"`` asks for
    large files by git-LFS, which needs ``HF_HUB_DISABLE_XET=1`` at the client.

    >>> import tempfile
    >>> with LocalHub(Path(tempfile.mkdtemp())) as hub:
    ...     account = hub.store.accounts.ensure("me")
    ...     hub.url.startswith("http://127.0.0.1:"), account.token.startswith("oattn_local_")
    (True, True)
    """

    def __init__(
        self,
        folder: Path | str,
        port: int = 0,
        *,
        large_files: str = "regular",
        part_size: int = 64 * 2**20,
        verbose: bool = False,
        handler: type[Handler] = Handler,
    ) -> None:
        self.large_files = large_files
        self.part_size = part_size  # larger files come in parts
        self.verbose = verbose
        self.unknown_requests: list[str] = []  # the first ones: they show that a client has learned something new
        self._secret = secrets.token_bytes(32)
        self.store = HubStore(Path(folder))
        try:
            self._http = _Server((HOST, port), handler)
        except OSError:
            self.store.close()
            raise
        self._http.hub = self
        self.url = f"http://{HOST}:{self._http.server_port}"

    def __enter__(self) -> Self:
        Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._http.shutdown()
        self.close()

    def serve_forever(self) -> None:
        """Answer requests until interrupted."""
        try:
            self._http.serve_forever()
        finally:
            self.close()

    def close(self) -> None:
        """Give back the port and the folder."""
        self._http.server_close()
        self.store.close()

    def authenticate(self, header: str | None) -> Account | None:
        """Whose request it is; a token from elsewhere is refused, never stored or shown."""
        if header is None:
            return None
        account = self.store.accounts.by_token(header.removeprefix("Bearer ").strip())
        if account is None:
            raise Fault(401, "Invalid credentials in Authorization header")
        return account

    def sign(self, *parts: object) -> str:
        """A signature that makes an upload URL its own permission, since the client sends no token there."""
        message = "\n".join(map(str, parts)).encode()
        return hmac.new(self._secret, message, hashlib.sha256).hexdigest()

    def check_signature(self, signature: str, *parts: object) -> None:
        """Refuse an upload URL that this server did not hand out."""
        if not hmac.compare_digest(signature, self.sign(*parts)):
            raise Fault(403, "This upload address is not valid (any more)")

    def note_unknown(self, request: str) -> None:
        """Remember and show a request that no route knows."""
        if len(self.unknown_requests) < _MAX_NOTED:
            self.unknown_requests.append(request)
        print(f"oattn hub: unknown request {_one_line(request)}", file=sys.stderr)


def _encode(body: object) -> bytes:
    return body.encode("utf-8", "replace") if isinstance(body, str) else json.dumps(body).encode()


def _one_line(text: str) -> str:
    """The text without anything that could end a header or steer a terminal."""
    return "".join(letter if 32 <= ord(letter) < 127 else "?" for letter in text[:2000])


def _refusal(fault: Fault) -> Response:
    headers = {"X-Error-Message": _one_line(fault.message)}
    if fault.code:
        headers["X-Error-Code"] = fault.code
    return replace(Response(fault.status, fault.body), headers=headers)
