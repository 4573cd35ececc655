"""A recording on its way to a transcript, without any model call of its own.

First the voice activity network reads it, piece by piece, and leaves the *stretches* with speech.
Then each stretch is encoded, in windows if it is long, and decoded, the decoder's
state going on from window to window. Every stretch begins with a new state, as every utterance
of a call does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from parley.asr.checkpoint import Checkpoint, ParakeetConfig
from parley.asr.decoding.boosting import compile_phrases
from parley.asr.decoding.greedy import Tokens
from parley.asr.decoding.words import (
    alternatives_of,
    combine_alternatives,
    confidence_of,
    text_of,
    words_of,
)
from parley.asr.features.log_mel import LogMel, LogMelStream
from parley.asr.messages import TranscribeReply, TranscribeRequest
from parley.asr.offline.networks import DecodedPiece, RowState
from parley.asr.pipeline.segmentation import (
    FULL_SCALE,
    PER_MS,
    Detector,
    StreamSegmenter,
    UtteranceAudio,
    UtteranceBegan,
    UtteranceEnded,
    detect,
)
from parley.errors import ModelLoadingError, ParleyError
from parley.protocol import Alternative, VadOptions, Word

LISTEN = 160_000
"""Samples that the voice activity network hears at once: 10 s."""
LEAD_MS = 96
"""Silence that is put before a recording, as a call has it before the first word: without it a word with
which the recording begins is lost. Three windows of the voice activity network."""


class SpeechSearch:
    """Where speech is in a recording, up to the processed position."""

    def __init__(self, audio: NDArray[np.int16], vad: VadOptions | None, preroll_ms: int) -> None:
        """Begin.

        Args:
            audio: i16 ``[n]``, 16 kHz mono.
            vad: which pauses part stretches; None: all of it is one stretch.
            preroll_ms: audio before the onset that belongs to a stretch too.
        """
        self._is_searched = vad is not None
        self.lead_ms = LEAD_MS if self._is_searched else 0
        """Silence before the recording."""
        self.audio = np.concatenate([np.zeros(self.lead_ms * PER_MS, np.int16), audio])
        """The recording with that silence."""
        self.stretches: list[tuple[int, int]] = []
        """Where speech begins and ends: samples of :attr:`audio`."""
        self._spoken = (0, 0)
        self._track: StreamSegmenter | None = None
        if vad is None:
            self.stretches.append((0, len(self.audio)))
        else:
            self._track = StreamSegmenter(
                vad, preroll_ms=preroll_ms, max_utterance_ms=len(self.audio) // PER_MS + 1
            )

    @property
    def track(self) -> StreamSegmenter | None:
        """State of the VAD network; None: all audio is processed."""
        return self._track

    @property
    def speech_ms(self) -> int | None:
        """Length of the stretches within the recording (milliseconds); None: nothing is searched."""
        if not self._is_searched:
            return None
        lead = self.lead_ms * PER_MS
        return sum(end - max(start, lead) for start, end in self.stretches if end > lead) // PER_MS

    def listen(self) -> NDArray[np.float32]:
        """Give the next piece to the voice activity network: its windows, f32 ``[W, 512]``."""
        assert self._track is not None
        begin = self._track.received
        piece = self.audio[begin : begin + LISTEN]
        return self._track.accept(piece, flush=begin + len(piece) == len(self.audio))

    def detected(self, probabilities: NDArray[np.float32]) -> None:
        """Take the probabilities of what :meth:`listen` gave."""
        assert self._track is not None
        for event in self._track.detected(probabilities):
            if isinstance(event, UtteranceBegan):
                self._spoken = (event.start, event.start)
            elif isinstance(event, UtteranceAudio):
                self._spoken = (self._spoken[0], self._spoken[1] + len(event.samples))
            elif isinstance(event, UtteranceEnded):
                self.stretches.append(self._spoken)
        if self._track.received == len(self.audio):
            self._track = None


class Searched(Protocol):
    """A recording that is searched for speech."""

    search: SpeechSearch
    error: ParleyError | None


def search_together(recordings: Sequence[Searched], detector: Detector) -> None:
    """Give the next piece of each recording to the voice activity network: one call for all of them.

    Args:
        recordings: those that are searched to their end are left out. A failed call sets ``error`` of the
            others.
        detector: the network.
    """
    hearing = [recording for recording in recordings if recording.search.track is not None]
    if not hearing:
        return
    tracks = [recording.search.track for recording in hearing if recording.search.track is not None]
    windows = [recording.search.listen() for recording in hearing]
    try:
        probabilities = detect(tracks, windows, detector)
    except ParleyError as error:
        for recording in hearing:
            recording.error = error
        return
    for recording, own in zip(hearing, probabilities, strict=True):
        recording.search.detected(own)


@dataclass(frozen=True)
class RecordingLimits:
    """How a recording is cut into what is recognised at once."""

    plan: WindowPlan
    vad: VadOptions | None
    """Which pauses part stretches; None: the whole recording is one stretch."""
    preroll_ms: int = 320
    """Audio before the onset that belongs to a stretch too, so that no soft first sound is lost."""


@dataclass
class Stretch:
    """A part of a recording with speech."""

    mel: LogMel
    samples: NDArray[np.int16]
    offset_ms: int
    """Where it begins in the recording; negative in the silence before it."""
    windows: deque[EncoderWindow]
    state: RowState | None = None
    """The decoder's state after the windows so far."""
    _stream: LogMelStream = field(init=False)
    _frames: NDArray[np.float32] = field(init=False)
    _first: int = 0
    _heard: int = 0
    _tokens: list[Tokens] = field(default_factory=list)
    _decoded: int = 0
    _readings: list[tuple[list[int], float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Start the front end."""
        self._stream = LogMelStream(self.mel)
        self._frames = np.zeros((self.mel.bands, 0), np.float32)

    def features(self, window: EncoderWindow) -> NDArray[np.float32]:
        """The window's features, normalised: f32 ``[bands, T]``; windows must be asked for in order.

        A stretch without a single frame gives one frame of silence.
        """
        # A frame needs audio up to the end of its FFT, which is centred on it.
        needed = min(window.end * self.mel.hop + self.mel.n_fft, len(self.samples))
        new = [self._stream.push(self.samples[self._heard : needed].astype(np.float32) / FULL_SCALE)]
        if needed == len(self.samples) > self._heard:
            new.append(self._stream.finish())
        self._heard = needed
        drop = window.start - self._first
        self._frames = np.concatenate([self._frames[:, drop:], *new], axis=1)
        self._first = window.start
        frames = self.mel.normalized(self._frames[:, : window.end - window.start])
        return frames if frames.shape[1] else np.zeros((self.mel.bands, 1), np.float32)

    def decoded(self, decoded: DecodedPiece, frames: int, state: RowState) -> None:
        """Take what the next ``frames`` encoded frames said, and the decoder's state after them."""
        tokens = decoded.tokens
        before = [token for piece in self._tokens for token in piece.ids.tolist()]
        self._readings = [(before + ids, score) for ids, score in decoded.alternatives]
        self._tokens.append(
            Tokens(tokens.ids, tokens.frames + self._decoded, tokens.durations, tokens.confidences)
        )
        self._decoded += frames
        self.state = state

    def words(self, checkpoint: Checkpoint) -> list[Word]:
        """What was said in it so far."""
        if not self._tokens:
            return []
        columns = zip(*((t.ids, t.frames, t.durations, t.confidences) for t in self._tokens), strict=True)
        return words_of(Tokens(*map(np.concatenate, columns)), checkpoint, offset_ms=self.offset_ms)

    def alternatives(self, checkpoint: Checkpoint, limit: int) -> list[Alternative]:
        """Its best readings, when it is decoded to its end."""
        return alternatives_of(self._readings, checkpoint, limit)


class Recording:
    """The recording, and how far it has come."""

    def __init__(
        self,
        audio: NDArray[np.int16],
        request: TranscribeRequest,
        checkpoint: Checkpoint,
        mel: LogMel,
        limits: RecordingLimits,
    ) -> None:
        """Begin.

        Args:
            audio: i16 ``[n]``, 16 kHz mono.
            request: of the caller.
            checkpoint: vocabulary and frame length.
            mel: the front end, shared by all recordings.
            limits: the server's.

        Raises:
            InvalidMessageError: the phrases cannot be used.
        """
        self.request = request
        self.boosting = compile_phrases(request.phrases, request.phrase_weight, checkpoint.vocabulary)
        self.encoder_ms = self.decoder_ms = 0.0
        self.error: ParleyError | None = None
        """Why it cannot be finished."""
        self.search = SpeechSearch(audio, limits.vad, limits.preroll_ms)
        """Finds the stretches."""
        self.samples = len(audio)
        """Length of the recording."""
        self._checkpoint = checkpoint
        self._mel = mel
        self._plan = limits.plan
        self._stretches: list[Stretch] = []
        self._current = 0

    @property
    def done(self) -> bool:
        """Whether all of it is recognised."""
        return self.search.track is None and self._current == len(self.search.stretches)

    def next_window(self) -> tuple[Stretch, EncoderWindow] | None:
        """The next window to encode, in order; None when there is none (yet)."""
        while self.search.track is None and self._current < len(self.search.stretches):
            if self._current == len(self._stretches):
                self._stretches.append(self._stretch(*self.search.stretches[self._current]))
            stretch = self._stretches[self._current]
            if stretch.windows:
                return stretch, stretch.windows[0]
            self._current += 1
        return None

    def reply(self) -> TranscribeReply:
        """The transcript of a recording that is :attr:`done`."""
        words = [word for stretch in self._stretches for word in stretch.words(self._checkpoint)]
        reply = make_reply(
            words,
            self._alternatives(),
            self.request,
            duration_ms=self.samples // PER_MS,
            speech_ms=self.search.speech_ms,
        )
        return msgspec.structs.replace(
            reply, encoder_ms=round(self.encoder_ms, 3), decoder_ms=round(self.decoder_ms, 3)
        )

    def _alternatives(self) -> list[Alternative]:
        limit = self.request.nbest
        if not limit:
            return []
        parts = [stretch.alternatives(self._checkpoint, limit) for stretch in self._stretches]
        return combine_alternatives(parts, limit)

    def _stretch(self, start: int, end: int) -> Stretch:
        return Stretch(
            self._mel,
            self.search.audio[start:end],
            start // PER_MS - self.search.lead_ms,
            deque(self._plan.windows((end - start) // self._mel.hop)),
        )


def make_reply(
    words: Sequence[Word],
    alternatives: list[Alternative],
    request: TranscribeRequest,
    *,
    duration_ms: int,
    speech_ms: int | None,
) -> TranscribeReply:
    """The transcript of a recording; times in the silence that was put before it become 0."""
    inside = [
        msgspec.structs.replace(word, start_ms=max(word.start_ms, 0), end_ms=max(word.end_ms, 0))
        for word in words
    ]
    return TranscribeReply(
        text=text_of(inside),
        confidence=confidence_of(inside),
        words=inside if request.words else [],
        alternatives=alternatives,
        duration_ms=duration_ms,
        speech_ms=speech_ms,
    )


@dataclass(frozen=True)
class EncoderWindow:
    """One run of the encoder, over feature frames ``start`` to ``end`` of a stretch."""

    start: int
    end: int
    first: int
    """Encoded frame of this run from which on they are kept."""
    kept: int | None
    """How many are kept; None: all that follow."""


@dataclass(frozen=True)
class WindowPlan:
    """Sizes in feature frames, all of them whole encoder frames."""

    chunk: int
    left: int
    right: int
    subsampling: int

    @classmethod
    def of(cls, config: ParakeetConfig, *, window_ms: int, left_ms: int, right_ms: int) -> WindowPlan:
        """Plan windows of at most ``window_ms``, of which the contexts are a part.

        Raises:
            ModelLoadingError: nothing would be left between the contexts.
        """
        left, right, whole = (
            milliseconds // config.frame_ms * config.subsampling_factor
            for milliseconds in (left_ms, right_ms, window_ms)
        )
        chunk = whole - left - right
        if chunk < config.subsampling_factor:
            raise ModelLoadingError(
                f"window_ms is {window_ms}; it must leave {config.frame_ms} ms beside contexts of "
                f"{left_ms} and {right_ms} ms"
            )
        return cls(chunk, left, right, config.subsampling_factor)

    @property
    def longest(self) -> int:
        """Feature frames of the longest window."""
        return self.left + self.chunk + self.right

    def windows(self, frames: int) -> list[EncoderWindow]:
        """The windows of a stretch of ``frames`` feature frames; one if it fits into one."""
        if frames <= self.longest:
            return [EncoderWindow(0, frames, 0, None)]
        windows: list[EncoderWindow] = []
        position = 0
        while frames - position > self.chunk + self.right:
            windows.append(self._window(position, self.chunk + self.right, self.chunk))
            position += self.chunk
        windows.append(self._window(position, frames - position, None))
        return windows

    def _window(self, position: int, ahead: int, kept: int | None) -> EncoderWindow:
        start = max(position - self.left, 0)
        return EncoderWindow(
            start,
            position + ahead,
            (position - start) // self.subsampling,
            None if kept is None else kept // self.subsampling,
        )
