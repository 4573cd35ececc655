"""What every WebSocket API does the same way: refuse, read, and end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

from starlette.websockets import WebSocket

from parley.errors import ParleyError
from parley_gateway.closing import GOING_AWAY, HANGUP, Close, close_of
from parley_gateway.failures import answer
from parley_gateway.gateway import Gateway
from parley_gateway.security.admission import until_revoked
from parley_gateway.security.credentials import accepted_subprotocol
from parley_gateway.security.meter import Meter
from parley_gateway.writer import SocketWriter

_log = logging.getLogger("parley.gateway")
# What a call's own end may take before its API is closed from here (seconds).
_LAST_WORDS_S = 1.0


async def refuse(websocket: WebSocket, error: ParleyError, gateway: Gateway) -> None:
    """Answer a WebSocket's request, before it is accepted, with an HTTP error."""
    gateway.metrics.refused.labels(error.code).inc()
    await websocket.send_denial_response(answer(error))


async def accept(websocket: WebSocket, subprotocol: str) -> None:
    """Accept a WebSocket with ``subprotocol`` if the client offers it, else with one of the gateway's own."""
    offered = websocket.scope.get("subprotocols", [])
    await websocket.accept(subprotocol if subprotocol in offered else accepted_subprotocol(websocket))


async def messages(websocket: WebSocket, meter: Meter, gateway: Gateway) -> AsyncIterator[str | bytes]:
    """What the client sends, until it has gone.

    Nothing is read ahead: while a message is being dealt with, the client's next one waits in the
    network, so that it cannot send faster than it is heard.

    Raises:
        MessageTooLargeError: a message is too large.
        RateLimitedError: there are too many.
    """
    texts, binaries = (gateway.metrics.received.labels(kind) for kind in ("text", "binary"))
    while (event := await websocket.receive())["type"] == "websocket.receive":
        text, data = event.get("text"), event.get("bytes")
        if text is not None:
            meter.message(len(text.encode()))
            texts.inc()
            yield text
        elif data is not None:
            meter.message(len(data))
            binaries.inc()
            yield data


async def run_socket(
    writer: SocketWriter,
    gateway: Gateway,
    *loops: Coroutine[Any, Any, None],
    on_error: Callable[[ParleyError], None] | None = None,
) -> Close:
    """Run an API's loops beside its writer until the first of them ends; then end the others and close.

    Args:
        writer: The API's; it runs here.
        gateway: Knows whether the process shuts down.
        *loops: From the client, and to it.
        on_error: Tells the client of the failure that ended a loop, in the API's own words.

    Returns:
        How the WebSocket was closed: as the API has said with ``writer.close``, by the failure that
        ended a loop, with 1008 if what it was opened with is no longer accepted, with 1001 if the process
        shuts down, else with 1000.
    """
    parts = (writer.run(), *loops, until_revoked(writer.connection), _until_gone_away(gateway))
    tasks = [asyncio.ensure_future(part) for part in parts]
    with gateway.calls.attend():
        await _run(tasks, writer, gateway, on_error)
    assert writer.closing is not None
    return writer.closing


async def until_going_away(gateway: Gateway) -> None:
    """Return when the process ends what is still open."""
    await gateway.calls.going_away.wait()


async def _until_gone_away(gateway: Gateway) -> None:
    """Until the process shuts down and whatever runs has had its chance to end by itself."""
    await until_going_away(gateway)
    await asyncio.sleep(_LAST_WORDS_S)


async def _run(
    tasks: list[asyncio.Task[None]],
    writer: SocketWriter,
    gateway: Gateway,
    on_error: Callable[[ParleyError], None] | None,
) -> None:
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks[1:]:
            task.cancel()
        results = await asyncio.gather(*tasks[1:], return_exceptions=True)
        failure = next((result for result in results if isinstance(result, Exception)), None)
        if failure is not None:
            error = _known(failure)
            gateway.metrics.lost.labels(error.code).inc()
            if on_error is not None:
                on_error(error)
            writer.close(*close_of(error))
        writer.close(*(GOING_AWAY if gateway.calls.going_away.is_set() else HANGUP))
        await asyncio.wait(tasks[:1], timeout=gateway.settings.writer.stall_s)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _known(failure: Exception) -> ParleyError:
    if isinstance(failure, ParleyError):
        return failure
    _log.error("a connection failed", exc_info=failure)
    return ParleyError("the gateway failed; its log says why")
