"""A synthesizer alone: text to speech, also while the text is being written.

::

    async with open_server("127.0.0.1:8001") as server, Synthesis(server) as voice:
        async with voice.speak("Hello! How are you?") as speech:
            async for piece in speech:
                play(piece.samples, piece.sample_rate)

    speech = voice.begin()    # other tasks: speech.add("..."), at last speech.finish()
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from uuid import uuid4

import msgspec

from parley.engines.chatterbox import ChatterboxSpeaker
from parley.engines.espeak import MODEL, EspeakSpeaker
from parley.engines.speaker import ModelSpeaker
from parley.errors import InvalidInputError, OverloadedError, ParleyError
from parley.grpc_port import GrpcPort
from parley.inference import ModelRequest, struct_tensor, tensor_struct
from parley.tts.messages import MoreText, SpeakRequest
from parley.tts.voices.messages import ListVoices, VoicesReply
from parley.waiting import try_within
from parley_client.closing import ClosedAtTheEnd
from parley_client.stages.script import Script
from parley_client.stages.server import StageServer
from parley_client.stages.speech import Speech, SpeechPiece, Track
from parley_client.stages.streams import Requests
from parley_client.voices import MODEL as VOICES_MODEL

_IDLE_S = 60.0
_BUSY_S = 0.1
_STOP_S = 5.0
_SPEAKERS: dict[str, type[EspeakSpeaker | ChatterboxSpeaker]] = {
    "espeak": EspeakSpeaker,
    "chatterbox": ChatterboxSpeaker,
}


@dataclass(frozen=True)
class VoiceInfo:
    """A voice that :meth:`Synthesis.speak` takes."""

    voice_id: str
    name: str
    languages: tuple[str, ...] = ()
    """Empty: not said."""


class Synthesis(ClosedAtTheEnd):
    """Text to speech; any number of texts may be spoken at once.

    Args:
        server: where the synthesizer is.
        model: ``espeak`` or ``chatterbox``.
        timeout_s: seconds until the first audio, or the next, is overdue.
        idle_s: longest wait for more of a text that was begun (seconds).

    Raises:
        InvalidInputError: there is no such synthesizer.
    """

    def __init__(
        self, server: StageServer, *, model: str = MODEL, timeout_s: float = 20.0, idle_s: float = _IDLE_S
    ) -> None:
        kind = _SPEAKERS.get(model)
        if kind is None:
            raise InvalidInputError(f"no synthesizer {model!r}; there are {', '.join(_SPEAKERS)}")
        self._port = GrpcPort(lambda: server.channel)
        self._speaker = kind(self._port, timeout_s=timeout_s)
        self._name = model
        self._timeout_s = timeout_s
        self._idle_s = idle_s
        self._requests = Requests()

    @property
    def languages(self) -> Sequence[str]:
        """What the synthesizer speaks."""
        return self._speaker.languages

    def speak(
        self,
        text: str,
        *,
        voice: str | None = None,
        language: str = "en",
        sample_rate: int | None = None,
        exaggeration: float | None = None,
        guidance_weight: float | None = None,
        seed: int | None = None,
    ) -> Speech:
        """Speak a text; nothing is sent before it is iterated.

        Its iteration raises ``UnsupportedVoiceError``, ``UnsupportedLanguageError``,
        ``UnsupportedSampleRateError``, ``OverloadedError``, ``ModelUnavailableError``,
        ``DeadlineExceededError``, or another ``InferenceError`` where the model failed.

        Args:
            text: at most 20,000 characters.
            voice: one of :meth:`voices`; None: the first.
            language: as in ``en`` or ``en-GB``.
            sample_rate: hertz, 8,000 to 48,000; None: the synthesizer's own.
            exaggeration: of emotion, where the synthesizer can.
            guidance_weight: how close it keeps to the voice, where it can.
            seed: to say the same in the same way again, where it can.

        Raises:
            InvalidMessageError: the text is too long.
        """
        speech = self.begin(
            voice=voice,
            language=language,
            sample_rate=sample_rate,
            exaggeration=exaggeration,
            guidance_weight=guidance_weight,
            seed=seed,
        )
        speech.add(text)
        speech.finish()
        return speech

    def begin(
        self,
        *,
        voice: str | None = None,
        language: str = "en",
        sample_rate: int | None = None,
        exaggeration: float | None = None,
        guidance_weight: float | None = None,
        seed: int | None = None,
    ) -> Speech:
        """Speak a text that is still being written; fields as in :meth:`speak`.

        Its iteration also raises ``SessionIdleError`` where no text comes for too long.
        """
        request = SpeakRequest(
            request_id=uuid4().hex,
            voice=voice,
            language=language,
            sample_rate=sample_rate,
            exaggeration=exaggeration,
            guidance_weight=guidance_weight,
            seed=seed,
        )
        script = Script(self._idle_s)
        spoken = (
            _Written(self._speaker, request, script)
            if isinstance(self._speaker, ChatterboxSpeaker)
            else _InSegments(self._speaker, request, script)
        )
        return Speech(script, spoken.pieces(), spoken.stop, self._requests, self._name)

    async def voices(self) -> Sequence[VoiceInfo]:
        """All voices; the first is the default of ``espeak``.

        Raises:
            InferenceError: the server could not be asked, or did not answer in time.
        """
        if self._speaker.voices is not None:
            languages = tuple(self._speaker.languages)
            return [VoiceInfo(voice, voice, languages) for voice in self._speaker.voices]
        response = await self._port.infer(
            ModelRequest(
                VOICES_MODEL, {"REQUEST": struct_tensor(ListVoices())}, ("REPLY",), timeout_s=self._timeout_s
            )
        )
        listed = tensor_struct(response["REPLY"], VoicesReply).voices
        return [
            VoiceInfo(one.voice_id, one.details.name or one.voice_id, tuple(one.details.languages))
            for one in listed
        ]

    async def check_voice(self, voice: str) -> None:
        """Return if there is this voice.

        Raises:
            UnsupportedVoiceError: there is not.
            InferenceError: the server could not be asked, or did not answer in time.
        """
        await self._speaker.check_voice(voice)

    async def close(self) -> None:
        """Stop what is being spoken."""
        await self._requests.close()
        await self._port.close()


class _InSegments:
    """A synthesizer that takes whole texts: every segment is a request of its own."""

    def __init__(self, speaker: ModelSpeaker, request: SpeakRequest, script: Script) -> None:
        self._speaker = speaker
        self._request = request
        self._script = script
        self._running = ""

    async def pieces(self) -> AsyncGenerator[SpeechPiece, None]:
        """What is said."""
        track = Track(self._script, self._request.sample_rate)
        number = 0
        while segment := await self._script.next_segment():
            number += 1
            self._running = f"{self._request.request_id}-{number}"
            request = msgspec.structs.replace(self._request, request_id=self._running, text=segment.text)
            track.begin_request()
            async with aclosing(self._speaker.speak(request)) as chunks:
                async for chunk, audio in chunks:
                    yield track.add(chunk, audio, segment.start)
            self._running = ""
        if rest := track.finish():
            yield rest

    async def stop(self) -> None:
        """Stop the segment that is being spoken."""
        if self._running:
            await self._speaker.abort(self._running)


class _Written:
    """A synthesizer that takes a text while it is being written."""

    def __init__(self, speaker: ChatterboxSpeaker, request: SpeakRequest, script: Script) -> None:
        self._speaker = speaker
        self._request = msgspec.structs.replace(request, final=False)
        self._script = script
        self._stopped = False
        self._failure: ParleyError | None = None  # of the writing

    async def pieces(self) -> AsyncGenerator[SpeechPiece, None]:
        """What is said."""
        segment = await self._script.next_segment()
        if segment is None:
            return
        track = Track(self._script, self._request.sample_rate)
        async with aclosing(self._speaker.speak(self._request)) as chunks:
            await anext(chunks)  # the model is ready for text
            writing = asyncio.create_task(self._write(segment.end))
            try:
                async for chunk, audio in chunks:
                    yield track.add(chunk, audio, 0)
            finally:
                writing.cancel()
                await asyncio.wait([writing])
            if self._failure is not None:
                raise self._failure
        if rest := track.finish():
            yield rest

    async def stop(self) -> None:
        """Stop the model."""
        self._stopped = True
        await self._speaker.abort(self._request.request_id)

    async def _write(self, until: int) -> None:
        position = 0
        try:
            while True:
                await self._more(position, until)
                position = until
                segment = await self._script.next_segment()
                if segment is None:
                    break
                until = segment.end
            await self._more(position, len(self._script.text), final=True)
        except ParleyError as error:
            if not self._stopped:
                self._failure = error
                # Or the model would wait for more.
                await try_within(self.stop(), _STOP_S, f"stopping {self._request.request_id}")

    async def _more(self, start: int, end: int, *, final: bool = False) -> None:
        message = MoreText(
            request_id=self._request.request_id, text=self._script.text[start:end], first=start, final=final
        )
        while True:
            try:
                await self._speaker.more(message)
            except OverloadedError:
                await asyncio.sleep(_BUSY_S)  # as much as it takes waits for it already
            else:
                return
