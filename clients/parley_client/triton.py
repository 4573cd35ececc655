"""The transport over Triton's ``ModelStreamInfer``.

It uses the protobuf stubs of :mod:`tritonclient` on a ``grpc.aio`` channel. The package's own
``grpc.aio.InferenceServerClient.stream_infer`` cannot ask for empty final responses (its
``parameters`` refuse the reserved name, and it has no argument for it), and those are what
acknowledges a request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import grpc
import grpc.aio
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from parley.errors import InferenceError, ParleyError
from parley_client.channel import error_of, error_of_status, error_of_text, open_channel, wait_until_connected
from parley_client.errors import ConnectError
from parley_client.options import Keepalive
from parley_client.transport import Frame, ServerReply

MODEL = "voice_agent"
_MAX_MESSAGE_BYTES = 16 * 1024 * 1024


def open_triton_channel(
    server: str,
    *,
    keepalive: Keepalive | None = None,
    credentials: grpc.ChannelCredentials | None = None,
    options: Sequence[tuple[str, Any]] = (),
) -> grpc.aio.Channel:
    """A channel to a Triton, for one call or for many; it connects when it is used.

    Args:
        server: ``host:port`` of Triton's gRPC endpoint.
        keepalive: Pings on a silent connection.
        credentials: TLS; None: plain text.
        options: More arguments of the channel.
    """
    arguments: Sequence[tuple[str, Any]] = [
        *options,  # of two with the same name the first counts
        ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
        ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
        *(keepalive or Keepalive()).channel_options(),
    ]
    return open_channel(server, credentials, arguments)


class TritonTransport:
    """A gRPC channel to one Triton.

    Args:
        server: ``host:port`` of Triton's gRPC endpoint.
        keepalive: Pings on a silent connection.
        credentials: TLS; None: plain text.
        headers: Sent with every stream.
        channel: Somebody else's channel to the server, which stays open; None: one of its own.
    """

    def __init__(
        self,
        server: str,
        *,
        keepalive: Keepalive | None = None,
        credentials: grpc.ChannelCredentials | None = None,
        headers: Mapping[str, str] | None = None,
        channel: grpc.aio.Channel | None = None,
    ) -> None:
        self.server = server
        self._is_owner = channel is None
        self._channel = channel or open_triton_channel(server, keepalive=keepalive, credentials=credentials)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._metadata = tuple((key.lower(), value) for key, value in (headers or {}).items())

    async def open(self, call_id: str, timeout_s: float) -> TritonStream:
        """A stream for the call ``call_id``.

        Raises:
            ConnectError: nothing listens at the address, or not within ``timeout_s``.
        """
        try:
            async with asyncio.timeout(timeout_s):
                await wait_until_connected(self._channel, self.server)
        except TimeoutError as error:
            raise ConnectError(f"no connection to {self.server} within {timeout_s:g} s") from error
        return TritonStream(self._stub.ModelStreamInfer(metadata=self._metadata), call_id)

    async def close(self) -> None:
        """Close the channel, if it is the transport's own; streams on it are cancelled."""
        if self._is_owner:
            await self._channel.close()


class TritonStream:
    """One ``ModelStreamInfer`` call that carries one sequence."""

    def __init__(self, rpc: Any, call_id: str) -> None:
        self._rpc = rpc
        self._call_id = call_id

    async def send(self, frame: Frame) -> None:
        """Write one request; waits for flow control."""
        try:
            await self._rpc.write(to_request(frame, self._call_id))
        except grpc.aio.AioRpcError as error:
            raise error_of(error) from error
        except asyncio.InvalidStateError as error:
            raise await self._end() from error

    async def _end(self) -> ParleyError:
        """Why nothing more can be written."""
        if not self._rpc.done() or await self._rpc.code() is grpc.StatusCode.OK:
            return InferenceError("the stream has ended")
        return error_of_status(await self._rpc.code(), await self._rpc.details() or "")

    async def finish(self) -> None:
        """Half-close: no request follows."""
        try:
            await self._rpc.done_writing()
        except grpc.aio.AioRpcError as error:
            raise error_of(error) from error
        except asyncio.InvalidStateError as error:
            raise await self._end() from error

    async def receive(self) -> ServerReply | None:
        """The next response; None after the last."""
        try:
            response = await self._rpc.read()
        except grpc.aio.AioRpcError as error:
            raise error_of(error) from error
        return None if response is grpc.aio.EOF else to_reply(response)

    def cancel(self) -> None:
        """Cancel the call on both sides."""
        self._rpc.cancel()


def to_request(frame: Frame, call_id: str) -> Any:
    """The protobuf of a frame.

    Both inputs are always present, an empty one meaning *absent*, so that every request of the
    sequence has the same shape.
    """
    request = service_pb2.ModelInferRequest(model_name=MODEL, id=frame.request_id)
    request.parameters["sequence_id"].string_param = call_id
    request.parameters["sequence_start"].bool_param = frame.start
    request.parameters["sequence_end"].bool_param = frame.end
    request.parameters["triton_enable_empty_final_response"].bool_param = True
    request.inputs.add(name="MESSAGE", datatype="BYTES", shape=[1, 1])
    # A BYTES tensor is each element's length (4 bytes, little endian) followed by the element.
    request.raw_input_contents.append(len(frame.message).to_bytes(4, "little") + frame.message)
    request.inputs.add(name="AUDIO", datatype="UINT8", shape=[1, len(frame.audio)])
    request.raw_input_contents.append(frame.audio)
    return request


def to_reply(message: Any) -> ServerReply:
    """Read a ``ModelStreamInferResponse``."""
    response = message.infer_response
    final = response.parameters.get("triton_final_response")
    event = b""
    audio = np.zeros(0, np.int16)
    for output, raw in zip(response.outputs, response.raw_output_contents, strict=False):
        if output.name == "EVENT":
            event = raw[4:]
        elif output.name == "AUDIO":
            audio = np.frombuffer(raw, dtype="<i2").astype(np.int16, copy=False)
    return ServerReply(
        request_id=response.id,
        event=event,
        audio=audio,
        final=final is not None and final.bool_param,
        error=error_of_text(message.error_message).to_wire() if message.error_message else "",
    )
