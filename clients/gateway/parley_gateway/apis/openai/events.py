"""Server-sent events."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec

from parley.errors import ParleyError
from parley_gateway.apis.openai.errors import body_of

MEDIA_TYPE = "text/event-stream"
DONE = b"data: [DONE]\n\n"


def event(content: Any) -> bytes:
    """One event of anything that msgspec writes as JSON."""
    return b"data: " + msgspec.json.encode(content) + b"\n\n"


async def with_failures(events: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    """``events``, and after the first one failures as an event: the status is sent already."""
    begun = False
    async with aclosing(events):
        try:
            async for one in events:
                begun = True
                yield one
        except ParleyError as error:
            if not begun:
                raise
            yield event(body_of(error))
