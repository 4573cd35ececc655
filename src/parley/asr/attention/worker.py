"""Audio to text for all streams: one thread, final texts before partial ones, each in order of arrival."""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from parley.asr.attention.model import AttentionModel, ReadOptions, TextLimits
from parley.asr.decoding.boosting import compile_phrases
from parley.asr.pipeline.segmentation import FULL_SCALE, PER_MS
from parley.errors import (
    InferenceError,
    ModelUnavailableError,
    OverloadedError,
    ParleyError,
    ShuttingDownError,
    UnsupportedLanguageError,
)
from parley.runtime.onnx import Stop, StoppedError

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RecognizedText:
    """What was said in a stretch of audio; nothing if ``text`` is empty."""

    text: str
    confidence: float
    """0-1; 0 where there is no text."""
    encoder_ms: float = 0.0
    decoder_ms: float = 0.0
    """What it took to read."""
    language: str = ""
    """Empty where there is no text."""


NO_TEXT = RecognizedText("", 0.0)


def text_of(pieces: Iterable[RecognizedText]) -> str:
    """The texts of pieces that follow one another."""
    return " ".join(piece.text for piece in pieces if piece.text)


def confidence_of(pieces: Sequence[RecognizedText]) -> float:
    """Their confidence, that of each counted as often as it has words; 0 where there are none."""
    words = [len(piece.text.split()) for piece in pieces]
    total = sum(count * piece.confidence for count, piece in zip(words, pieces, strict=True))
    return round(total / sum(words), 4) if sum(words) else 0.0


