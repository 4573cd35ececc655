"""The page to talk to the agent in a browser, for as long as a command needs it."""

from __future__ import annotations

import importlib.util
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

PORT = 8080
"""The gateway's own; if that is taken, any free one."""


@asynccontextmanager
async def serve_page(server: str) -> AsyncIterator[str | None]:
    """A gateway on this machine in front of a server; its URL, or None if it is not installed.

    Args:
        server: ``host:port`` of Triton's gRPC endpoint.
    """
    if importlib.util.find_spec("fastapi") is None:
        yield None
        return
    from parley_gateway.errors import SettingsError  # noqa: PLC0415 - an optional extra
    from parley_gateway.serving import running  # noqa: PLC0415
    from parley_gateway.settings import load_settings  # noqa: PLC0415

    async with AsyncExitStack() as stack:
        url = None
        for port in (PORT, 0):
            flags: dict[str, dict[str, Any]] = {
                "listen": {"host": "127.0.0.1", "port": port},
                "servers": {"addresses": [server]},
            }
            try:
                url = (await stack.enter_async_context(running(load_settings(None, {}, flags)))).url
            except SettingsError:
                if port == 0:
                    raise
            else:
                break
        yield url
