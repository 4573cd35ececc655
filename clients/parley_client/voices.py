"""The server's voices: listing them, and making one of a recording.

::

    async with Voices("127.0.0.1:8001") as voices:
        made = await voices.enroll(Path("anna.wav").read_bytes(), name="Anna", consent="I agree. Anna")
        async with connect("127.0.0.1:8001", voice=made.voice_id) as call:
            ...
"""

from __future__ import annotations

from collections.abc import Sequence

import grpc

from parley.errors import InferenceError, ModelUnavailableError
from parley.tts.voices.messages import (
    DeleteVoice,
    DescribeVoice,
    EnrollVoice,
    ListVoices,
    VoicesReply,
    VoicesRequest,
    VoiceSummary,
)
from parley_client.unary import Input, UnaryModel, message_input

MODEL = "voice_enrollment"
MAX_FILE_BYTES = 16 << 20
"""What the server reads, as it is configured."""


class NoVoicesError(ModelUnavailableError):
    """The server makes no voices: it has those of its synthesizer."""


class Voices(UnaryModel):
    """A connection to the server's model for voices.

    Every method raises the server's answer if it is an error (for example
    :class:`parley.errors.ReferenceTooShortError`), ``ConnectError`` where nothing answers,
    :class:`NoVoicesError` where the server makes no voices, and ``DeadlineExceededError`` after
    ``timeout_s``.

    Args:
        server: ``host:port`` of Triton's gRPC endpoint.
        timeout_s: longest wait for an answer, connecting included.
        credentials: TLS; None: plain text.
    """

    def __init__(
        self,
        server: str,
        *,
        timeout_s: float = 60.0,
        credentials: grpc.ChannelCredentials | None = None,
    ) -> None:
        super().__init__(server, MODEL, credentials=credentials)
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
        """Make a voice; fields as in :class:`parley.tts.voices.messages.EnrollVoice`.

        Args:
            recording: a WAV, FLAC or OGG file of one channel, 5 to 30 s long, or PCM16.
            name: for people.
            consent: the speaker's, in words.
            voice_id: None: made of the name and the recording.
            languages: that are spoken in it.
            description: for people.
            sample_rate: of PCM16, hertz.
            replace: whether another voice of this id gives way.
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
        return _only(await self._ask(message, recording))

    async def list(self) -> Sequence[VoiceSummary]:
        """All voices; their consent is left out."""
        return await self._ask(ListVoices())

    async def describe(self, voice_id: str) -> VoiceSummary:
        """All details of a voice."""
        return _only(await self._ask(DescribeVoice(voice_id=voice_id)))

    async def delete(self, voice_id: str) -> None:
        """Forget a voice."""
        await self._ask(DeleteVoice(voice_id=voice_id))

    async def _ask(self, message: VoicesRequest, recording: bytes = b"") -> Sequence[VoiceSummary]:
        inputs = [message_input(message)]
        if recording:
            inputs.append(Input("AUDIO", "UINT8", [len(recording)], recording))
        try:
            return (await self.infer(inputs, VoicesReply, self._timeout_s)).voices
        except ModelUnavailableError as error:
            if MODEL not in str(error):
                raise
            raise NoVoicesError(
                "this server has no voices of its own: it was started without weights of Chatterbox "
                "(see docs/voices.md)"
            ) from error


def _only(voices: Sequence[VoiceSummary]) -> VoiceSummary:
    if len(voices) != 1:
        raise InferenceError(f"the server answered with {len(voices)} voices")
    return voices[0]
