"""Bodies of requests: how large, and how slow."""

from __future__ import annotations

import asyncio

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from parley.errors import ParleyError
from parley_gateway.errors import BodyTooSlowError, MessageTooLargeError
from parley_gateway.failures import answer
from parley_gateway.listening import LimitSettings

_UPLOADS = ("/v1/audio/", "/v1/listen")


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
        try:
            async with asyncio.timeout_at(self._deadline_s):
                message = await self._receive()
        except TimeoutError as error:
            raise BodyTooSlowError(f"the body did not come within {self._seconds:g} s") from error
        self._size += len(message.get("body", b""))
        if self._size > self._limit:
            raise self._too_large
        self._is_complete = not message.get("more_body", False)
        return message

    @property
    def _too_large(self) -> MessageTooLargeError:
        return MessageTooLargeError(f"the body has more than {self._limit} bytes")
