"""HTTP routes whose work takes a while, and ends as soon as the client disconnects."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Mapping
from contextlib import ExitStack, asynccontextmanager
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from parley.errors import ParleyError
from parley.timeouts import first_to_end
from parley_gateway.gateway import Gateway
from parley_gateway.model_limits import ModelLimiter
from parley_gateway.security.guard import until_revoked

ResultT = TypeVar("ResultT")
_log = logging.getLogger("parley.gateway")


async def while_connected(request: Request, work: Coroutine[Any, Any, ResultT]) -> ResultT:
    """The result of ``work``, which is cancelled if the client of a request with a read body leaves first.

    Raises:
        ClientDisconnect: the client has left.
        CredentialsRevokedError: the client's credentials are no longer accepted.
    """
    task = asyncio.ensure_future(work)
    async with _first_to_end(task, request.receive, request):
        if task.done():
            return task.result()
        raise ClientDisconnect


class StreamedAnswer(Response):
    """A body that is sent while it is produced, in ``first`` and ``rest``.

    A client that does not read for ``stall_s`` is disconnected. ``resources`` are released at the end. The
    length is not known, unless ``headers`` have it.
    """

    def __init__(
        self,
        first: bytes,
        rest: AsyncGenerator[bytes, None],
        *,
        media_type: str,
        stall_s: float,
        status: int = 200,
        headers: Mapping[str, str] | None = None,
        resources: ExitStack | None = None,
    ) -> None:
        super().__init__(None, status, headers, media_type)
        if "Content-Length" not in (headers or {}):
            del self.headers["content-length"]
        self._first = first
        self._rest = rest
        self._stall_s = stall_s
        self._resources = resources or ExitStack()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response, unless the client leaves."""
        sending = asyncio.ensure_future(self._send(send))
        with self._resources:
            try:
                async with _first_to_end(sending, receive, HTTPConnection(scope)):
                    if sending.done():
                        sending.result()
            except ParleyError as error:
                # The status is sent already: only an incomplete body can show the failure.
                _log.warning("a response broke off: %s", error.to_log(), extra=error.log_extra())
            except ClientDisconnect:
                _log.info("a response was not read")
            finally:
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


class StageRoute:
    """A route that uses a single stage of the agent."""

    def __init__(self, gateway: Gateway, limiter: ModelLimiter) -> None:
        self._gateway = gateway
        self._settings = gateway.settings.stages
        self._limiter = limiter

    async def _stream_response(
        self,
        request: Request,
        body: AsyncGenerator[bytes, None],
        *,
        media_type: str,
        headers: Mapping[str, str] | None = None,
        resources: ExitStack | None = None,
    ) -> Response:
        """A streamed response; a failure before its first part is still an HTTP status.

        Args:
            request: Its body was read.
            body: The response's body; closed at its end.
            media_type: Of the body.
            headers: Read when the first part exists, so that the body may set some before.
            resources: Used by the body; released at its end.

        Raises:
            ClientDisconnect: the client has left.
            ParleyError: the first part failed.
        """
        try:
            first = await while_connected(request, _first(body))
        except BaseException:
            with resources or ExitStack():
                await body.aclose()
            raise
        return StreamedAnswer(
            first,
            body,
            media_type=media_type,
            stall_s=self._settings.stall_s,
            headers=headers,
            resources=resources,
        )


async def _first(body: AsyncGenerator[bytes, None]) -> bytes:
    async for part in body:
        return part
    return b""


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


@asynccontextmanager
async def _first_to_end(
    task: asyncio.Future[Any], receive: Receive, connection: HTTPConnection
) -> AsyncIterator[None]:
    """Wait until ``task`` ends or its client leaves; raise if the client's credentials were revoked first.

    At the end ``task`` is cancelled.
    """
    async with first_to_end(task, _disconnected(receive), until_revoked(connection)) as (_, _, revoked):
        if revoked.done() and not task.done():
            revoked.result()
        yield
