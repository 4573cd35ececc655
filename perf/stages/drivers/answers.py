"""What endpoints answer: it may be malformed, or have no end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import httpx2
import msgspec

from stages.protocols import EndpointError

MAX_BYTES = 32 * 1024 * 1024
"""Of one answer: eleven minutes of speech of 24 kHz."""
IDENTITY = {"Accept-Encoding": "identity"}
"""Header: a packed answer could be far larger than its bytes."""
_UNREADABLE = "unreadable answer"


@contextmanager
def readable() -> Iterator[None]:
    """Turns failures of its block, which only reads an answer, into :class:`EndpointError`."""
    try:
        yield
    except (
        ValueError,
        LookupError,
        TypeError,
        AttributeError,
        RecursionError,
        msgspec.MsgspecError,
    ) as error:
        raise EndpointError(_UNREADABLE) from error


def text_of(value: object) -> str:
    """A text of an answer; raises TypeError."""
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} is no text")
    return value


class AnswerSize:
    """The bytes of one answer so far."""

    def __init__(self) -> None:
        self._bytes = 0

    def add(self, received: str | bytes) -> None:
        """Count a message or a part; raises EndpointError if the answer is too large."""
        self._bytes += len(received) if isinstance(received, bytes) else len(received.encode())
        if self._bytes > MAX_BYTES:
            raise EndpointError("answer too large")


class BoundedTransport(httpx2.AsyncHTTPTransport):
    """HTTP whose answers are not packed, and raise EndpointError when they are too large."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """See :class:`httpx2.AsyncBaseTransport`."""
        response = await super().handle_async_request(request)
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _BoundedStream(response.stream)
        if response.headers.get("content-encoding", "identity") != "identity":
            await response.aclose()
            raise EndpointError(_UNREADABLE)
        return response


class _BoundedStream(httpx2.AsyncByteStream):
    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream
        self._size = AnswerSize()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._stream:
            self._size.add(part)
            yield part

    async def aclose(self) -> None:
        await self._stream.aclose()
