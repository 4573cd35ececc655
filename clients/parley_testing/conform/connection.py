"""A server under check: its connections, what it sends, and what is said to it."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias
from urllib.parse import urlencode

import httpx2 as httpx
import numpy as np
import soundfile
import soxr
from numpy.typing import NDArray
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.typing import Subprotocol

Event: TypeAlias = dict[str, Any]
Query: TypeAlias = Mapping[str, str | int | float]
Samples: TypeAlias = NDArray[np.int16]
RATE = 16_000
"""Of the speech that a check says (hertz)."""
_CHUNK_MS = 40
_MAX_MESSAGE_BYTES = 16 * 1024 * 1024
_KEPT = 12
"""Names of the newest events in the text of a failure."""
_LOUD = 300
"""Of 32,767: speech has peaks above it."""
_LEAST_AUDIO_S = 0.1


class FailedError(Exception):
    """The server did, or left out, something against the protocol."""


class RefusedByServerError(FailedError):
    """The server answered with an error of the protocol instead; ``status`` is that of HTTP, or 0."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message)
        self.status = status


def expect(condition: object, problem: str) -> None:
    """Raise FailedError with the problem, unless the condition is true."""
    if not condition:
        raise FailedError(problem)


def expect_speech(audio: bytes, rate: int, encoding: Literal["linear16", "mulaw"] = "linear16") -> None:
    """Raise FailedError unless raw audio is longer than 0.1 s and not silent."""
    if encoding == "mulaw":
        samples, _ = soundfile.read(
            io.BytesIO(audio), dtype="int16", samplerate=rate, channels=1, format="RAW", subtype="ULAW"
        )
    else:
        samples = np.frombuffer(audio[: len(audio) // 2 * 2], "<i2")
    expect(len(samples) >= rate * _LEAST_AUDIO_S, f"{len(samples)} samples of audio came")
    expect(np.abs(samples.astype(int)).max() > _LOUD, "the audio is silent")


def to_mulaw(samples: Samples, rate: int = 8_000) -> bytes:
    """G.711 of speech in :data:`RATE`."""
    file = io.BytesIO()
    soundfile.write(file, resample(samples, rate), rate, format="RAW", subtype="ULAW")
    return file.getvalue()


def resample(samples: Samples, rate: int) -> Samples:
    """Speech in another rate."""
    return samples if rate == RATE else soxr.resample(samples, RATE, rate)


def to_base64(audio: bytes | Samples) -> str:
    """Audio in a JSON message; samples are 16 bit, little endian."""
    data = audio if isinstance(audio, bytes) else audio.astype("<i2").tobytes()
    return base64.b64encode(data).decode()


@dataclass
class CheckedSocket:
    """One WebSocket."""

    socket: ClientConnection
    within_s: float
    name_of: Callable[[Event], str]
    """The name of an event; those with the name ``error`` are errors of the protocol."""
    events: list[Event] = field(default_factory=list)
    """All that came."""
    audio: bytearray = field(default_factory=bytearray)
    """Of binary messages."""
    _read: int = 0

    async def send(self, event: Event) -> None:
        """Send a JSON message."""
        await self.socket.send(json.dumps(event))

    async def next(self) -> Event:
        """The next event.

        Raises:
            FailedError: none came in time, or the connection ended.
        """
        if self._read == len(self.events):
            await self._receive()
        self._read += 1
        return self.events[self._read - 1]

    async def until(self, *names: str, fits: Callable[[Event], object] = lambda _: True) -> Event:
        """The next event of one of these names that fits; those before it are skipped.

        Raises:
            RefusedByServerError: an error came first.
            FailedError: it did not come in time, or the connection ended.
        """
        try:
            async with asyncio.timeout(self.within_s):
                while True:
                    event = await self.next()
                    if self.name_of(event) in names and fits(event):
                        return event
                    if self.name_of(event) == "error":
                        raise RefusedByServerError(describe_error(event))
        except TimeoutError as error:
            raise FailedError(
                f"no {' or '.join(names)} within {self.within_s:g} s; {self._said()}"
            ) from error

    async def closed(self) -> int:
        """The close code, once the server has closed the connection; events of until then are kept."""
        with suppress(FailedError):
            async with asyncio.timeout(self.within_s):
                while True:
                    await self._receive()
        await asyncio.sleep(0)
        expect(self.socket.close_code is not None, f"the connection stays open; {self._said()}")
        return self.socket.close_code or 0

    def named(self, name: str) -> list[Event]:
        """All events of a name so far."""
        return [event for event in self.events if self.name_of(event) == name]

    @asynccontextmanager
    async def speaking(
        self, send: Callable[[Samples], Awaitable[None]], speech: Samples | None
    ) -> AsyncIterator[None]:
        """Send speech at its pace, and silence after it, while the block runs."""
        task = asyncio.create_task(_speak(send, np.zeros(0, np.int16) if speech is None else speech))
        try:
            yield
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError, ConnectionClosed):
                await task

    async def _receive(self) -> None:
        try:
            async with asyncio.timeout(self.within_s):
                while isinstance(message := await self.socket.recv(), bytes):
                    self.audio += message
        except TimeoutError as error:
            raise FailedError(f"nothing more within {self.within_s:g} s; {self._said()}") from error
        except ConnectionClosed as error:
            raise FailedError(f"the connection ended ({error}); {self._said()}") from error
        event = json.loads(message)
        expect(isinstance(event, dict), "a message is no JSON object")
        self.events.append(event)

    def _said(self) -> str:
        came = ", ".join(self.name_of(event) for event in self.events[-_KEPT:])
        return f"the last events: {came or 'none'}"


async def _speak(send: Callable[[Samples], Awaitable[None]], speech: Samples) -> None:
    step = RATE * _CHUNK_MS // 1000
    due_s = asyncio.get_running_loop().time()
    at = 0
    while True:
        piece = speech[at : at + step]
        await send(np.concatenate([piece, np.zeros(step - len(piece), np.int16)]))
        at += step
        due_s += _CHUNK_MS / 1000
        await asyncio.sleep(max(0.0, due_s - asyncio.get_running_loop().time()))


def describe_error(event: Event) -> str:
    """Code and text of an error, as the protocols have them."""
    error = event.get("error")
    said = error if isinstance(error, Mapping) else event
    text = said.get("message") or said.get("description") or said.get("err_msg") or json.dumps(said)
    return ": ".join(str(part) for part in (said.get("code") or said.get("err_code"), text) if part)


@dataclass(frozen=True)
class Target:
    """Which server is checked, and with what."""

    url: str
    """``https://host:port``; for Twilio that of the webhook, or ``wss://host/path`` of the media stream."""
    speech: Samples
    """A question, in :data:`RATE`."""
    key: str = ""
    """API key; for Twilio the auth token."""
    model: str = ""
    public_url: str = ""
    """Of a server that Twilio calls at another address: what its signatures begin with."""
    account: str = "AC1"
    """Of Twilio."""
    within_s: float = 30.0
    """How long each event may take."""

    @property
    def question(self) -> Samples:
        """The speech, and a second of silence."""
        return np.concatenate([self.speech, np.zeros(RATE, np.int16)])

    def authorize(self, scheme: str = "Bearer") -> dict[str, str]:
        """The header with the key, if there is one."""
        return {"Authorization": f"{scheme} {self.key}"} if self.key else {}

    @asynccontextmanager
    async def connect(
        self,
        path: str,
        query: Query | None = None,
        *,
        name_of: Callable[[Event], str] = lambda event: str(event.get("type", "")).lower(),
        headers: Mapping[str, str] | None = None,
        subprotocol: str = "",
    ) -> AsyncIterator[CheckedSocket]:
        """A WebSocket at a path, or at another address.

        Raises:
            RefusedByServerError: the server answered with an HTTP status.
        """
        url = path if "://" in path else self.url.rstrip("/") + path
        url = ("ws" + url.removeprefix("http") if url.startswith("http") else url) + (
            f"?{urlencode(query)}" if query else ""
        )
        with _failures():
            async with connect(
                url,
                additional_headers=self.authorize() if headers is None else headers,
                subprotocols=[Subprotocol(subprotocol)] if subprotocol else None,
                max_size=_MAX_MESSAGE_BYTES,
                open_timeout=self.within_s,
                close_timeout=1.0,
            ) as socket:
                yield CheckedSocket(socket, self.within_s, name_of)

    async def request(
        self, method: str, path: str, *, headers: Mapping[str, str] | None = None, **options: Any
    ) -> httpx.Response:
        """An HTTP request; raises RefusedByServerError where its status is no success."""
        with _failures():
            async with httpx.AsyncClient(timeout=self.within_s) as client:
                answer = await client.request(
                    method,
                    self.url.rstrip("/") + path,
                    headers=dict(self.authorize() if headers is None else headers),
                    **options,
                )
        if not answer.is_success:
            raise RefusedByServerError(f"HTTP {answer.status_code}: {answer.text[:200]}", answer.status_code)
        return answer


@contextmanager
def _failures() -> Iterator[None]:
    """Turns failures of a connection into :class:`FailedError`."""
    try:
        yield
    except InvalidStatus as error:
        body = (error.response.body or b"").decode(errors="replace")[:200]
        raise RefusedByServerError(
            f"HTTP {error.response.status_code}: {body}", error.response.status_code
        ) from error
    except (OSError, WebSocketException, httpx.HTTPError) as error:
        raise FailedError(f"{type(error).__name__}: {error}") from error
