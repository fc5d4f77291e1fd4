"""The body of a request, whether it comes with a length or in chunks; never longer than it may be."""

from __future__ import annotations

import re
from email.message import Message
from io import BufferedIOBase

from oattn_hub.local_hub.faults import Fault

MAX_BODY = 50 * 2**30  # what the Hub takes as one file
_MAX_DRAIN = 16 * 2**20
_MAX_LINE = 1024
_MAX_TRAILERS = 100
_LENGTH = re.compile(r"[0-9]{1,15}", re.ASCII)
_CHUNK_LENGTH = re.compile(rb"([0-9A-Fa-f]{1,12})[ \t]*(?:;[^\r\n]*)?\r?\n")


class RequestBody:
    """Reads exactly one request's bytes, so that the next request on the connection starts where it should."""

    def __init__(self, stream: BufferedIOBase, headers: Message) -> None:
        self._stream = stream
        self._chunked = _is_chunked(headers)
        self._left = 0 if self._chunked else _length(headers)  # of the body, or of the present chunk
        self._ended = not self._chunked
        self._taken = 0
        if self._left > MAX_BODY:
            raise _too_large()

    @property
    def length(self) -> int:
        """How many bytes are known to be on their way."""
        return self._left

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
        self._taken += len(data)
        if self._chunked and self._left == 0:
            self._stream.readline(_MAX_LINE)  # each chunk ends with a line break of its own
        return data

    def drain(self) -> bool:
        """Throw away what the route did not read; False if that would be too much, and the connection has to end."""
        thrown = 0
        while thrown + self._left <= _MAX_DRAIN:
            data = self.read(1 << 20)
            if not data:
                return True
            thrown += len(data)
        return False

    def _next_chunk(self) -> None:
        line = self._stream.readline(_MAX_LINE)
        match = _CHUNK_LENGTH.fullmatch(line)
        if match is None:
            raise ConnectionError(f"the client sent no chunk but {line[:20]!r}, or went away")
        self._left = int(match[1], 16)
        if self._taken + self._left > MAX_BODY:
            self._ended, self._left = True, 0
            raise _too_large()
        if self._left == 0:
            self._ended = True
            self._skip_trailers()

    def _skip_trailers(self) -> None:
        for _ in range(_MAX_TRAILERS):
            if not self._stream.readline(_MAX_LINE).strip():
                return
        raise ConnectionError("the client sent trailers without end")


def _is_chunked(headers: Message) -> bool:
    encodings = headers.get_all("Transfer-Encoding", [])
    if not encodings:
        return False
    if [value.strip().lower() for value in encodings] != ["chunked"] or "Content-Length" in headers:
        raise Fault(400, "The request's Transfer-Encoding is not plain chunked, or comes with a Content-Length")
    return True


def _length(headers: Message) -> int:
    values = set(headers.get_all("Content-Length", ["0"]))
    value = values.pop()
    if values or not _LENGTH.fullmatch(value):
        raise Fault(400, f"Content-Length {value[:20]!r} is not one number of bytes")
    return int(value)


def _too_large() -> Fault:
    return Fault(413, f"A request may have {MAX_BODY:,} bytes, and this one has more")
