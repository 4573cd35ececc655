"""Parley's recognisers as a service of Pipecat."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from loguru import logger
from pipecat.audio.utils import create_stream_resampler
from pipecat.frames.frames import (
    CancelFrame,
    EndFrame,
    Frame,
    InterimTranscriptionFrame,
    TranscriptionFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.processors.frame_processor import FrameDirection, FrameProcessorSetup
from pipecat.services.settings import STTSettings
from pipecat.services.stt_service import STTService
from pipecat.transcriptions.language import Language
from pipecat.utils.errors import ErrorCategory
from pipecat.utils.time import time_now_iso8601
from pipecat.utils.tracing.service_decorators import traced_stt
from pipecat.utils.types import assert_given, require_given

from parley.asr.messages import AsrOptions, TranscriptEvent
from parley.errors import OverloadedError, ParleyError
from parley.protocol import INPUT_SAMPLE_RATE, VadOptions
from parley.tls import TlsOptions
from parley_client.options import Backoff
from parley_stages import FinalizedEvent, Recognition
from parley_stages.server import LazyServer
from pipecat_parley.errors import category_of
from pipecat_parley.final_texts import FinalTexts, Text
from pipecat_parley.missed_audio import MissedAudio
from pipecat_parley.stt_settings import ParleySTTSettings

PARLEY_TTFS_P99 = 0.5
"""From the end of speech to its final text, with ``stop_secs=0.2`` (seconds). Measure your own server's."""
RECONNECT = Backoff(attempts=20, initial_s=0.25, max_s=4.0)
"""How a stream that broke is opened again: for about a minute."""
CHUNK_MS = 128
"""Audio of one request to the recogniser (milliseconds)."""
# Speech that Pipecat's voice activity detection does not end, for example because there is none, ends here.
_VAD = VadOptions(silence_ms=600)
# Audio that came while there was no stream is heard once there is one, as far as it reaches back (bytes).
_MISSED = 5 * INPUT_SAMPLE_RATE * 2
_LAST_TEXTS_S = 2.0
_STABLE_S = 5.0