class Reader:
    """Reads one stretch at a time; any thread may use it.

    Args:
        model: reads.
        limits: which texts are taken for speech; None: the model's own.
    """

    def __init__(self, model: AttentionModel, limits: TextLimits | None = None) -> None:
        self._model = model
        self._spelled = model.vocabulary.spelled
        self._limits = limits or model.limits

    @property
    def languages(self) -> tuple[str, ...]:
        """Of the model."""
        return tuple(self._model.prompt.languages)

    @property
    def longest_ms(self) -> int:
        """The most audio that can be read at once."""
        return self._model.longest // PER_MS

    def warm_up(self) -> None:
        """Read silence once, so that no caller waits for what only the first run does.

        Raises:
            InferenceError: the networks cannot run at all.
        """
        self.read(np.zeros(16_000, np.int16), ReadOptions(self.languages[0]))

    def options(self, language: str, phrases: list[str], weight: float) -> ReadOptions:
        """The options of a stream or a recording.

        Raises:
            UnsupportedLanguageError: the model does not understand the language.
            InvalidMessageError: see :func:`parley.asr.decoding.boosting.compile_phrases`.
        """
        if language not in self._model.prompt.languages:
            raise UnsupportedLanguageError(f"language {language!r} is not one of the model's")
        return ReadOptions(language, compile_phrases(phrases, weight, self._spelled, cased=True))

    def read(
        self,
        audio: NDArray[np.int16],
        options: ReadOptions,
        stop: Stop | None = None,
    ) -> RecognizedText:
        """Read a stretch of at most :attr:`longest_ms`: i16 ``[n]``, 16 kHz mono.

        Args:
            audio: the stretch.
            options: language and phrases.
            stop: ends it from another thread, within the encoder's next operator.

        Raises:
            InferenceError: the networks failed.
            StoppedError: it was stopped.
        """
        samples = audio.astype(np.float32) / FULL_SCALE
        samples = np.pad(samples, (0, max(self._model.shortest - len(samples), 0)))
        read = self._model.read(samples, options, stop or Stop())
        confidence = read.tokens.confidence
        if not np.isfinite(confidence):
            raise InferenceError("the decoder's scores are not finite")
        if problem := self._limits.problem(read):
            _log.debug("%d ms have no text: %s", len(audio) // PER_MS, problem)
            return RecognizedText("", 0.0, read.encoder_ms, read.decoder_ms)
        return RecognizedText(
            read.text, round(confidence, 4), read.encoder_ms, read.decoder_ms, read.language
        )


_MOST_FAILURES = 3
"""Failures of different stretches without a success between them: then the networks are broken, and only
loading them again can help."""
_REMEMBERED = 64
"""Failed stretches that are remembered, to recognise one that is tried again."""


class TextReader(Protocol):
    """Reads audio for streams."""

    def ask(
        self, audio: NDArray[np.int16], options: ReadOptions, *, final: bool, of: Hashable
    ) -> ReadRequest:
        """Have a stretch read.

        Args:
            audio: i16 ``[n]``, 16 kHz mono.
            options: language and phrases.
            final: whether it comes before all that is not.
            of: the utterance that it is from; what cannot be read of one counts as one failure.

        Raises:
            OverloadedError: too much waits already.
            ShuttingDownError: nothing is read any more.
        """
        ...

    def check(self) -> None:
        """Return if reading goes on.

        Raises:
            ModelUnavailableError: it hangs, or nothing can be read.
        """
        ...


class ReadRequest:
    """A text on its way.

    Its future has None where a partial text was given up for a final one.
    """

    def __init__(
        self,
        audio: NDArray[np.int16],
        options: ReadOptions,
        *,
        final: bool,
        of: Hashable,
        clock: Callable[[], float],
    ) -> None:
        self.audio = audio
        self.options = options
        self.final = final
        self.of = of
        self.future: Future[RecognizedText | None] = Future()
        self.stop = Stop()
        self.dropped = False
        """Whether its result is not needed."""
        self._clock = clock
        self._asked_at = clock()
        self._done_at = self._asked_at

    @property
    def done(self) -> bool:
        """Whether there is a text, or never will be one."""
        return self.future.done()

    @property
    def took_ms(self) -> float:
        """From asking to the text, waiting included."""
        return 1000 * (self._done_at - self._asked_at)

    def result(self) -> RecognizedText | None:
        """What has become of it, once it is :attr:`done`; raises the ``ParleyError`` that it failed with."""
        return self.future.result(0)

    def drop(self) -> None:
        """Drop the request: its result is not needed."""
        self.dropped = True
        self.stop.request()

    def resolve(self, read: Callable[[], RecognizedText]) -> None:
        """Read the audio, and set the result."""
        try:
            text: RecognizedText | None = read()
        except StoppedError:
            text = None
        except Exception as error:  # noqa: BLE001 - raised where the text is taken
            if not isinstance(error, ParleyError):
                _log.exception("a stretch of %d samples cannot be read", len(self.audio))
                error = ParleyError(f"{type(error).__name__}: {error}")
            self.fail(error)
            return
        self._done_at = self._clock()
        self.future.set_result(text)

    def fail(self, error: ParleyError) -> None:
        """Set an error in the place of a text."""
        self._done_at = self._clock()
        self.future.set_exception(error)


class _Failures:
    """How many different stretches could not be read, one after the other.

    A session may have a stretch read several times: while it is being spoken, when it is over, and again
    after a failure. One that opens a new stream for what has failed sends the same audio.
    """

    def __init__(self) -> None:
        self.count = 0
        self._seen: deque[tuple[Hashable, bytes]] = deque(maxlen=_REMEMBERED)

    def add(self, asked: ReadRequest) -> None:
        """One more reading has failed."""
        digest = hashlib.sha256(asked.audio.tobytes()).digest()
        if not any(asked.of == of or digest == seen for of, seen in self._seen):
            self.count += 1
        self._seen.append((asked.of, digest))


class ThreadedReader:
    """:class:`TextReader` with a thread of its own."""

    def __init__(
        self,
        reader: Reader,
        *,
        room: int,
        stall_s: float = 20.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start the thread.

        Args:
            reader: used by the thread only.
            room: final texts that may wait; as many partial ones may.
            stall_s: a text that takes longer will never come.
            clock: seconds that never go back.
        """
        self._reader = reader
        self._room = room
        self._stall_s = stall_s
        self._clock = clock
        self._finals: deque[ReadRequest] = deque()
        self._partials: deque[ReadRequest] = deque()
        self._changed = threading.Condition()
        self._closing = False
        self._running: ReadRequest | None = None
        self._began_at: float | None = None
        self._failures = _Failures()
        self._thread = threading.Thread(target=self._serve, name="reading", daemon=True)
        self._thread.start()

    def ask(
        self, audio: NDArray[np.int16], options: ReadOptions, *, final: bool, of: Hashable
    ) -> ReadRequest:
        """See :meth:`TextReader.ask`."""
        asked = ReadRequest(audio, options, final=final, of=of, clock=self._clock)
        with self._changed:
            if self._closing:
                raise ShuttingDownError("nothing is read any more: the model is being unloaded")
            waiting = self._finals if final else self._partials
            if len(waiting) >= self._room:
                self._forget_dropped()
            if len(waiting) >= self._room:
                raise OverloadedError(f"{len(waiting)} texts are waiting to be read; try again later")
            waiting.append(asked)
            if final and self._running is not None and not self._running.final:
                self._running.stop.request()
            self._changed.notify()
        return asked

    def check(self) -> None:
        """See :meth:`TextReader.check`."""
        began_at = self._began_at
        if began_at is not None and self._clock() - began_at > self._stall_s:
            raise ModelUnavailableError(f"a stretch of speech has been read for over {self._stall_s:g} s")
        if self._failures.count >= _MOST_FAILURES:
            raise ModelUnavailableError(
                f"the last {self._failures.count} stretches of speech could not be read"
            )

    def close(self, timeout_s: float) -> None:
        """Read nothing any more, and end the thread; what waits fails with ``ShuttingDownError``."""
        with self._changed:
            self._closing = True
            if self._running is not None:
                self._running.stop.request()
            self._changed.notify()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            _log.error("reading did not stop within %g s", timeout_s)

    def _forget_dropped(self) -> None:
        for waiting in (self._finals, self._partials):
            for asked in [asked for asked in waiting if asked.dropped]:
                waiting.remove(asked)

    def _serve(self) -> None:
        while (asked := self._next()) is not None:
            if asked.dropped:
                continue
            self._began_at = self._clock()
            asked.resolve(partial(self._read, asked))
            self._began_at = None
        for asked in (*self._finals, *self._partials):
            asked.fail(ShuttingDownError("the model is being unloaded"))

    def _read(self, asked: ReadRequest) -> RecognizedText:
        try:
            text = self._reader.read(asked.audio, asked.options, asked.stop)
        except StoppedError:
            raise
        except Exception:
            self._failures.add(asked)
            raise
        self._failures = _Failures()
        return text

    def _next(self) -> ReadRequest | None:
        with self._changed:
            self._changed.wait_for(lambda: self._finals or self._partials or self._closing)
            if self._closing:
                self._running = None
            else:
                self._running = (self._finals or self._partials).popleft()
            return self._running


class InlineReader:
    """:class:`TextReader` in the thread of its caller; its single stream waits for no others."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def ask(
        self, audio: NDArray[np.int16], options: ReadOptions, *, final: bool, of: Hashable
    ) -> ReadRequest:
        """See :meth:`TextReader.ask`."""
        asked = ReadRequest(audio, options, final=final, of=of, clock=lambda: 0.0)
        asked.resolve(lambda: self._reader.read(audio, options, asked.stop))
        return asked

    def check(self) -> None:
        """Do nothing: there is no thread that could hang."""
