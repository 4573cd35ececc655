"""Calls of models that answer each request once."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import grpc
import grpc.aio
import msgspec
from tritonclient.grpc import service_pb2, service_pb2_grpc

from parley.errors import InferenceError
from parley_client.channel import error_of, open_channel, wait_until_connected
from parley_client.closing import ClosedAtTheEnd
from parley_client.errors import ConnectError

_CONNECT_S = 10.0
ReplyT = TypeVar("ReplyT")


@dataclass(frozen=True)
class Input:
    """One tensor of a request."""

    name: str
    datatype: str
    """As Triton calls it, for example ``INT16``."""
    shape: Sequence[int]
    raw: bytes


def message_input(message: msgspec.Struct, *, batched: bool = False) -> Input:
    """A request's message."""
    content = msgspec.json.encode(message)
    # A BYTES tensor is each element's length (4 bytes, little endian) followed by the element.
    raw = len(content).to_bytes(4, "little") + content
    return Input("REQUEST", "BYTES", [1, 1] if batched else [1], raw)


class UnaryModel(ClosedAtTheEnd):
    """A connection to one model, whose replies are JSON.

    Args:
        server: ``host:port`` of Triton's gRPC endpoint.
        model: name of the model.
        credentials: TLS; None: plain text.
    """

    def __init__(
        self, server: str, model: str, *, credentials: grpc.ChannelCredentials | None = None
    ) -> None:
        # A recording is one message, and so is a long list.
        options: Sequence[tuple[str, Any]] = [
            ("grpc.max_send_message_length", -1),
            ("grpc.max_receive_message_length", -1),
        ]
        self._server = server
        self._channel = open_channel(server, credentials, options)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._model = model

    async def infer(self, inputs: Sequence[Input], kind: type[ReplyT], timeout_s: float) -> ReplyT:
        """Ask and wait for the reply.

        Args:
            inputs: tensors of the request.
            kind: of the reply.
            timeout_s: seconds to wait, connecting included.

        Raises:
            ParleyError: what the model answered.
            ConnectError: nothing answers.
            ModelUnavailableError: the server has no such model.
            DeadlineExceededError: it took longer than ``timeout_s``.
            InferenceError: the server failed.
        """
        call = service_pb2.ModelInferRequest()
        for tensor in inputs:
            call.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
            call.raw_input_contents.append(tensor.raw)
        began_s = time.monotonic()
        await self._connect(min(timeout_s, _CONNECT_S))
        call.model_name = await self.name(self._channel, min(timeout_s, _CONNECT_S))
        left_s = max(0.0, timeout_s - (time.monotonic() - began_s))
        try:
            response = await self._stub.ModelInfer(call, timeout=left_s)
        except grpc.aio.AioRpcError as error:
            raise error_of(error) from error
        try:
            return msgspec.json.decode(response.raw_output_contents[0][4:], type=kind)
        except (msgspec.MsgspecError, IndexError) as error:
            raise InferenceError(f"the server's answer cannot be read: {error}") from error

    async def name(self, channel: grpc.aio.Channel, timeout_s: float) -> str:
        """The name of the model, which the server may have to be asked for."""
        del channel, timeout_s
        return self._model

    async def _connect(self, timeout_s: float) -> None:
        try:
            async with asyncio.timeout(timeout_s):
                await wait_until_connected(self._channel, self._server)
        except TimeoutError as error:
            raise ConnectError(f"no connection to {self._server} within {timeout_s:g} s") from error

    async def close(self) -> None:
        """Close the connection; what is under way is cancelled."""
        await self._channel.close()
