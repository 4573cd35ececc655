"""The network under a call: one ordered stream of frames each way, over Triton's ``ModelStreamInfer``.

It uses the protobuf stubs of :mod:`tritonclient` on a ``grpc.aio`` channel. The package's own
``grpc.aio.InferenceServerClient.stream_infer`` cannot ask for empty final responses (its
``parameters`` refuse the reserved name, and it has no argument for it), and those are what
acknowledges a request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import grpc
import grpc.aio
import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2_grpc

from parley.errors import InferenceError, ParleyError
from parley.grpc_messages import read_response, to_message
from parley.inference import ModelRequest, SequenceFlags, tensor_bytes, text_tensor
from parley.tls import TlsOptions
from parley_client.channel import connect_channel, error_of, error_of_status, error_of_text, open_channel
from parley_client.options import Keepalive

MODEL = "voice_agent"
_MAX_MESSAGE_BYTES = 16 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Frame:
    """One request: at most one message and one piece of audio."""

    request_id: str
    message: bytes = b""
    """JSON of a client message; empty: none."""
    audio: bytes = b""
    """Mono PCM16 little endian, 16 kHz; empty: none."""
    start: bool = False
    end: bool = False
    goes_on: bool = False
    """With ``end``: the session goes on elsewhere."""
    acknowledged: bool = True
    """Whether the server is to say that it has handled the request; an error is always sent."""


@dataclass(frozen=True, slots=True)
class ServerReply:
    """One response."""

    request_id: str = ""
    event: bytes = b""
    """JSON of a server event; empty: only an acknowledgement."""
    audio: NDArray[np.int16] = field(default_factory=lambda: np.zeros(0, np.int16))
    """Samples of an ``audio`` event, shape [n]."""
    final: bool = False
    """No further response to ``request_id`` follows."""
    error: str = ""
    """The server's error message for this request; empty: none."""


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


class CallStream(Protocol):
    """One call: frames out, replies in."""

    acknowledges: bool
    """Whether the server says that it has handled a request; False: it is asked for no acknowledgement."""

    async def send(self, frame: Frame) -> None:
        """Write one request; waits for flow control."""
        ...

    async def finish(self) -> None:
        """No request follows."""
        ...

    async def receive(self) -> ServerReply | None:
        """The next reply; None after the last."""
        ...

    def cancel(self) -> None:
        """Drop the call on both sides."""
        ...


class Transport(Protocol):
    """Opens streams to one server."""

    async def open(self, call_id: str, timeout_s: float) -> CallStream:
        """A stream for the call ``call_id``.

        Raises:
            ConnectError: the server cannot be reached within ``timeout_s``.
        """
        ...

    async def close(self) -> None:
        """Drop the connection and everything on it."""
        ...


class TritonTransport:
    """A gRPC channel to one Triton.

    Args:
        server: ``host:port`` of Triton's gRPC endpoint.
        keepalive: Pings on a silent connection.
        tls: How the server is spoken to by TLS; None: plain text.
        headers: Sent with every stream.
        channel: The caller's channel to the server, which stays open; None: one of its own.

    Raises:
        InvalidInputError: a file of ``tls`` cannot be used.
    """

    def __init__(
        self,
        server: str,
        *,
        keepalive: Keepalive | None = None,
        tls: TlsOptions | None = None,
        headers: Mapping[str, str] | None = None,
        channel: grpc.aio.Channel | None = None,
    ) -> None:
        self.server = server
        self._is_owner = channel is None
        self._channel = channel or open_triton_channel(
            server,
            keepalive=keepalive,
            credentials=tls.credentials() if tls else None,
            options=tls.channel_options() if tls else (),
        )
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._metadata = tuple((key.lower(), value) for key, value in (headers or {}).items())

    async def open(self, call_id: str, timeout_s: float) -> TritonStream:
        """A stream for the call ``call_id``.

        Raises:
            ConnectError: nothing listens at the address, or not within ``timeout_s``.
        """
        await connect_channel(self._channel, self.server, timeout_s)
        return TritonStream(self._stub.ModelStreamInfer(metadata=self._metadata), call_id)

    async def close(self) -> None:
        """Close the channel, if it is the transport's own; streams on it are cancelled."""
        if self._is_owner:
            await self._channel.close()


class TritonStream:
    """One ``ModelStreamInfer`` call that carries one sequence."""

    acknowledges = True

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
    inputs = {
        "MESSAGE": text_tensor(frame.message, batched=True),
        "AUDIO": np.frombuffer(frame.audio, np.uint8).reshape(1, -1),
    }
    sequence = SequenceFlags(call_id, start=frame.start, end=frame.end)
    request = ModelRequest(MODEL, inputs, (), frame.request_id, sequence)
    return to_message(request, empty_final=frame.acknowledged)


def to_reply(message: Any) -> ServerReply:
    """Read a ``ModelStreamInferResponse``."""
    response = message.infer_response
    final = response.parameters.get("triton_final_response")
    outputs = read_response(response)
    return ServerReply(
        request_id=response.id,
        event=tensor_bytes(outputs["EVENT"]) if "EVENT" in outputs else b"",
        audio=outputs["AUDIO"].reshape(-1) if "AUDIO" in outputs else np.zeros(0, np.int16),
        final=final is not None and final.bool_param,
        error=error_of_text(message.error_message).to_wire() if message.error_message else "",
    )
