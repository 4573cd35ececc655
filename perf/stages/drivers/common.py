"""What drivers share: options, answers that may be malformed, WebSockets, and recordings."""

from __future__ import annotations

import asyncio
import io
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

import msgspec
import numpy as np
import soundfile
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from stages.protocols import RATE, EndpointError, Pcm, Recognizer, Text

_OPEN_S = 10.0
_CLOSE_S = 2.0
_MAX_MESSAGE = 16 * 1024 * 1024
_COMMON = ("name", "url", "key", "model", "voice")


@dataclass(frozen=True)
class EndpointOptions:
    """Where an endpoint is, and what is asked for there."""

    url: str = ""
    """Of the service; ``host:port`` where the protocol is gRPC."""
    key: str = field(default="", repr=False)
    """Credentials; empty: none are sent."""
    model: str = ""
    """Empty: the driver's default."""
    voice: str = ""
    """Empty: the driver's default."""
    extra: Mapping[str, str] = field(default_factory=dict)
    """Options of a single driver."""


def read_options(given: Mapping[str, str], extra: tuple[str, ...]) -> EndpointOptions:
    """Options from ``name=value`` pairs.

    Args:
        given: the pairs; ``key`` names the environment variable that has the key.
        extra: names that the driver has besides.

    Raises:
        EndpointError: an option is unknown, or the variable is not set.
    """
    known = (*_COMMON, *extra)
    if unknown := [name for name in given if name not in known]:
        raise EndpointError(f"unknown option {unknown[0]!r}; there are {', '.join(known)}")
    variable = given.get("key")
    key = os.environ.get(variable, "") if variable else ""
    if variable and not key:
        raise EndpointError(f"the environment variable {variable} is not set")
    url, chosen = given.get("url", "").rstrip("/"), {name: given[name] for name in extra if name in given}
    return EndpointOptions(url, key, given.get("model", ""), given.get("voice", ""), chosen)


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
        raise EndpointError("unreadable answer") from error


def text_of(value: object) -> str:
    """A text of an answer; raises TypeError."""
    if not isinstance(value, str):
        raise TypeError(f"{type(value).__name__} is no text")
    return value


@contextmanager
def socket_errors() -> Iterator[None]:
    """Turns failures of a WebSocket into :class:`EndpointError`."""
    try:
        yield
    except InvalidStatus as error:
        raise EndpointError(f"HTTP {error.response.status_code}") from error
    except ConnectionClosed as error:
        code = error.rcvd.code if error.rcvd else 1006
        raise EndpointError(f"closed with {code}") from error
    except (OSError, WebSocketException) as error:
        raise EndpointError("no connection") from error


@asynccontextmanager
async def open_socket(url: str, headers: Mapping[str, str]) -> AsyncIterator[ClientConnection]:
    """A WebSocket; ``http`` and ``https`` in ``url`` stand for ``ws`` and ``wss``."""
    with socket_errors():
        async with connect(
            "ws" + url.removeprefix("http") if url.startswith("http") else url,
            additional_headers=dict(headers),
            open_timeout=_OPEN_S,
            close_timeout=_CLOSE_S,
            max_size=_MAX_MESSAGE,
            compression=None,
        ) as socket:
            yield socket


def recording_recognizer(transcribe: Callable[[Pcm], Awaitable[str]]) -> Recognizer:
    """A recogniser that collects an utterance, and has it transcribed when it is over.

    Args:
        transcribe: samples to text; raises EndpointError.
    """

    @asynccontextmanager
    async def open_recording() -> AsyncIterator[_Recording]:
        yield _Recording(transcribe)

    return Recognizer(open_recording, streams=False)


class _Recording:
    def __init__(self, transcribe: Callable[[Pcm], Awaitable[str]]) -> None:
        self._transcribe = transcribe
        self._chunks: list[Pcm] = []
        self._ended = asyncio.Event()

    async def send(self, chunk: Pcm) -> None:
        self._chunks.append(chunk)

    async def end(self) -> None:
        self._ended.set()

    async def __aiter__(self) -> AsyncIterator[Text]:
        await self._ended.wait()
        yield Text(await self._transcribe(np.concatenate(self._chunks)), is_final=True)


def to_wav(samples: Pcm) -> bytes:
    """A WAV file of 16 kHz speech."""
    file = io.BytesIO()
    soundfile.write(file, samples, RATE, format="WAV", subtype="PCM_16")
    return file.getvalue()
