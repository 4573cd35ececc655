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
import dataclasses
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import TypeAlias, TypedDict, Unpack
from uuid import uuid4

import grpc
import grpc.aio
import msgspec
from tritonclient.grpc import service_pb2, service_pb2_grpc

from parley.engines.registry import ENGLISH, SYNTHESIZERS
from parley.engines.speech import ChatterboxSpeaker, ModelSpeaker
from parley.errors import InvalidInputError, OverloadedError, ParleyError
from parley.inference import struct_tensor
from parley.timeouts import best_effort
from parley.triton.grpc_client import GrpcModelClient
from parley.tts.messages import MoreText, SpeakRequest
from parley.tts.synthesizers import ESPEAK
from parley.tts.voice_messages import ListVoices, VoicesReply
from parley.tts.voice_routing import find_route, qualify, speaks, spoken_languages
from parley_client.channel import error_of
from parley_stages.server import ClosedAtTheEnd, StageServer, is_model_ready, request_reply
from parley_stages.speech import GrowingText, Speech, SpeechPiece, Track
from parley_stages.streams import Requests
from parley_stages.voices import MODEL as VOICES_MODEL

AUTO = "auto"
"""In place of names: the synthesizers of the server's conversations."""
_AGENT = "voice_agent"
_TIMEOUT_S = 5.0
_RECHECK_S = 15.0
"""After this a synthesizer that was not loaded may be."""
_IDLE_S = 60.0
_BUSY_S = 0.1
_STOP_S = 5.0


def read_names(models: str) -> tuple[str, ...]:
    """The synthesizers in ``models``; none for :data:`AUTO`.

    Args:
        models: a name, several with commas in order of preference, or ``auto``.

    Raises:
        InvalidInputError: there is no such synthesizer, or it is named twice.
    """
    if models == AUTO:
        return ()
    names = tuple(name.strip() for name in models.split(","))
    for name in names:
        if name not in SYNTHESIZERS:
            raise InvalidInputError(f"no synthesizer {name!r}; there are {', '.join(SYNTHESIZERS)}")
    if len(set(names)) < len(names):
        raise InvalidInputError(f"a synthesizer is named twice: {models}")
    return names


async def find_names(server: StageServer, names: Sequence[str]) -> tuple[tuple[str, ...], bool]:
    """Those of the synthesizers that the server has loaded; all of them if it has none.

    Args:
        server: the server.
        names: in order of preference; one alone is not checked. None: those of its conversations.

    Returns:
        The names, and whether they are final: another synthesizer may still be loading.

    Raises:
        ParleyError: the server cannot be asked.
    """
    names = tuple(names) or await _names_of_agent(server.channel)
    if len(names) == 1:
        return names, True
    ready = await asyncio.gather(*(is_model_ready(server.channel, name, _TIMEOUT_S) for name in names))
    loaded = tuple(name for name, is_ready in zip(names, ready, strict=True) if is_ready)
    return loaded or names, all(ready)


async def _names_of_agent(channel: grpc.aio.Channel) -> tuple[str, ...]:
    """The synthesizers in the configuration of ``voice_agent``; its environment is not visible to clients.

    Raises:
        ParleyError: the server cannot be asked, or is loading the agent.
    """
    stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    request = service_pb2.ModelConfigRequest(name=_AGENT)
    try:
        reply = await stub.ModelConfig(request, timeout=_TIMEOUT_S)
    except grpc.aio.AioRpcError as error:
        if error.code() != grpc.StatusCode.NOT_FOUND:
            raise error_of(error) from error
        return (ESPEAK,)  # a server of stages alone
    configured = reply.config.parameters["tts"].string_value.split(",")
    return tuple(name.strip() for name in configured if name.strip() in SYNTHESIZERS) or (ESPEAK,)


Lineup: TypeAlias = Sequence[tuple[str, ModelSpeaker]]


@dataclass(frozen=True)
class VoiceInfo:
    """A voice that :meth:`Synthesis.speak` takes."""

    voice_id: str
    name: str
    languages: tuple[str, ...] = ()
    """Empty: unknown."""
    synthesizer: str = ""
    """Whose it is; ``synthesizer/voice`` names it too."""
    gender: str = ""
    """``female`` or ``male``; empty: not said."""
    description: str = ""


