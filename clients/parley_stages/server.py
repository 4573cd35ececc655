"""The connection that clients of single stages share."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeVar

import grpc
import grpc.aio
import msgspec

from parley.errors import InferenceError
from parley.inference import ModelRequest, Tensor, tensor_struct
from parley.tls import TlsOptions
from parley.triton.grpc_client import GrpcModelClient
from parley.triton.readiness import is_serving
from parley_client.channel import connect_channel, error_of, open_channel
from parley_client.options import Keepalive

_CONNECT_S = 10.0
ReplyT = TypeVar("ReplyT", bound=msgspec.Struct)


class ClosedAtTheEnd(ABC):
    """Has a :meth:`close`, which leaving the ``async with`` calls."""

    @abstractmethod
    async def close(self) -> None:
        """End what is under way, and free everything."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *problem: object) -> None:
        await self.close()


class StageServer(Protocol):
    """What a stage uses of a Triton."""

    @property
    def channel(self) -> grpc.aio.Channel:
        """To its gRPC endpoint; its owner closes it, after the stages that use it."""
        ...


@dataclass(frozen=True)
class ServerConnection:
    """An open channel."""

    channel: grpc.aio.Channel


@asynccontextmanager
async def open_server(
    address: str,
    *,
    tls: TlsOptions | None = None,
    keepalive: Keepalive | None = None,
    timeout_s: float = _CONNECT_S,
) -> AsyncGenerator[ServerConnection, None]:
    """Connect to a Triton; any number of stages may use the connection side by side.

    Args:
        address: ``host:port`` of its gRPC endpoint.
        tls: how the server is spoken to by TLS; None: plain text.
        keepalive: pings on a silent connection.
        timeout_s: longest wait for the connection (seconds).

    Raises:
        ConnectError: nothing answers, or not in time.
        InvalidInputError: a file of ``tls`` cannot be used.
    """
    options: list[tuple[str, Any]] = [
        # Recordings and their transcripts are one message each.
        ("grpc.max_send_message_length", -1),
        ("grpc.max_receive_message_length", -1),
        # A server that comes back is found soon; gRPC would wait for up to two minutes.
        ("grpc.initial_reconnect_backoff_ms", 250),
        ("grpc.max_reconnect_backoff_ms", 2_000),
        *(keepalive or Keepalive()).channel_options(),
        *(tls.channel_options() if tls else ()),
    ]
    channel = open_channel(address, tls.credentials() if tls else None, options)
    try:
        await connect_channel(channel, address, timeout_s)
        yield ServerConnection(channel)
    finally:
        await channel.close()


async def is_model_ready(channel: grpc.aio.Channel, model: str, timeout_s: float) -> bool:
    """Whether a model serves: loaded, and not one that refuses every request.

    Raises:
        ParleyError: the server cannot be asked.
    """
    try:
        return await is_serving(channel, model, timeout_s)
    except grpc.aio.AioRpcError as error:
        raise error_of(error) from error


class LazyServer(ClosedAtTheEnd):
    """Opens the connection to a Triton at the first use; plugins are made long before they are needed.

    Once open it stays so: gRPC connects again by itself after the server was away.

    Args:
        address: ``host:port`` of the gRPC endpoint.
        tls: how the server is spoken to by TLS; None: plain text.
    """

    def __init__(self, address: str, *, tls: TlsOptions | None = None) -> None:
        self._address = address
        self._tls = tls
        self._opening = asyncio.Lock()
        self._open = AsyncExitStack()
        self._server: ServerConnection | None = None

    async def get(self) -> ServerConnection:
        """The connection; the first caller opens it, and the others wait for that.

        Raises:
            ConnectError: nothing answers, or not in time; the next call tries again.
        """
        async with self._opening:
            if self._server is None:
                opened = open_server(self._address, tls=self._tls)
                self._server = await self._open.enter_async_context(opened)
            return self._server

    async def close(self) -> None:
        """Close the connection, after the stages that use it; another use opens it again."""
        async with self._opening:
            self._server = None
            await self._open.aclose()


async def request_reply(
    client: GrpcModelClient, model: str, inputs: Mapping[str, Tensor], kind: type[ReplyT], timeout_s: float
) -> ReplyT:
    """The message ``REPLY`` that a model answers a request with.

    Raises:
        ParleyError: the model's error.
        InferenceError: there is no such message, or it cannot be read.
    """
    response = await client.infer(ModelRequest(model, inputs, ("REPLY",), timeout_s=timeout_s))
    if "REPLY" not in response:
        raise InferenceError(f"the reply of {model} cannot be read: it is not there")
    return tensor_struct(response["REPLY"], kind)
