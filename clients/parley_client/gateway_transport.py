"""The network under a call through a gateway: a session by HTTP, and its stream by WebSocket.

It needs the packages of the extra ``gateway``, besides those of ``client``.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import httpx2
import msgspec
import numpy as np
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException
from websockets.typing import Subprotocol

from parley import protocol
from parley.errors import InferenceError, ParleyError, from_wire
from parley_client.errors import ConnectError, NoServerError
from parley_client.server_list import ServerList
from parley_client.transport import Frame, ServerReply

_SUBPROTOCOL = Subprotocol("parley.v1")
_MAX_MESSAGE_BYTES = 16 * 1024 * 1024
_CLOSE_S = 2.0
_PING_S = 5.0
"""Between two pings, and the longest wait for the answer to one; then the connection is lost."""
_WAITING = 512
"""Replies that were not received yet; then the WebSocket is not read."""
_SECONDS = re.compile(r"[0-9]{1,9}")
_HANG_UP = msgspec.json.encode(protocol.Control(action="hangup"))


class GatewayRefusalError(ConnectError):
    """The gateway refused a session for a reason that no server has, such as ``no_server_ready``."""

    def __init__(self, message: str, code: str, *, retryable: bool = True) -> None:
        super().__init__(message)
        # Of one error, where other classes have one for all.
        self.code = code  # type: ignore[misc]
        self.retryable = retryable  # type: ignore[misc]


@dataclass
class GatewaySession:
    """The session of one call, which may go from one gateway to the next."""

    token: str | None = None
    """Opens the session at another gateway, once; None: no gateway has said one."""


def list_gateways(urls: Sequence[str], key: str = "", *, tls: ssl.SSLContext | None = None) -> ServerList:
    """The gateways of one call, each under its own name or behind a balancer.

    Args:
        urls: ``https://host:port``, at least one.
        key: API key; empty: none.
        tls: which certificates are believed, at ``https://``; None: those of the web's authorities.
    """
    session = GatewaySession()
    return ServerList(urls, lambda url: GatewayTransport(url, key, tls=tls, session=session), names_many=True)


class GatewayTransport:
    """Opens calls at a gateway.

    Args:
        url: of the gateway, ``http://host:port``.
        key: API key; empty: none.
        tls: which certificates are believed, at ``https://``; None: those of the web's authorities.
        session: What the streams of one call share; None: each has a session of its own.
    """

    def __init__(
        self,
        url: str,
        key: str = "",
        *,
        tls: ssl.SSLContext | None = None,
        session: GatewaySession | None = None,
    ) -> None:
        self._url = url.rstrip("/")
        self._tls = tls
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._session = session
        self._streams: list[GatewayStream] = []

    async def open(self, call_id: str, timeout_s: float) -> GatewayStream:  # noqa: ARG002 - the gateway has own ids
        """A stream; it connects with the first frame, which says what session it is."""
        stream = GatewayStream(
            self._url, self._headers, timeout_s, self._tls, self._session or GatewaySession()
        )
        self._streams.append(stream)
        return stream

    async def close(self) -> None:
        """Drop the connections of all streams, and wait for their ends."""
        while self._streams:
            await self._streams.pop().close()


class GatewayStream:
    """One session of the gateway.

    A gateway acknowledges no request. That it has vanished is noticed by the pings of the WebSocket.
    """

    acknowledges = False

    def __init__(
        self,
        url: str,
        headers: dict[str, str],
        timeout_s: float,
        tls: ssl.SSLContext | None,
        session: GatewaySession,
    ) -> None:
        self._url = url
        self._tls = tls
        self._headers = headers
        self._timeout_s = timeout_s
        self._session = session
        self._socket: ClientConnection | None = None
        self._replies: asyncio.Queue[ServerReply | ParleyError | None] = asyncio.Queue(_WAITING)
        self._reader: asyncio.Task[None] | None = None

    async def send(self, frame: Frame) -> None:
        """Send a frame; the first one opens the session.

        Raises:
            ConnectError: the gateway cannot be reached.
            ParleyError: it refused the session, or the connection is gone.
        """
        if frame.start:
            await self._open(frame.message)
            return
        assert self._socket is not None
        try:
            if frame.audio:
                await self._socket.send(frame.audio)
            if frame.goes_on:
                await self._socket.close()  # without a farewell: the session is not over
            elif frame.message or frame.end:
                await self._socket.send((frame.message or _HANG_UP).decode())
        except ConnectionClosed as error:
            if not frame.end:  # a session that is over needs no end
                raise InferenceError("the stream has ended") from error

    async def finish(self) -> None:
        """Do nothing: the gateway itself closes the WebSocket, after the last event."""

    async def receive(self) -> ServerReply | None:
        """The next reply; None after the last.

        Raises:
            ParleyError: the connection broke.
        """
        reply = await self._replies.get()
        if isinstance(reply, ParleyError):
            raise reply
        return reply

    def cancel(self) -> None:
        """Drop the connection."""
        if self._reader is not None:
            self._reader.cancel()

    async def close(self) -> None:
        """Drop the connection, and wait for its end."""
        self.cancel()
        if self._reader is not None:
            await asyncio.gather(self._reader, return_exceptions=True)

    async def _open(self, start: bytes) -> None:
        body = msgspec.json.decode(start)
        for name in ("type", "input_sample_rate"):
            body.pop(name, None)
        if (resume := body.get("resume")) is not None:
            # The gateways keep the rest of it.
            kept = {name: resume[name] for name in ("audio_ms", "progress") if name in resume}
            body = {"checkpoints": True, "resume": {"token": self._session.token or "", **kept}}
        try:
            async with asyncio.timeout(self._timeout_s):
                url = await self._create(body)
                self._socket = await connect(
                    url,
                    additional_headers=self._headers,
                    subprotocols=[_SUBPROTOCOL],
                    max_size=_MAX_MESSAGE_BYTES,
                    close_timeout=_CLOSE_S,
                    ping_interval=_PING_S,
                    ping_timeout=_PING_S,
                    compression=None,
                    proxy=None,
                    ssl=self._tls,
                )
        except TimeoutError as error:
            raise ConnectError(f"{self._url} did not open a session within {self._timeout_s:g} s") from error
        except InvalidStatus as error:
            response = error.response
            raise _refusal(response.body, response.status_code, response.headers) from error
        except (OSError, WebSocketException) as error:
            raise NoServerError(f"no gateway answers at {self._url}") from error
        self._reader = asyncio.create_task(self._read(self._socket), name="gateway-stream")

    async def _create(self, body: dict[str, Any]) -> str:
        """Create the session; returns the address of its stream."""
        # A gateway is reached directly: proxies of the environment are for the public network.
        async with httpx2.AsyncClient(
            headers=self._headers, timeout=self._timeout_s, trust_env=False, verify=self._tls or True
        ) as client:
            try:
                answer = await client.post(f"{self._url}/v1/sessions", json=body)
            except httpx2.HTTPError as error:
                raise NoServerError(f"no gateway answers at {self._url}") from error
        if not answer.is_success:
            raise _refusal(answer.content, answer.status_code, answer.headers)
        try:
            url = str(answer.json()["stream_url"])
        except (ValueError, KeyError, TypeError) as error:
            raise ConnectError(f"{self._url} answers as no gateway does") from error
        if self._url.startswith("https://") and url.startswith("ws://"):
            # The gateway does not know of a proxy that speaks TLS for it; key and audio still need it.
            url = f"wss://{url.removeprefix('ws://')}"
        return url

    async def _read(self, socket: ClientConnection) -> None:
        """Pass the gateway's events on to :meth:`receive`, and close the connection at the end.

        The last thing passed on is None where the gateway has closed the connection in order, and otherwise
        the error that ended it.
        """
        audio: ServerReply | None = None  # its samples are the next message
        try:
            async for message in socket:
                if isinstance(message, bytes):
                    if audio is not None:
                        await self._replies.put(replace(audio, audio=np.frombuffer(message, "<i2")))
                    audio = None
                    continue
                reply = ServerReply(event=message.encode())
                event = msgspec.json.decode(message)
                if event["type"] == "connected":
                    self._session.token = event.get("resumption_token")
                if event["type"] == "audio" and event["samples"]:
                    audio = reply
                elif event["type"] != "state":  # the gateway's own name for what no caller needs
                    await self._replies.put(reply)
        except ConnectionClosed as error:
            code = error.rcvd.code if error.rcvd else 1006
            await self._replies.put(InferenceError(f"the gateway closed the connection with {code}"))
        except Exception as error:  # noqa: BLE001 - the receiver gets it
            failure = InferenceError(f"a message of the gateway cannot be read: {error!r}")
            failure.__cause__ = error
            await self._replies.put(failure)
        else:
            await self._replies.put(None)
        finally:
            await socket.close()


def _refusal(body: bytes | bytearray | None, status: int, headers: Mapping[str, str]) -> ParleyError:
    """Read the error with which the gateway refused a session.

    Its code has a class in :mod:`parley.errors`, or is one of the gateway's own. An answer that no gateway
    gives is a :class:`ConnectError` with the HTTP status.
    """
    try:
        content = msgspec.json.decode(body or b"")["error"]
        code, message = str(content["code"]), str(content["message"])
        retryable = bool(content["retryable"])
    except (msgspec.MsgspecError, KeyError, TypeError):
        return ConnectError(f"the gateway answered with HTTP {status}")
    error = from_wire(f"{code}: {message}")
    if error.code != code:
        error = GatewayRefusalError(message, code, retryable=retryable)
    wait = headers.get("Retry-After", "")
    if _SECONDS.fullmatch(wait):
        error.retry_after_s = float(wait)
    return error
