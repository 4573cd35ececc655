"""What a stream of audio makes of its model's failures."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from parley.asr.messages import AsrReply
from parley.errors import OverloadedError, ParleyError
from parley_client.errors import StreamLostError

_ATTEMPTS = 3
_RETRY_S = 0.05


async def unless_busy(request: Callable[[], Awaitable[AsrReply]]) -> AsrReply:
    """Ask the model; again if it was busy, which leaves the stream as it was.

    Raises:
        OverloadedError: it stays busy.
        ParleyError: any other failure.
    """
    wait = _RETRY_S
    for _ in range(_ATTEMPTS - 1):
        try:
            return await request()
        except OverloadedError:
            await asyncio.sleep(wait)
            wait *= 2
    return await request()


def stream_lost(error: ParleyError) -> StreamLostError:
    """The end of a stream, after a failure that no request can mend."""
    lost = StreamLostError(f"the stream of audio broke: {error} ({error.code})")
    lost.__cause__ = error
    return lost
