"""The body of a request, whether it comes with a length or in chunks."""

from __future__ import annotations

from email.message import Message
from io import BufferedIOBase

from oattn_hub.local_hub.faults import Fault


class RequestBody:
    """Reads exactly one request's bytes, so that the next request on the connection starts where it should."""

    def __init__(self, stream: BufferedIOBase, headers: Message) -> None:
        self._stream = stream
        self._chunked = headers.get("Transfer-Encoding", "").lower() == "chunked"
        self._left = 0 if self._chunked else _length(headers)  # of the body, or of the present chunk
        self._ended = not self._chunked

    def read(self, size: int) -> bytes:
        """Up to ``size`` bytes; nothing at the end. A connection that breaks off raises."""
        if self._left == 0 and not self._ended:
            self._next_chunk()
        if self._left == 0:
            return b""
        data = self._stream.read(min(size, self._left))
        if not data:
            raise ConnectionError("the client went away in the middle of its request")
        self._left -= len(data)
        if self._chunked and self._left == 0:
            self._stream.readline()  # each chunk ends with a line break of its own
        return data

    def drain(self) -> None:
        """Throw away what the route did not read."""
        while self.read(1 << 20):
            pass

    def _next_chunk(self) -> None:
        try:
            self._left = int(self._stream.readline().split(b";")[0], 16)
        except ValueError as error:
            raise ConnectionError("the client went away in the middle of its request") from error
        if self._left == 0:
            self._ended = True
            while self._stream.readline().strip():  # trailers
                pass


def _length(headers: Message) -> int:
    value = headers.get("Content-Length", "0")
    if not value.isdecimal():
        raise Fault(400, f"Content-Length {value!r} is not a number")
    return int(value)
