"""A stream of audio and what is heard in it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from livekit import rtc
from livekit.agents import APIConnectOptions, LanguageCode, stt, utils
from livekit.agents.types import TimedString

from parley.asr.messages import SpeechStartedEvent, SpeechStoppedEvent, TranscriptEvent
from parley.errors import ParleyError
from parley.protocol import INPUT_SAMPLE_RATE, Word
from parley_stages import Recognition, RecognitionEvent

from .errors import api_error

if TYPE_CHECKING:
    from .stt import STT


class SpeechStream(stt.RecognizeStream):
    """One stream of audio."""

    def __init__(self, owner: STT, language: str | None, conn_options: APIConnectOptions) -> None:
        super().__init__(stt=owner, conn_options=conn_options, sample_rate=INPUT_SAMPLE_RATE)
        self._owner = owner
        self._language = language
        self._changed = False
        self._speaking = False
        self._request_id = ""
        self._unreported_s = 0.0
        self._stopped: SpeechStoppedEvent | None = None

    def open_anew(self) -> None:
        """The options have changed: take them over at the next pause."""
        self._changed = True

    async def _run(self) -> None:
        began = time.monotonic()
        offset_s = self.start_time_offset
        try:
            while not await self._listen(offset_s + time.monotonic() - began):
                pass
        except ParleyError as error:
            raise api_error(error, request_id=self._request_id) from error

    async def _listen(self, offset_s: float) -> bool:
        """One stream of the server's; True: no more audio comes.

        Args:
            offset_s: when it begins, in seconds of the session.
        """
        self._changed = False
        model, options = self._owner.options(self._language)
        self._request_id = utils.shortuuid()
        async with Recognition(await self._owner.server.get(), options, model=model) as stream:
            self.start_time = time.time()
            sending = asyncio.create_task(self._send_audio(stream), name="audio for Parley")
            try:
                async for event in stream:
                    self._send_event(event, options.language, offset_s)
            finally:
                self._break_off()
                await utils.aio.cancel_and_wait(sending)
        self._report_usage()
        return sending.result()

    async def _send_audio(self, stream: Recognition) -> bool:
        """Pass the audio on; True: there is no more, False: the options have changed."""
        try:
            async for item in self._input_ch:
                if isinstance(item, rtc.AudioFrame):
                    await stream.send_all(bytes(item.data))
                    self._unreported_s += item.duration
                else:
                    stream.finalize()
                if self._changed and not self._speaking:
                    return False
        finally:
            stream.end()
        return True

    # --- events -----------------------------------------------------------------------------

    def _send_event(self, event: RecognitionEvent, language: str, offset_s: float) -> None:
        if isinstance(event, SpeechStartedEvent):
            self._speaking = True
            began = self.start_time + event.at_ms / 1000
            self._emit(stt.SpeechEventType.START_OF_SPEECH, speech_start_time=began)
        elif isinstance(event, SpeechStoppedEvent):
            self._speaking = False
            self._stopped = event
        elif isinstance(event, TranscriptEvent):
            self._send_transcript(event, language, offset_s)

    def _send_transcript(self, event: TranscriptEvent, language: str, offset_s: float) -> None:
        kind = (
            stt.SpeechEventType.FINAL_TRANSCRIPT if event.is_final else stt.SpeechEventType.INTERIM_TRANSCRIPT
        )
        if event.text:
            heard = speech_data(
                event.text,
                event.words,
                event.confidence,
                language=language,
                offset_s=offset_s,
            )
            self._emit(kind, alternatives=[heard])
        if event.is_final:
            self._report_usage()
            self._tell_end()

    def _tell_end(self) -> None:
        """After the final text, so that a turn that ends here has its words."""
        if self._stopped is not None:
            ended = self.start_time + self._stopped.at_ms / 1000
            self._stopped = None
            self._emit(stt.SpeechEventType.END_OF_SPEECH, speech_end_time=ended)

    def _break_off(self) -> None:
        """The stream is over: so is speech whose end it has not told, or whose final text never came."""
        if self._stopped is not None:
            self._tell_end()
        elif self._speaking:
            self._emit(stt.SpeechEventType.END_OF_SPEECH, speech_end_time=time.time())
        self._speaking = False

    def _report_usage(self) -> None:
        used, self._unreported_s = self._unreported_s, 0.0
        if used:
            usage = stt.RecognitionUsage(audio_duration=used)
            self._emit(stt.SpeechEventType.RECOGNITION_USAGE, recognition_usage=usage)

    def _emit(
        self,
        kind: stt.SpeechEventType,
        *,
        alternatives: list[stt.SpeechData] | None = None,
        recognition_usage: stt.RecognitionUsage | None = None,
        speech_start_time: float | None = None,
        speech_end_time: float | None = None,
    ) -> None:
        self._event_ch.send_nowait(
            stt.SpeechEvent(
                kind,
                request_id=self._request_id,
                alternatives=alternatives or [],
                recognition_usage=recognition_usage,
                speech_start_time=speech_start_time,
                speech_end_time=speech_end_time,
            )
        )


def speech_data(
    text: str, words: Sequence[Word], confidence: float, *, language: str, offset_s: float = 0.0
) -> stt.SpeechData:
    """A text with the times of its words.

    Args:
        text: what was said.
        words: of the text; times are milliseconds of the stream or recording.
        confidence: 0 to 1.
        language: that was spoken.
        offset_s: when the stream began, in seconds of the session.
    """
    timed = [
        TimedString(
            word.text,
            start_time=word.start_ms / 1000 + offset_s,
            end_time=word.end_ms / 1000 + offset_s,
            confidence=word.confidence,
            start_time_offset=offset_s,
        )
        for word in words
    ]
    return stt.SpeechData(
        language=LanguageCode(language),
        text=text,
        start_time=words[0].start_ms / 1000 + offset_s if words else 0.0,
        end_time=words[-1].end_ms / 1000 + offset_s if words else 0.0,
        confidence=confidence,
        words=timed or None,
    )