class ParleySTTService(STTService):
    """Writes down speech with a recogniser of a Parley server.

    Interim texts come while somebody speaks. When Pipecat's voice activity detection hears the end, the
    recogniser is asked for the final text at once, and the frame is marked as finalized. A stream that
    breaks is opened again; up to five seconds of audio are kept meanwhile.

    Args:
        server: ``host:port`` of the gRPC endpoint.
        tls: how the server is spoken to by TLS; None: plain text.
        sample_rate: of the audio; None: the pipeline's. The recogniser gets 16 kHz in any case.
        vad: when the server itself takes sound for speech and silence for its end.
        settings: what to change of the defaults.
        ttfs_p99_latency: from the end of speech to its final text, which few exceed (seconds).
        chunk_ms: audio of one request to the recogniser at least (milliseconds). Less makes interim texts
            earlier, and costs the server more; the final text waits for nothing.
        reconnect: waits between attempts to open the stream, and how many there are.
        **kwargs: of Pipecat's ``STTService``.
    """

    Settings = ParleySTTSettings
    _settings: ParleySTTSettings

    def __init__(
        self,
        *,
        server: str = "127.0.0.1:8001",
        tls: TlsOptions | None = None,
        sample_rate: int | None = None,
        vad: VadOptions | None = None,
        settings: ParleySTTSettings | None = None,
        ttfs_p99_latency: float | None = PARLEY_TTFS_P99,
        chunk_ms: int = CHUNK_MS,
        reconnect: Backoff = RECONNECT,
        **kwargs: Any,
    ) -> None:
        complete = self.Settings(
            model="auto",
            language=Language.EN,
            phrases=[],
            phrase_weight=1.0,
            partial_interval_ms=240,
            lookahead_ms=None,
        )
        if settings is not None:
            complete.apply_update(settings)
        super().__init__(
            sample_rate=sample_rate, ttfs_p99_latency=ttfs_p99_latency, settings=complete, **kwargs
        )
        self._server = LazyServer(server, tls=tls)
        self._vad = vad or _VAD
        self._backoff = reconnect
        self._chunk_ms = chunk_ms
        self._resampler = create_stream_resampler()
        self._stream: Recognition | None = None
        self._opened = asyncio.Event()  # or given up
        self._open_since: float | None = None
        self._reading: asyncio.Task[None] | None = None
        self._missed = MissedAudio(_MISSED)
        self._finals = FinalTexts()

    def can_generate_metrics(self) -> bool:
        """The service measures from the end of speech to its text, and counts audio."""
        return True

    def language_to_service_language(self, language: Language) -> str | None:
        """The models know languages, not their regions."""
        return str(language.value).split("-", maxsplit=1)[0]

    # --- life -------------------------------------------------------------------------------

    async def setup(self, setup: FrameProcessorSetup) -> None:
        """Open the stream; returns when it is open, or could not be at the first attempt."""
        await super().setup(setup)
        await self._connect()

    async def stop(self, frame: EndFrame) -> None:
        """Write down what was said, then end the stream."""
        if self._stream is not None and self._reading is not None:
            self._stream.end()
            await asyncio.wait([self._reading], timeout=_LAST_TEXTS_S)
        await super().stop(frame)
        await self._disconnect()

    async def cancel(self, frame: CancelFrame) -> None:
        """End the stream at once."""
        await super().cancel(frame)
        await self._disconnect()

    async def cleanup(self) -> None:
        """End the stream and close the connection."""
        await super().cleanup()
        await self._disconnect()
        await self._server.close()

    async def _connect(self) -> None:
        self._opened.clear()
        self._reading = self.create_task(self._keep_stream(), name="stream")
        await self._opened.wait()

    async def _disconnect(self) -> None:
        reading, self._reading = self._reading, None
        if reading is not None:
            await self.cancel_task(reading)

    async def _do_reconnect(self) -> None:
        await self._disconnect()
        await self._connect()

    async def _update_settings(self, delta: STTSettings) -> dict[str, Any]:
        changed = await super()._update_settings(delta)
        if changed:
            await self._request_reconnect()
        return changed

    def _classify_error(self, exception: Exception) -> ErrorCategory | None:
        return category_of(exception)

    # --- audio in ---------------------------------------------------------------------------

    async def run_stt(self, audio: bytes) -> AsyncGenerator[Frame | None, None]:
        """Let the recogniser hear a piece of audio; its texts are pushed as they come."""
        speech = await self._resampler.resample(audio, self.sample_rate, INPUT_SAMPLE_RATE)
        try:
            self._send(speech)
        except OverloadedError as error:
            await self.push_error(f"audio is not heard: {error}", exception=error)
        except ParleyError:
            self._missed.keep(speech)  # the reader sees the same failure, reports it, and opens a new stream
        yield None

    async def process_frame(self, frame: Frame, direction: FrameDirection) -> None:
        """Ask for the final text at the end of speech."""
        await super().process_frame(frame, direction)
        if isinstance(frame, VADUserStoppedSpeakingFrame) and self._stream is not None:
            try:
                if self._stream.finalize():
                    self._finals.ask()
            except ParleyError as error:
                logger.debug(f"{self}: no final text can be asked for: {error.to_log()}")
            else:
                self.request_finalize()

    def _send(self, speech: bytes) -> None:
        if self._stream is None:
            self._missed.keep(speech)
        else:
            self._stream.send(speech)

    # --- texts out --------------------------------------------------------------------------

    async def _keep_stream(self) -> None:
        """Read the stream's events, and open another when it breaks, until it ends or there is no hope."""
        failures = 0  # in a row
        waits = list(self._backoff.waits(random.Random()))
        try:
            while True:
                self._open_since = None
                try:
                    await self._read_stream()
                except ParleyError as error:
                    failures = 1 if self._lasted() else failures + 1
                    hopeless = not error.retryable or failures > len(waits)
                    if failures == 1 or hopeless:
                        await self._report(error, hopeless=hopeless)
                    if hopeless:
                        return
                else:
                    return
                self._opened.set()
                await asyncio.sleep(waits[failures - 1])
        finally:
            self._opened.set()

    def _lasted(self) -> bool:
        """Whether the stream was open for some time, so that its end is not one of a series of failures."""
        return self._open_since is not None and time.monotonic() - self._open_since > _STABLE_S

    async def _report(self, error: ParleyError, *, hopeless: bool) -> None:
        await self._call_event_handler("on_connection_error", error.to_log())
        await self.push_error(
            f"the stream of audio failed: {error.to_log()}",
            exception=error,
            force_treat_as_permanent=hopeless,
        )

    async def _read_stream(self) -> None:
        settings = self._settings
        options = AsrOptions(
            vad=self._vad,
            language=str(settings.language),
            partial_interval_ms=assert_given(settings.partial_interval_ms),
            lookahead_ms=assert_given(settings.lookahead_ms),
            phrases=assert_given(settings.phrases),
            phrase_weight=assert_given(settings.phrase_weight),
        )
        server = await self._server.get()
        async with Recognition(
            server,
            options,
            model=require_given(settings.model, "the recogniser"),
            chunk_ms=self._chunk_ms,
        ) as stream:
            self._stream = stream
            self._open_since = time.monotonic()
            self._finals.begin()
            self._opened.set()
            await self._call_event_handler("on_connected")
            try:
                for audio in self._missed.take():
                    stream.send(audio)
                async for event in stream:
                    if isinstance(event, FinalizedEvent):
                        await self._finalized()
                    elif isinstance(event, TranscriptEvent):
                        await self._push(self._finals.heard(event))
            finally:
                self._stream = None
                await self._push(self._finals.release())
                await self._call_event_handler("on_disconnected")

    async def _finalized(self) -> None:
        if texts := self._finals.finalized():
            self.confirm_finalize()
            await self._push(texts)
            return
        # All of it was final already; Pipecat need not wait for more.
        await self.stop_ttfb_metrics()
        await self._cancel_ttfb_timeout()

    async def _push(self, texts: Sequence[Text]) -> None:
        for text in texts:
            if text.event.is_final:
                await self._push_final(text.event)
            else:
                await self._push_interim(text.event)

    async def _push_interim(self, event: TranscriptEvent) -> None:
        if event.text:
            await self.push_frame(
                InterimTranscriptionFrame(
                    event.text, self._user_id, time_now_iso8601(), self._spoken_language(), result=event
                )
            )

    async def _push_final(self, event: TranscriptEvent) -> None:
        if event.text:
            language = self._spoken_language()
            await self.emit_stt_usage_metrics()
            await self.push_frame(
                TranscriptionFrame(event.text, self._user_id, time_now_iso8601(), language, result=event)
            )
            await self._handle_transcription(event.text, is_final=True, language=language)

    @traced_stt
    async def _handle_transcription(
        self, transcript: str, is_final: bool, language: Language | None = None
    ) -> None:
        """What tracing looks at."""

    def _spoken_language(self) -> Language | None:
        try:
            return Language(str(self._settings.language))
        except ValueError:
            return None
