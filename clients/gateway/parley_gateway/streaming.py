"""HTTP answers that take a while: the work for a client that has gone ends at once."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Coroutine, Mapping
from contextlib import ExitStack
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from parley.errors import ParleyError
from parley_gateway.security.admission import until_revoked

ResultT = TypeVar("ResultT")
_log = logging.getLogger("parley.gateway")


async def while_connected(request: Request, work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """The result of ``work``, which is cancelled if the client leaves first, or may not stay.

    Args:
        request: whose body was read.
        work: what the client waits for.

    Raises:
        ClientDisconnect: the client has left.
        CredentialsRevokedError: what it was let in with is no longer accepted.
    """
    task = asyncio.ensure_future(work)
    gone = asyncio.ensure_future(_disconnected(request.receive))
    revoked = asyncio.ensure_future(until_revoked(request))
    try:
        await asyncio.wait([task, gone, revoked], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        if revoked.done():
            revoked.result()
        raise ClientDisconnect
    finally:
        await _end(task, gone, revoked)


class StreamedAnswer(Response):
    """A body that is sent while it is being made; it is closed when the client leaves.

    Args:
        first: the body's beginning.
        rest: what follows.
        media_type: of the body.
        stall_s: a client that does not read for so long is gone (seconds).
        headers: more of them.
        held: what the body uses; given back at its end.
    """

    def __init__(
        self,
        first: bytes,
        rest: AsyncGenerator[bytes, None],
        *,
        media_type: str,
        stall_s: float,
        headers: Mapping[str, str] | None = None,
        held: ExitStack | None = None,
    ) -> None:
        super().__init__(None, 200, {"Cache-Control": "no-store", **(headers or {})}, media_type)
        del self.headers["content-length"]
        self._first = first
        self._rest = rest
        self._stall_s = stall_s
        self._held = held or ExitStack()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it, unless the client leaves."""
        sending = asyncio.ensure_future(self._send(send))
        gone = asyncio.ensure_future(_disconnected(receive))
        revoked = asyncio.ensure_future(until_revoked(HTTPConnection(scope)))
        try:
            await asyncio.wait([sending, gone, revoked], return_when=asyncio.FIRST_COMPLETED)
            for ended in (sending, revoked):
                if ended.done():
                    ended.result()
        except ParleyError as error:
            # The status is sent: that the body is not complete is all that can still be told.
            _log.warning("an answer broke off: %s", error.to_log())
        except ClientDisconnect:
            _log.info("an answer was not read")
        finally:
            with self._held:
                await _end(sending, gone, revoked)
                await self._rest.aclose()

    async def _send(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await self._send_part(send, self._first, more=True)
        async for part in self._rest:
            await self._send_part(send, part, more=True)
        await self._send_part(send, b"", more=False)

    async def _send_part(self, send: Send, part: bytes, *, more: bool) -> None:
        try:
            async with asyncio.timeout(self._stall_s):
                await send({"type": "http.response.body", "body": part, "more_body": more})
        except TimeoutError as error:
            raise ClientDisconnect from error


async def stream(
    request: Request,
    body: AsyncGenerator[bytes, None],
    *,
    media_type: str,
    stall_s: float,
    headers: Mapping[str, str] | None = None,
    held: ExitStack | None = None,
) -> Response:
    """An answer whose failure is still an HTTP status until its first part is there.

    Args:
        request: whose body was read.
        body: of the answer, as it is made.
        media_type: of the body.
        stall_s: a client that does not read for so long is gone (seconds).
        headers: more of them; read when the first part is there, so that the body may set some before.
        held: what the body uses; given back when the answer is over.

    Raises:
        ClientDisconnect: the client has left.
        ParleyError: what making the first part failed with.
    """
    try:
        first = await while_connected(request, _first(body))
    except BaseException:
        with held or ExitStack():
            await body.aclose()
        raise
    return StreamedAnswer(first, body, media_type=media_type, stall_s=stall_s, headers=headers, held=held)


async def _first(body: AsyncGenerator[bytes, None]) -> bytes:
    async for part in body:
        return part
    return b""


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _end(*tasks: asyncio.Future[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
