"""Whole recordings to text.

::

    async with Transcriber("127.0.0.1:8001") as transcriber:
        reply = await transcriber.transcribe(read_speech(Path("meeting.wav"), max_seconds=MAX_SECONDS))
        print(reply.text)

Several may be under way at once; the server reads them together.
"""

from __future__ import annotations

from collections.abc import Sequence

import grpc
import grpc.aio
import numpy as np
from numpy.typing import NDArray

from parley.asr.messages import TranscribeReply, TranscribeRequest
from parley_client.channel import is_model_ready
from parley_client.unary import Input, UnaryModel, message_input

TRANSCRIBERS = ("parakeet_transcribe", "moonshine_transcribe")
"""Models for recordings; a server has one of them, or the first is taken."""
_READY_S = 5.0
MAX_SECONDS = 24 * 60
"""Longest recording that the server takes, as it is configured."""


async def find_loaded(channel: grpc.aio.Channel, names: Sequence[str], timeout_s: float) -> str:
    """The first of these models that is ready; of none the first, so that asking it says why.

    Raises:
        ParleyError: the server cannot be asked.
    """
    for name in names:
        if await is_model_ready(channel, name, min(timeout_s, _READY_S)):
            return name
    return names[0]


class Transcriber(UnaryModel):
    """A connection to the server's model for recordings.

    Args:
        server: ``host:port`` of Triton's gRPC endpoint.
        credentials: TLS; None: plain text.
    """

    def __init__(self, server: str, *, credentials: grpc.ChannelCredentials | None = None) -> None:
        super().__init__(server, TRANSCRIBERS[0], credentials=credentials)

    async def name(self, channel: grpc.aio.Channel, timeout_s: float) -> str:
        """The name of the model that this server has."""
        return await find_loaded(channel, TRANSCRIBERS, timeout_s)

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
            ConnectError: nothing answers.
            ModelUnavailableError: the server has no such model.
            DeadlineExceededError: it took longer than ``timeout_s``.
            InferenceError: the server failed.
        """
        recording = Input("AUDIO", "INT16", [1, len(audio)], audio.astype("<i2", copy=False).tobytes())
        message = message_input(request or TranscribeRequest(), batched=True)
        return await self.infer([recording, message], TranscribeReply, timeout_s)