class SpeechOptions(TypedDict, total=False):
    """How a text is spoken; each field may be left out."""

    voice: str | None
    """One of :meth:`Synthesis.voices`; None: that of the first synthesizer that speaks the language."""
    language: str
    """A tag such as ``en`` or ``en-GB``; the default: English, or the language of a voice that lacks it."""
    sample_rate: int | None
    """8,000 to 48,000 Hz; None: the synthesizer's own."""
    exaggeration: float | None
    """Strength of emotion, where the synthesizer supports it."""
    guidance_weight: float | None
    """How close it keeps to the voice, where it supports it."""
    seed: int | None
    """Repeats the same speech, where the synthesizer supports it."""
    background: bool
    """Whether no call waits for it: the speech of calls is before it."""
    traceparent: str
    """Span of the caller (W3C Trace Context); empty: there is none."""


class Synthesis(ClosedAtTheEnd):
    """Text to speech; any number of texts may be spoken at once.

    Args:
        server: where the synthesizer is.
        model: ``espeak``, ``piper``, ``kokoro`` or ``chatterbox``; several with commas, in order of
            preference: the one that has the voice speaks, and those that the server has not loaded are
            left out; ``auto``: those of the server's conversations, as ``voice_agent`` is configured.
        timeout_s: seconds until the first audio, or the next, is overdue.
        idle_s: longest wait for more of a text that was begun (seconds).

    Raises:
        InvalidInputError: there is no such synthesizer.
    """

    def __init__(
        self, server: StageServer, *, model: str = AUTO, timeout_s: float = 20.0, idle_s: float = _IDLE_S
    ) -> None:
        self._named = read_names(model)
        self._server = server
        self._client = GrpcModelClient(lambda: server.channel)
        self._name = model
        self._timeout_s = timeout_s
        self._lineup: Lineup | None = None
        self._recheck_at_s = 0.0
        self._idle_s = idle_s
        self._requests = Requests()

    async def synthesizer_of(self, voice: str | None, language: str | None = None) -> str:
        """The synthesizer that speaks with this voice; for Chatterbox's voices it is not asked.

        Args:
            voice: as in :class:`SpeechOptions`.
            language: as there; None: the default.

        Raises:
            UnsupportedVoiceError: none of them has the voice.
            UnsupportedLanguageError: none of them, or not this voice, speaks the language.
            ParleyError: the server could not be asked.
        """
        lineup = await self._speakers()
        return lineup[find_route(lineup, voice, language or _language_of(lineup, voice)).index][0]

    async def languages(self) -> Sequence[str]:
        """What they speak.

        Raises:
            ParleyError: the server could not be asked.
        """
        return spoken_languages(await self._speakers())

    def speak(self, text: str, **options: Unpack[SpeechOptions]) -> Speech:
        """Speak a text; nothing is sent before it is iterated.

        Its iteration raises ``UnsupportedVoiceError``, ``UnsupportedLanguageError``,
        ``UnsupportedSampleRateError``, ``OverloadedError``, ``ModelUnavailableError``,
        ``DeadlineExceededError``, or another ``InferenceError`` where the model failed.

        Raises:
            InvalidMessageError: the text has more than 20,000 characters.
        """
        speech = self.begin(**options)
        speech.add(text)
        speech.finish()
        return speech

    def begin(self, **options: Unpack[SpeechOptions]) -> Speech:
        """Speak a text that is still being written; otherwise as :meth:`speak`.

        Its iteration also raises ``SessionIdleError`` where no text comes for too long.
        """
        request = SpeakRequest(request_id=uuid4().hex, **options)
        script = GrowingText(self._idle_s)
        spoken = _Routed(self._speakers, request, script, has_language="language" in options)
        return Speech(script, spoken.pieces(), spoken.stop, self._requests, self._name)

    async def voices(self) -> Sequence[VoiceInfo]:
        """All voices; the first is the default, but of ``chatterbox``.

        Raises:
            InferenceError: the server could not be asked, or did not answer in time.
        """
        lineup = await self._speakers()
        lists = [await self._voices_of(name, speaker) for name, speaker in lineup]
        own = [[voice.voice_id for voice in voices] for voices in lists]
        names = qualify([(name, voices) for (name, _), voices in zip(lineup, own, strict=True)])
        return [
            dataclasses.replace(voice, voice_id=name)
            for qualified, voices in zip(names, lists, strict=True)
            for name, voice in zip(qualified, voices, strict=True)
        ]

    async def _voices_of(self, synthesizer: str, speaker: ModelSpeaker) -> list[VoiceInfo]:
        if speaker.known_voices is not None:
            return [
                VoiceInfo(
                    voice.name, voice.name, voice.languages, synthesizer, voice.gender, voice.description
                )
                for voice in speaker.known_voices
            ]
        inputs = {"REQUEST": struct_tensor(ListVoices())}
        reply = await request_reply(self._client, VOICES_MODEL, inputs, VoicesReply, self._timeout_s)
        return [
            VoiceInfo(
                one.voice_id,
                one.details.name or one.voice_id,
                tuple(one.details.languages),
                synthesizer,
                description=one.details.description,
            )
            for one in reply.voices
        ]

    async def check_voice(self, voice: str) -> None:
        """Check that there is this voice.

        Raises:
            UnsupportedVoiceError: there is not.
            InferenceError: the server could not be asked, or did not answer in time.
        """
        lineup = await self._speakers()
        route = find_route(lineup, voice, None)
        if not route.certain and route.voice is not None:
            await lineup[route.index][1].check_voice(route.voice)

    async def _speakers(self) -> Lineup:
        if self._lineup is None or time.monotonic() > self._recheck_at_s:
            names, is_all = await find_names(self._server, self._named)
            self._recheck_at_s = math.inf if is_all else time.monotonic() + _RECHECK_S
            self._lineup = [
                (name, SYNTHESIZERS[name](self._client, timeout_s=self._timeout_s)) for name in names
            ]
        return self._lineup

    async def close(self) -> None:
        """Stop what is being spoken."""
        await self._requests.close()
        await self._client.close()


