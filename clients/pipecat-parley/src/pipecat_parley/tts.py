"""Parley's synthesizers as a service of Pipecat."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

from pipecat.frames.frames import CancelFrame, ErrorFrame, Frame, TTSAudioRawFrame, TTSStoppedFrame
from pipecat.services.settings import TTSSettings
from pipecat.services.tts_service import TextAggregationMode, TTSService
from pipecat.transcriptions.language import Language
from pipecat.utils.errors import ErrorCategory
from pipecat.utils.tracing.service_decorators import traced_tts
from pipecat.utils.types import NOT_GIVEN, NotGiven, assert_given, require_given

from parley.errors import ParleyError
from parley.tls import TlsOptions
from parley_stages import Speech, Synthesis
from parley_stages.server import LazyServer
from pipecat_parley.errors import category_of

_TIMEOUT_S = 20.0


@dataclass
class ParleyTTSSettings(TTSSettings):
    """What can be changed while the pipeline runs; it counts from the next answer on.

    ``model`` is ``espeak``, ``piper``, ``kokoro`` or ``chatterbox``, several with commas, or ``auto``; see
    :class:`parley_stages.Synthesis`.

    Parameters:
        exaggeration: of emotion, 0 to 2, where the model can; None: its default.
        guidance_weight: how close the model keeps to the voice, 0 to 1; None: its default.
        seed: to say the same in the same way again; None: never.
    """

    exaggeration: float | NotGiven | None = field(default_factory=lambda: NOT_GIVEN)
    guidance_weight: float | NotGiven | None = field(default_factory=lambda: NOT_GIVEN)
    seed: int | NotGiven | None = field(default_factory=lambda: NOT_GIVEN)


@dataclass
class _Spoken:
    """What is being said in one audio context."""

    speech: Speech
    reading: asyncio.Task[None]


class ParleyTTSService(TTSService):
    """Speaks with a synthesizer of a Parley server.

    Text is spoken clause by clause while the language model still writes, audio comes with the time of
    every word, and an interruption stops the synthesizer at once.

    Args:
        server: ``host:port`` of the gRPC endpoint.
        tls: how the server is spoken to by TLS; None: plain text.
        sample_rate: of the audio; None: the pipeline's.
        settings: what to change of the defaults.
        text_aggregation_mode: who cuts the text into pieces that can be spoken: Parley (``TOKEN``, the
            quicker one), or Pipecat into sentences, which text filters and transforms may need.
        timeout_s: seconds until the first audio, or the next, is overdue.
        **kwargs: of Pipecat's ``TTSService``.
    """

    Settings = ParleyTTSSettings
    _settings: ParleyTTSSettings

    def __init__(
        self,
        *,
        server: str = "127.0.0.1:8001",
        tls: TlsOptions | None = None,
        sample_rate: int | None = None,
        settings: ParleyTTSSettings | None = None,
        text_aggregation_mode: TextAggregationMode = TextAggregationMode.TOKEN,
        timeout_s: float = _TIMEOUT_S,
        **kwargs: Any,
    ) -> None:
        complete = self.Settings(
            model="auto",
            voice=None,
            language=Language.EN,
            exaggeration=None,
            guidance_weight=None,
            seed=None,
        )
        if settings is not None:
            complete.apply_update(settings)
        # Failures are told as such; a server that comes back, or text without a word in it, is none.
        kwargs.setdefault("max_consecutive_zero_audio_contexts", 0)
        super().__init__(
            text_aggregation_mode=text_aggregation_mode,
            append_trailing_space=True,  # what separates sentences
            push_text_frames=False,  # the words come with their times
            push_start_frame=True,
            stop_frame_timeout_s=timeout_s + 1.0,  # every context is ended here; this one is a last resort
            sample_rate=sample_rate,
            settings=complete,
            **kwargs,
        )
        self._server = LazyServer(server, tls=tls)
        self._timeout_s = timeout_s
        self._synthesis: Synthesis | None = None
        self._spoken: dict[str, _Spoken] = {}

    def can_generate_metrics(self) -> bool:
        """The service measures how long the first audio takes, and counts characters."""
        return True

    @property
    def supports_processing_metrics(self) -> bool:
        """Audio comes after the text was taken, so there is nothing to measure around that."""
        return False

    # --- life -------------------------------------------------------------------------------

    async def cancel(self, frame: CancelFrame) -> None:
        """Stop speaking at once."""
        await super().cancel(frame)
        await self._stop_all()

    async def cleanup(self) -> None:
        """Stop speaking and close the connection."""
        await super().cleanup()
        await self._stop_all()
        await self._forget_model()
        await self._server.close()

    async def _update_settings(self, delta: TTSSettings) -> dict[str, Any]:
        changed = await super()._update_settings(delta)
        if "model" in changed:
            await self._stop_all()
            await self._forget_model()
        return changed

    async def _stop_all(self) -> None:
        for context_id in list(self._spoken):
            await self._silence(context_id)

    async def _silence(self, context_id: str) -> None:
        spoken = self._spoken.pop(context_id, None)
        if spoken is not None:
            spoken.speech.stop()
            await self.cancel_task(spoken.reading)

    async def _forget_model(self) -> None:
        synthesis, self._synthesis = self._synthesis, None
        if synthesis is not None:
            await synthesis.close()

    async def _model(self) -> Synthesis:
        server = await self._server.get()
        if self._synthesis is None:
            self._synthesis = Synthesis(
                server,
                model=require_given(self._settings.model, "the synthesizer"),
                timeout_s=self._timeout_s,
            )
        return self._synthesis

    def _classify_error(self, exception: Exception) -> ErrorCategory | None:
        return category_of(exception)

    # --- text in ----------------------------------------------------------------------------

    @traced_tts
    async def run_tts(self, text: str, context_id: str) -> AsyncGenerator[Frame | None, None]:
        """Say more; the audio is appended to the context as it comes."""
        try:
            if context_id not in self._spoken:
                await self._begin(context_id)
            self._spoken[context_id].speech.add(text)
        except ParleyError as error:
            yield ErrorFrame(f"nothing is said: {error.to_log()}", exception=error, processor=self)
            await self._silence(context_id)
            await self._end_context(context_id)  # nothing else would, and what follows waits for its end
            return
        await self.start_tts_usage_metrics(text)
        yield None

    async def flush_audio(self, context_id: str | None = None) -> None:
        """No more text comes in a context: the rest of it is spoken."""
        spoken = self._spoken.get(context_id or self.get_active_audio_context_id() or "")
        if spoken is not None:
            spoken.speech.finish()

    async def on_audio_context_interrupted(self, context_id: str) -> None:
        """Tell the synthesizer to stop."""
        await self._silence(context_id)

    async def _begin(self, context_id: str) -> None:
        settings = self._settings
        speech = (await self._model()).begin(
            voice=assert_given(settings.voice),
            language=str(settings.language),
            sample_rate=self.sample_rate,
            exaggeration=assert_given(settings.exaggeration),
            guidance_weight=assert_given(settings.guidance_weight),
            seed=assert_given(settings.seed),
        )
        reading = self.create_task(self._read(context_id, speech), name=f"speech {context_id}")
        self._spoken[context_id] = _Spoken(speech, reading)

    # --- audio out --------------------------------------------------------------------------

    async def _read(self, context_id: str, speech: Speech) -> None:
        """Pass the audio on, until there is no more of it."""
        try:
            async with speech:
                async for piece in speech:
                    words = [(word.text, word.at_sample / piece.sample_rate) for word in piece.words]
                    audio = piece.samples.tobytes()
                    if audio:
                        frame = TTSAudioRawFrame(audio, piece.sample_rate, 1, context_id=context_id)
                        await self.append_to_audio_context(context_id, frame)
                    await self.add_word_timestamps(words, context_id)
        except ParleyError as error:
            await self.push_error(f"speech broke off: {error.to_log()}", exception=error)
        del self._spoken[context_id]  # a stopped one was taken away before, and its task cancelled
        await self._end_context(context_id)

    async def _end_context(self, context_id: str) -> None:
        if self.audio_context_available(context_id):
            await self.append_to_audio_context(context_id, TTSStoppedFrame(context_id=context_id))
            await self.remove_audio_context(context_id)
