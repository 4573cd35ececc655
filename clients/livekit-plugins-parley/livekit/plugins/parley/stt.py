"""Parley's recognisers for LiveKit."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Sequence
from typing import Never

import numpy as np
from livekit import rtc
from livekit.agents import (
    DEFAULT_API_CONNECT_OPTIONS,
    NOT_GIVEN,
    APIConnectOptions,
    NotGivenOr,
    stt,
    utils,
)
from numpy.typing import NDArray

from parley.asr.messages import AsrOptions, TranscribeRequest
from parley.errors import ParleyError
from parley.protocol import INPUT_SAMPLE_RATE, VadOptions
from parley.tls import TlsOptions
from parley_stages import Transcriber
from parley_stages.server import LazyServer

from .errors import api_error
from .speech_stream import SpeechStream, speech_data

# Speech that nobody flushes, because the session has no voice activity detection, ends here.
_VAD = VadOptions(silence_ms=500)
_CLIP_S = 300.0


@dataclasses.dataclass(frozen=True)
class _Options:
    model: str
    language: str
    phrases: tuple[str, ...]
    phrase_weight: float
    partial_interval_ms: int
    vad: VadOptions


class STT(stt.STT[Never]):
    """Speech to text of a recogniser of a Parley server.

    Interim texts come while somebody speaks. A flush, which sessions ask for at the end of speech, brings
    the final text at once. Whole recordings go to the server's model for them.

    Args:
        server: ``host:port`` of the gRPC endpoint.
        tls: how the server is spoken to by TLS; None: plain text.
        model: ``parakeet_tdt``, ``nemotron_streaming``, ``moonshine``, ``whisper`` or ``sherpa_onnx``;
            ``auto``: that of
            the server.
        language: that is spoken.
        phrases: names and words that are expected; the session's keyterms are added.
        phrase_weight: how much, 0 to 10.
        partial_interval_ms: new audio between two interim texts (milliseconds). 0: no interim texts.
        vad: when the server itself takes sound for speech and silence for its end.
    """

    def __init__(
        self,
        *,
        server: str = "127.0.0.1:8001",
        tls: TlsOptions | None = None,
        model: str = "auto",
        language: str = "en",
        phrases: Sequence[str] = (),
        phrase_weight: float = 1.0,
        partial_interval_ms: int = 240,
        vad: VadOptions | None = None,
    ) -> None:
        super().__init__(
            capabilities=stt.STTCapabilities(
                streaming=True,
                interim_results=partial_interval_ms > 0,
                aligned_transcript="word",
                keyterms=True,
                manual_flush=True,
            )
        )
        self.server = LazyServer(server, tls=tls)
        self._options = _Options(
            model, language, tuple(phrases), phrase_weight, partial_interval_ms, vad or _VAD
        )
        self._keyterms: tuple[str, ...] = ()
        self._streams: weakref.WeakSet[SpeechStream] = weakref.WeakSet()

    @property
    def model(self) -> str:
        """Name of the recogniser."""
        return self._options.model

    @property
    def provider(self) -> str:
        """Whose recogniser it is."""
        return "Parley"

    @property
    def phrases(self) -> list[str]:
        """All that are expected."""
        return list(dict.fromkeys([*self._options.phrases, *self._keyterms]))

    def update_options(
        self, *, language: NotGivenOr[str] = NOT_GIVEN, phrases: NotGivenOr[Sequence[str]] = NOT_GIVEN
    ) -> None:
        """Listen otherwise, from the next pause on."""
        if utils.is_given(language):
            self._options = dataclasses.replace(self._options, language=language)
        if utils.is_given(phrases):
            self._options = dataclasses.replace(self._options, phrases=tuple(phrases))
        for stream in self._streams:
            stream.open_anew()

    def _update_session_keyterms(self, keyterms: list[str]) -> None:
        if tuple(keyterms) != self._keyterms:
            self._keyterms = tuple(keyterms)
            self.update_options()

    def stream(
        self,
        *,
        language: NotGivenOr[str] = NOT_GIVEN,
        conn_options: APIConnectOptions = DEFAULT_API_CONNECT_OPTIONS,
    ) -> SpeechStream:
        """Listen to a stream of audio."""
        stream = SpeechStream(self, language or None, conn_options)
        self._streams.add(stream)
        return stream

    async def _recognize_impl(
        self,
        buffer: utils.AudioBuffer,
        *,
        language: NotGivenOr[str] = NOT_GIVEN,
        conn_options: APIConnectOptions,
    ) -> stt.SpeechEvent:
        del conn_options  # how often to try again; a long recording takes its time
        spoken = language or self._options.language
        request = TranscribeRequest(
            language=spoken, phrases=self.phrases, phrase_weight=self._options.phrase_weight
        )
        try:
            async with Transcriber(await self.server.get(), timeout_s=_CLIP_S) as transcriber:
                reply = await transcriber.transcribe(_samples(buffer), request)
        except ParleyError as error:
            raise api_error(error) from error
        heard = speech_data(reply.text, reply.words, reply.confidence, language=spoken)
        return stt.SpeechEvent(
            stt.SpeechEventType.FINAL_TRANSCRIPT, request_id=utils.shortuuid(), alternatives=[heard]
        )

    def options(self, language: str | None) -> tuple[str, AsrOptions]:
        """The model, and what to ask it for."""
        chosen = self._options
        return chosen.model, AsrOptions(
            vad=chosen.vad,
            language=language or chosen.language,
            partial_interval_ms=chosen.partial_interval_ms,
            phrases=self.phrases,
            phrase_weight=chosen.phrase_weight,
        )

    async def aclose(self) -> None:
        """End all streams and close the connection."""
        for stream in list(self._streams):
            await stream.aclose()
        await self.server.close()


def _samples(buffer: utils.AudioBuffer) -> NDArray[np.int16]:
    """A recording as i16 ``[n]``, 16 kHz mono."""
    frame = rtc.combine_audio_frames(buffer)
    if frame.sample_rate == INPUT_SAMPLE_RATE and frame.num_channels == 1:
        return np.frombuffer(frame.data, np.int16)
    mono = np.frombuffer(frame.data, np.int16).reshape(-1, frame.num_channels).mean(axis=1).astype(np.int16)
    resampler = rtc.AudioResampler(
        frame.sample_rate, INPUT_SAMPLE_RATE, quality=rtc.AudioResamplerQuality.HIGH
    )
    frames = [*resampler.push(bytearray(mono.tobytes())), *resampler.flush()]
    return np.concatenate([np.frombuffer(part.data, np.int16) for part in frames])
