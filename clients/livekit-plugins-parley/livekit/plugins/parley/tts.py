"""Parley's synthesizers for LiveKit."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Never

from livekit.agents import DEFAULT_API_CONNECT_OPTIONS, APIConnectOptions, tts, utils
from livekit.agents.types import TimedString

from parley.errors import ParleyError
from parley.tls import TlsOptions
from parley_stages import Speech, Synthesis, WordTiming
from parley_stages.server import LazyServer

from .errors import api_error

_TIMEOUT_S = 20.0


@dataclasses.dataclass(frozen=True)
class _Options:
    voice: str | None
    language: str
    sample_rate: int
    exaggeration: float | None
    guidance_weight: float | None
    seed: int | None


class TTS(tts.TTS[Never]):
    """Text to speech of a synthesizer of a Parley server, with the time of every word.

    Args:
        server: ``host:port`` of the gRPC endpoint.
        tls: how the server is spoken to by TLS; None: plain text.
        model: ``espeak``, ``piper``, ``kokoro`` or ``chatterbox``, several with commas, or ``auto``; see
            :class:`parley_stages.Synthesis`.
        voice: name of a voice; None: the default.
        language: as in ``en`` or ``en-GB``.
        sample_rate: of the audio, 8,000 to 48,000 Hz.
        exaggeration: of emotion, 0 to 2, where the model can; None: its default.
        guidance_weight: how close the model keeps to the voice, 0 to 1; None: its default.
        seed: to say the same in the same way again; None: never.
        timeout_s: seconds until the first audio, or the next, is overdue.
    """

    def __init__(
        self,
        *,
        server: str = "127.0.0.1:8001",
        tls: TlsOptions | None = None,
        model: str = "auto",
        voice: str | None = None,
        language: str = "en",
        sample_rate: int = 24_000,
        exaggeration: float | None = None,
        guidance_weight: float | None = None,
        seed: int | None = None,
        timeout_s: float = _TIMEOUT_S,
    ) -> None:
        super().__init__(
            capabilities=tts.TTSCapabilities(streaming=True, aligned_transcript=True),
            sample_rate=sample_rate,
            num_channels=1,
        )
        self._server = LazyServer(server, tls=tls)
        self._model = model
        self._options = _Options(voice, language, sample_rate, exaggeration, guidance_weight, seed)
        self._timeout_s = timeout_s
        self._synthesis: Synthesis | None = None

    @property
    def model(self) -> str:
        """Name of the synthesizer, as it was given."""
        return self._model

    @property
    def provider(self) -> str:
        """Whose synthesizer it is."""
        return "Parley"

    def update_options(self, *, voice: str | None = None, language: str | None = None) -> None:
        """Speak otherwise from the next answer on; None: as before."""
        self._options = dataclasses.replace(
            self._options,
            voice=self._options.voice if voice is None else voice,
            language=self._options.language if language is None else language,
        )

    def synthesize(
        self, text: str, *, conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS
    ) -> ChunkedStream:
        """Speak a whole text."""
        return ChunkedStream(self, text, conn_options)

    def stream(self, *, conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS) -> SynthesizeStream:
        """Speak a text while it is being written."""
        return SynthesizeStream(self, conn_options)

    async def begin(self) -> Speech:
        """Begin a text.

        Raises:
            ConnectError: the server cannot be reached.
        """
        server = await self._server.get()
        if self._synthesis is None:
            self._synthesis = Synthesis(server, model=self._model, timeout_s=self._timeout_s)
        return self._synthesis.begin(**dataclasses.asdict(self._options))

    async def aclose(self) -> None:
        """Stop what is being said and close the connection."""
        if self._synthesis is not None:
            await self._synthesis.close()
            self._synthesis = None
        await self._server.close()


class ChunkedStream(tts.ChunkedStream):
    """A whole text that is being spoken; closing it early stops the synthesizer."""

    def __init__(self, owner: TTS, text: str, conn_options: APIConnectOptions) -> None:
        super().__init__(tts=owner, input_text=text, conn_options=conn_options)
        self._owner = owner

    async def _run(self, output_emitter: tts.AudioEmitter) -> None:
        output_emitter.initialize(
            request_id=utils.shortuuid(),
            sample_rate=self._owner.sample_rate,
            num_channels=1,
            mime_type="audio/pcm",
        )
        try:
            speech = await self._owner.begin()
            speech.add(self._input_text)
            speech.finish()
            await _pass_on(speech, output_emitter)
        except ParleyError as error:
            raise api_error(error, again=output_emitter.pushed_duration() == 0) from error
        output_emitter.flush()


class SynthesizeStream(tts.SynthesizeStream):
    """A text that is spoken while it is being written; closing it early stops the synthesizer."""

    def __init__(self, owner: TTS, conn_options: APIConnectOptions) -> None:
        super().__init__(tts=owner, conn_options=conn_options)
        self._owner = owner

    async def _run(self, output_emitter: tts.AudioEmitter) -> None:
        request_id = utils.shortuuid()
        output_emitter.initialize(
            request_id=request_id,
            sample_rate=self._owner.sample_rate,
            num_channels=1,
            mime_type="audio/pcm",
            stream=True,
        )
        try:
            speech = await self._owner.begin()
            writing = asyncio.create_task(self._write(speech), name="text for Parley")
            try:
                output_emitter.start_segment(segment_id=request_id)
                await _pass_on(speech, output_emitter)
                await writing
                output_emitter.end_segment()
            finally:
                await utils.aio.cancel_and_wait(writing)
        except ParleyError as error:
            raise api_error(error, again=output_emitter.pushed_duration() == 0) from error

    async def _write(self, speech: Speech) -> None:
        """Pass the text on until there is no more of it, or it is refused."""
        try:
            async for text in self._input_ch:
                if isinstance(text, str):
                    self._mark_started()
                    speech.add(text)
        finally:
            speech.finish()  # nobody else would, and who reads the audio waits for its end


async def _pass_on(speech: Speech, emitter: tts.AudioEmitter) -> None:
    """Pass on audio, and the text that is heard in it."""
    text = _Stretches(speech, emitter)
    duration_s = 0.0
    async with speech:
        async for piece in speech:
            for word in piece.words:
                text.begin(word, word.at_sample / piece.sample_rate)
            if len(piece.samples):
                emitter.push(piece.samples.tobytes())
            duration_s = (piece.offset + len(piece.samples)) / piece.sample_rate
    text.end(duration_s)


class _Stretches:
    """Tells the text in stretches, from one word to the next: together they are all of it."""

    def __init__(self, speech: Speech, emitter: tts.AudioEmitter) -> None:
        self._speech = speech
        self._emitter = emitter
        self._sent = 0
        self._began_s: float | None = None

    def begin(self, word: WordTiming, at_s: float) -> None:
        """A word begins to be heard: the stretch before it is complete."""
        if self._began_s is not None:
            self._send_words(word.start_char, at_s)
        self._began_s = at_s

    def end(self, at_s: float) -> None:
        """No word follows."""
        if self._began_s is not None:
            self._send_words(len(self._speech.text), at_s)

    def _send_words(self, until: int, at_s: float) -> None:
        text = self._speech.text[self._sent : until]
        assert self._began_s is not None
        self._emitter.push_timed_transcript(TimedString(text, start_time=self._began_s, end_time=at_s))
        self._sent = until
