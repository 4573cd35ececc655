"""WebSockets whose failures have short names."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from stages.protocols import EndpointError

_OPEN_S = 10.0
_CLOSE_S = 2.0
_MAX_BYTES = 16 * 1024 * 1024


@contextmanager
def translated() -> Iterator[None]:
    """Turns failures of a WebSocket into :class:`EndpointError`."""
    try:
        yield
    except InvalidStatus as error:
        raise EndpointError(f"HTTP {error.response.status_code}") from error
    except ConnectionClosed as error:
        code = error.rcvd.code if error.rcvd else 1006
        raise EndpointError(f"closed with {code}") from error
    except (OSError, WebSocketException) as error:
        raise EndpointError("no connection") from error


@asynccontextmanager
async def open_socket(url: str, headers: Mapping[str, str]) -> AsyncIterator[ClientConnection]:
    """A WebSocket; ``http`` and ``https`` in ``url`` stand for ``ws`` and ``wss``."""
    with translated():
        async with connect(
            "ws" + url.removeprefix("http") if url.startswith("http") else url,
            additional_headers=dict(headers),
            open_timeout=_OPEN_S,
            close_timeout=_CLOSE_S,
            max_size=_MAX_BYTES,
            compression=None,
        ) as socket:
            yield socket
