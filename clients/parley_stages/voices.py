"""The server's voices: listing them, and making one of a recording.

::

    async with open_server("127.0.0.1:8001") as server, Voices(server) as voices:
        made = await voices.enroll(Path("anna.wav").read_bytes(), name="Anna", consent="I agree. Anna")
    async with connect("127.0.0.1:8001", voice=made.voice_id) as call:
        ...
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from parley.errors import InferenceError, ModelLoadingError, ModelUnavailableError
from parley.inference import Tensor, struct_tensor
from parley.triton.grpc_client import GrpcModelClient
from parley.tts.voice_messages import (
    DeleteVoice,
    DescribeVoice,
    EnrollVoice,
    ListVoices,
    VoicesReply,
    VoicesRequest,
    VoiceSummary,
)
from parley_stages.server import ClosedAtTheEnd, StageServer, request_reply

MODEL = "voice_enrollment"
MAX_FILE_BYTES = 16 << 20
"""What the server reads, as it is configured."""


class NoVoicesError(ModelUnavailableError):
    """The server makes no voices: it has those of its synthesizer."""


class Voices(ClosedAtTheEnd):
    """The model that keeps the voices.

    Every method raises the server's answer if it is an error (for example
    :class:`parley.errors.ReferenceTooShortError`), :class:`NoVoicesError` where the server makes no voices,
    and ``DeadlineExceededError`` after ``timeout_s``.
    """

    def __init__(self, server: StageServer, *, timeout_s: float = 60.0) -> None:
        self._client = GrpcModelClient(lambda: server.channel)
        self._timeout_s = timeout_s

    async def enroll(
        self,
        recording: bytes,
        *,
        name: str,
        consent: str = "",
        voice_id: str | None = None,
        languages: Sequence[str] = (),
        description: str = "",
        sample_rate: int | None = None,
        replace: bool = False,
    ) -> VoiceSummary:
        """Make a voice; further fields as in :class:`parley.tts.voice_messages.EnrollVoice`.

        Args:
            recording: a WAV, FLAC or OGG file of one channel, 5 to 30 s long, or PCM16.
            name: for people.
            consent: the speaker's, in words.
            voice_id: None: made of the name and the recording.
            languages: spoken in the recording.
            description: for people.
            sample_rate: of PCM16 (Hz).
            replace: whether another voice of this id is replaced.
        """
        message = EnrollVoice(
            name=name,
            consent=consent,
            voice_id=voice_id,
            languages=list(languages),
            description=description,
            sample_rate=sample_rate,
            replace=replace,
        )
        return _only(await self._request(message, recording))

    async def list(self) -> Sequence[VoiceSummary]:
        """All voices; their consent is left out."""
        return await self._request(ListVoices())

    async def describe(self, voice_id: str) -> VoiceSummary:
        """All details of a voice."""
        return _only(await self._request(DescribeVoice(voice_id=voice_id)))

    async def delete(self, voice_id: str) -> None:
        """Delete a voice."""
        await self._request(DeleteVoice(voice_id=voice_id))

    async def close(self) -> None:
        """Cancel what is under way."""
        await self._client.close()

    async def _request(self, message: VoicesRequest, recording: bytes = b"") -> Sequence[VoiceSummary]:
        inputs: dict[str, Tensor] = {"REQUEST": struct_tensor(message)}
        if recording:
            inputs["AUDIO"] = np.frombuffer(recording, np.uint8)
        try:
            return (await request_reply(self._client, MODEL, inputs, VoicesReply, self._timeout_s)).voices
        except (ModelUnavailableError, ModelLoadingError) as error:
            if isinstance(error, ModelUnavailableError) and "unknown model" not in str(error):
                raise
            raise NoVoicesError(
                "this server has no voices of its own: it was started without weights of Chatterbox "
                "(see docs/speech.md#voices)"
            ) from error


def _only(voices: Sequence[VoiceSummary]) -> VoiceSummary:
    if len(voices) != 1:
        raise InferenceError(f"the server answered with {len(voices)} voices")
    return voices[0]
