"""Bodies of requests: how large, and how slow."""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from parley.errors import ParleyError
from parley_gateway.errors import BodyTooSlowError, MessageTooLargeError
from parley_gateway.failures import answer
from parley_gateway.listening import LimitSettings

_UPLOADS = ("/v1/audio/", "/v1/listen")
MAX_SMALL_BODY = 4_096
"""Bytes; no more is read of a request before it is known who sends it."""


async def read_small_body(request: Request) -> bytes:
    """The body of a request that has at most :data:`MAX_SMALL_BODY` bytes.

    Raises:
        MessageTooLargeError: it has more; no more than these were kept.
    """
    announced = request.headers.get("content-length", "")
    body = b""
    if not (announced.isdecimal() and int(announced) > MAX_SMALL_BODY):
        async for piece in request.stream():
            body += piece
            if len(body) > MAX_SMALL_BODY:
                break
        else:
            return body
    raise MessageTooLargeError(f"the body has more than {MAX_SMALL_BODY} bytes")


class BodyLimits:
    """ASGI middleware: answers 413 to bodies that are too large and 408 to those that do not come.

    Args:
        app: What is inside.
        limits: Bytes and seconds.
    """

    def __init__(self, app: ASGIApp, limits: LimitSettings) -> None:
        self._app = app
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        body = _Body(receive, self._limits, is_upload=scope["path"].startswith(_UPLOADS))
        try:
            body.check_announced(Headers(scope=scope).get("content-length", ""))
        except ParleyError as error:
            await answer(error)(scope, receive, send)
            return
        await self._app(scope, body.receive, send)


class _Body:
    """One request's body as it comes."""

    def __init__(self, receive: Receive, limits: LimitSettings, *, is_upload: bool) -> None:
        self._receive = receive
        self._limit = limits.upload_bytes if is_upload else limits.body_bytes
        self._seconds = limits.body_s
        self._stall_s = limits.body_stall_s
        self._size = 0
        self._deadline_s = asyncio.get_running_loop().time() + limits.body_s
        self._is_complete = False

    def check_announced(self, length: str) -> None:
        if length.isdecimal() and int(length) > self._limit:
            raise self._too_large

    async def receive(self) -> Message:
        """What the app reads; after the body it only waits for the client to leave."""
        if self._is_complete:
            return await self._receive()
        stalled_s = asyncio.get_running_loop().time() + self._stall_s
        try:
            async with asyncio.timeout_at(min(self._deadline_s, stalled_s)):
                message = await self._receive()
        except TimeoutError as error:
            why = f"nothing of it came for {self._stall_s:g} s"
            if self._deadline_s <= stalled_s:
                why = f"it did not come within {self._seconds:g} s"
            raise BodyTooSlowError(f"the body is too slow: {why}") from error
        self._size += len(message.get("body", b""))
        if self._size > self._limit:
            raise self._too_large
        self._is_complete = not message.get("more_body", False)
        return message

    @property
    def _too_large(self) -> MessageTooLargeError:
        return MessageTooLargeError(f"the body has more than {self._limit} bytes")
