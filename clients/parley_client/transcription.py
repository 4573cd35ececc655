"""Whole recordings to text.

::

    async with Transcriber("127.0.0.1:8001") as transcriber:
        reply = await transcriber.transcribe(read_speech(Path("meeting.wav"), max_seconds=MAX_SECONDS))
        print(reply.text)

Several may be under way at once; the server reads them together.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio
import msgspec
import numpy as np
from numpy.typing import NDArray
from tritonclient.grpc import service_pb2, service_pb2_grpc

from parley.asr.messages import TranscribeReply, TranscribeRequest
from parley.errors import InferenceError
from parley_client.triton import error_of

MODEL = "parakeet_transcribe"
MAX_SECONDS = 24 * 60
"""Longest recording that the server takes, as it is configured."""


class Transcriber:
    """A connection to the server's model for recordings.

    Args:
        server: ``host:port`` of Triton's gRPC endpoint.
        credentials: TLS; None: plain text.
    """

    def __init__(self, server: str, *, credentials: grpc.ChannelCredentials | None = None) -> None:
        # A recording is one message.
        options: Sequence[tuple[str, Any]] = [("grpc.max_send_message_length", -1)]
        if credentials is None:
            self._channel = grpc.aio.insecure_channel(server, options=options)
        else:
            self._channel = grpc.aio.secure_channel(server, credentials, options=options)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    async def transcribe(
        self, audio: NDArray[np.int16], request: TranscribeRequest | None = None, *, timeout_s: float = 300.0
    ) -> TranscribeReply:
        """What is said in a recording.

        Args:
            audio: i16 ``[n]``, 16 kHz mono, at most :data:`MAX_SECONDS`.
            request: what is wanted; None: the defaults.
            timeout_s: seconds to wait for the whole transcript, connecting included.

        Raises:
            InvalidInputError: the recording is empty or too long, or a wish cannot be fulfilled.
            OverloadedError: too much audio waits at the server already.
            ModelUnavailableError: nothing answers, or the server has no such model.
            DeadlineExceededError: it took longer than ``timeout_s``.
            InferenceError: the server failed.
        """
        message = msgspec.json.encode(request or TranscribeRequest())
        call = service_pb2.ModelInferRequest(model_name=MODEL)
        call.inputs.add(name="AUDIO", datatype="INT16", shape=[1, len(audio)])
        call.raw_input_contents.append(audio.astype("<i2", copy=False).tobytes())
        call.inputs.add(name="REQUEST", datatype="BYTES", shape=[1, 1])
        # A BYTES tensor is each element's length (4 bytes, little endian) followed by the element.
        call.raw_input_contents.append(len(message).to_bytes(4, "little") + message)
        try:
            response = await self._stub.ModelInfer(call, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            raise error_of(error) from error
        try:
            return msgspec.json.decode(response.raw_output_contents[0][4:], type=TranscribeReply)
        except (msgspec.MsgspecError, IndexError) as error:
            raise InferenceError(f"the server's answer cannot be read: {error}") from error

    async def close(self) -> None:
        """Close the connection; what is under way is cancelled."""
        await self._channel.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the connection."""
        await self.close()