class _Routed:
    """The synthesizer that has the voice, found when the text begins to be spoken."""

    def __init__(
        self,
        speakers: Callable[[], Awaitable[Lineup]],
        request: SpeakRequest,
        script: GrowingText,
        *,
        has_language: bool,
    ) -> None:
        self._speakers = speakers
        self._request = request
        self._has_language = has_language
        self._script = script
        self._spoken: _InSegments | _Written | None = None

    async def pieces(self) -> AsyncGenerator[SpeechPiece, None]:
        """The audio."""
        lineup = await self._speakers()
        voice = self._request.voice
        language = self._request.language if self._has_language else _language_of(lineup, voice)
        route = find_route(lineup, voice, language)
        request = msgspec.structs.replace(self._request, voice=route.voice, language=language)
        speaker = lineup[route.index][1]
        if isinstance(speaker, ChatterboxSpeaker):
            self._spoken = _Written(speaker, request, self._script)
        else:
            self._spoken = _InSegments(speaker, request, self._script)
        async with aclosing(self._spoken.pieces()) as pieces:
            async for piece in pieces:
                yield piece

    async def stop(self) -> None:
        """Stop what is being spoken."""
        if self._spoken is not None:
            await self._spoken.stop()


def _language_of(lineup: Lineup, voice: str | None) -> str:
    """English, or the first language of a voice that is always there and does not speak English.

    Raises:
        UnsupportedVoiceError: no synthesizer has the voice.
    """
    if voice is None:
        return ENGLISH
    route = find_route(lineup, voice, None)
    known = lineup[route.index][1].known_voices or ()
    languages = next((each.languages for each in known if each.name == route.voice), (ENGLISH,))
    return ENGLISH if speaks(languages, ENGLISH) else languages[0]


class _InSegments:
    """A synthesizer that takes whole texts: every segment is a request of its own."""

    def __init__(self, speaker: ModelSpeaker, request: SpeakRequest, script: GrowingText) -> None:
        self._speaker = speaker
        self._request = request
        self._script = script
        self._running = ""

    async def pieces(self) -> AsyncGenerator[SpeechPiece, None]:
        """The audio."""
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

    def __init__(self, speaker: ChatterboxSpeaker, request: SpeakRequest, script: GrowingText) -> None:
        self._speaker = speaker
        self._request = msgspec.structs.replace(request, final=False)
        self._script = script
        self._stopped = False
        self._failure: ParleyError | None = None  # of the writing

    async def pieces(self) -> AsyncGenerator[SpeechPiece, None]:
        """The audio."""
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
                await self._send_text(position, until)
                position = until
                segment = await self._script.next_segment()
                if segment is None:
                    break
                until = segment.end
            await self._send_text(position, len(self._script.said), final=True)
        except ParleyError as error:
            if not self._stopped:
                self._failure = error
                # Or the model would wait for more.
                await best_effort(self.stop(), _STOP_S, f"stopping {self._request.request_id}")

    async def _send_text(self, start: int, end: int, *, final: bool = False) -> None:
        message = MoreText(
            request_id=self._request.request_id, text=self._script.said[start:end], first=start, final=final
        )
        while True:
            try:
                await self._speaker.more(message)
            except OverloadedError:
                await asyncio.sleep(_BUSY_S)  # its queue of text is full
            else:
                return
