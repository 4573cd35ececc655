"""Notices over a model's own connection that its server stops.

A stopping Triton 2.51 refuses requests in process at once, and closes its gRPC endpoint last. Triton 2.71
closes the endpoint first: no new request comes in, responses of open streams still go out, and requests in
process are served until the streams have ended or the exit timeout is over.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from parley.errors import ModelUnavailableError, ParleyError, ShuttingDownError

_ANSWER_S = 5.0
_INTERVAL_S = 0.5
_AGAIN_S = 0.1
_REFUSALS = 3
"""In a row: a connection may be renewed."""
_UNANSWERED = 100
"""After so many refusals before the first answer the address is taken for wrong."""
_log = logging.getLogger(__name__)


async def wait_for_closed_endpoint(
    read_version: Callable[[float], Awaitable[str]],
    on_version: Callable[[str], None],
    has_served: Callable[[], bool],
    interval_s: float = _INTERVAL_S,
) -> None:
    """Return when the server has closed its gRPC endpoint, after it had answered there.

    Args:
        read_version: asks the endpoint for the server's version, within a number of seconds. It raises
            ``ModelUnavailableError`` or ``ShuttingDownError`` where the endpoint is closed.
        on_version: called once, with the first answer.
        has_served: whether the model has had a request, so that the endpoint is certainly open.
        interval_s: between two requests.
    """
    answered, refusals = False, 0
    while not (answered and refusals >= _REFUSALS):
        # Soon after the endpoint has opened: one that closes before the first answer is not noticed here.
        await asyncio.sleep(_AGAIN_S if refusals or not answered else interval_s)
        try:
            version = await read_version(_ANSWER_S)
        except (ModelUnavailableError, ShuttingDownError) as error:
            if answered or has_served():
                refusals += 1
            if not answered and refusals == _UNANSWERED:
                _log.error("models with streams cannot be called: %s. Set PARLEY_GRPC_URL", error)
        except ParleyError as error:
            _log.warning("the server did not answer at its gRPC endpoint: %s", error)
        else:
            refusals = 0
            if not answered:
                answered = True
                _log.info("the server is Triton %s", version)
                on_version(version)
    _log.info("the server is stopping: its gRPC endpoint is closed")
