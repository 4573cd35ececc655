"""Speech from espeak-ng: requests wait in a bounded queue for the one thread that may synthesize."""

from __future__ import annotations

import itertools
import logging
import queue
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from parley.errors import (
    InvalidMessageError,
    OverloadedError,
    ParleyError,
    ShuttingDownError,
    UnsupportedLanguageError,
    UnsupportedVoiceError,
)
from parley.languages import find_language, primary_language
from parley.logs import log_ids
from parley.runtime.admission import EarlyAborts
from parley.tts.espeak_library import EspeakLibrary, WordEvent
from parley.tts.messages import SpeakRequest, SpeechChunk, WordMark
from parley.tts.requests import SpeechSink, check_request, kept_free
from parley.tts.text import WordMarker, is_speakable, plain_text, with_minus
from parley.tts.voice_routing import KnownVoice

# Variants change the timbre of any language's voice.
_VARIANTS = {"man-1": "", "man-2": "+m3", "woman-1": "+f2", "woman-2": "+f4"}
_FILES = {
    "en": "gmw/en-US",
    "en-us": "gmw/en-US",
    "en-gb": "gmw/en",
    "de": "gmw/de",
    "nl": "gmw/nl",
    "sv": "gmq/sv",
    "da": "gmq/da",
    "fr": "roa/fr",
    "es": "roa/es",
    "it": "roa/it",
    "pt": "roa/pt",
    "pl": "zlw/pl",
}

VOICES = tuple(_VARIANTS)
"""The first is the default."""
LANGUAGES = tuple(_FILES)
KNOWN_VOICES = tuple(
    KnownVoice(name, LANGUAGES, "female" if name.startswith("woman") else "male") for name in VOICES
)

# espeak-ng leaves pauses between the sentences of a text, but none at its end, where the next
# segment of the answer follows. Milliseconds, as long as its own pauses.
_PAUSES_MS = {".": 300, "!": 300, "?": 300, "…": 300, ":": 200, ";": 200, ",": 150}
_CHUNK_MS = 180
"""Audio per chunk after the first, which is one buffer: fewer messages cost less."""
_AT_LAST = 2
"""After calls (0) and the background (1)."""
_CLOSING = "\"')]}»”\u2019"
_log = logging.getLogger(__name__)


def voice_file(voice: str | None, language: str) -> str:
    """espeak-ng's identifier for a voice in a language.

    Raises:
        UnsupportedVoiceError: no voice of this name.
        UnsupportedLanguageError: no voice speaks this language.
    """
    variant = _VARIANTS.get(voice or VOICES[0])
    if variant is None:
        raise UnsupportedVoiceError(f"no voice {voice!r}; there are {', '.join(VOICES)}")
    found = find_language(language, LANGUAGES)
    if found is None:
        raise UnsupportedLanguageError(f"no voice speaks {language!r}; languages are {', '.join(LANGUAGES)}")
    return _FILES[found] + variant


@dataclass(frozen=True)
class _Job:
    request: SpeakRequest
    sink: SpeechSink
    stop: threading.Event = field(default_factory=threading.Event)


class EspeakSynthesizer:
    """Speaks requests one after the other; each takes about a hundredth of its audio's length.

    Requests of calls are before those of the background. ``submit`` and ``abort`` must come from one
    thread. At most ``max_requests`` wait.
    """

    def __init__(self, library: EspeakLibrary, *, max_requests: int = 64) -> None:
        self._library = library
        self._voice = ""
        self._max_requests = max_requests
        self._numbers = itertools.count()
        # Whether it is of the background, a number that keeps the order, and the request; None: no more.
        self._waiting: queue.PriorityQueue[tuple[int, int, _Job | None]] = queue.PriorityQueue()
        self._lock = threading.Lock()
        self._jobs: dict[str, _Job] = {}  # waiting and running, by id; guarded by the lock
        self._closed = False
        self._early_aborts = EarlyAborts()
        self._thread = threading.Thread(target=self._run, name="espeak", daemon=True)
        self._thread.start()

    def submit(self, request: SpeakRequest, sink: SpeechSink) -> None:
        """Queue a request; everything that happens from now on goes to its sink."""
        try:
            self._admit(request, sink)
        except ParleyError as error:
            sink.fail(error)

    def abort(self, request_id: str) -> None:
        """Stop a request within one buffer: running, waiting, or still on its way here."""
        with self._lock:
            job = self._jobs.get(request_id)
        if job is None:
            self._early_aborts.add(request_id)
        else:
            job.stop.set()

    def close(self, timeout_s: float = 5.0) -> None:
        """Fail the requests that wait or run, and free the library."""
        with self._lock:
            self._closed = True
            jobs = tuple(self._jobs.values())
        for job in jobs:
            job.stop.set()
            job.sink.fail(ShuttingDownError("the model is being unloaded"))
        self._waiting.put((_AT_LAST, 0, None))
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            _log.error("the synthesis thread did not stop within %g s", timeout_s)
        else:
            self._library.close()

    def _admit(self, request: SpeakRequest, sink: SpeechSink) -> None:
        request_id = request.request_id
        check_request(request)
        voice_file(request.voice, request.language)
        if self._early_aborts.take(request_id):
            sink.finish()
            return
        job = _Job(request, sink)
        with self._lock:
            if self._closed:
                raise ShuttingDownError("the model is being unloaded")
            if request_id in self._jobs:
                raise InvalidMessageError(f"request id {request_id!r} is in use")
            waiting = self._waiting.qsize()
            if waiting + kept_free(request, self._max_requests) >= self._max_requests:
                raise OverloadedError(f"{waiting} requests are waiting already")
            self._jobs[request_id] = job
            self._waiting.put((request.background, next(self._numbers), job))

    def _run(self) -> None:
        while (job := self._waiting.get()[2]) is not None:
            with log_ids(request=job.request.request_id):
                try:
                    self._answer(job)
                except Exception:  # noqa: BLE001 - logged
                    # The one thread goes on: the requests that wait have nothing to do with this one.
                    _log.exception("speech request %s could not be ended", job.request.request_id)
                finally:
                    with self._lock:
                        del self._jobs[job.request.request_id]

    def _answer(self, job: _Job) -> None:
        try:
            if not job.stop.is_set():
                job.sink.on_begun()
                self._speak(job)
            job.sink.finish()
        except ParleyError as error:
            job.sink.fail(error)
        except Exception as error:  # noqa: BLE001 - answered and logged
            _log.exception("speech request %s failed", job.request.request_id)
            job.sink.fail(ParleyError(f"{type(error).__name__}: {error}"))

    def _speak(self, job: _Job) -> None:
        text = plain_text(job.request.text)
        if not is_speakable(text):
            return
        voice = voice_file(job.request.voice, job.request.language)
        if voice != self._voice:
            if not self._library.set_voice(voice):
                raise ParleyError(f"espeak-ng has no voice {voice}")
            self._voice = voice
        spoken, places = with_minus(text, primary_language(job.request.language))
        utterance = _Utterance(job, text, places, self._library.sample_rate)
        self._library.speak(spoken, utterance.add)
        if not job.stop.is_set():
            utterance.end()


class _Utterance:
    """Cuts the audio of one request into chunks.

    ``places``: for each character that is spoken, its index in ``text``.
    """

    def __init__(self, job: _Job, text: str, places: Sequence[int], sample_rate: int) -> None:
        self._places = places
        self._job = job
        self._text = text
        self._rate = sample_rate
        self._marker = WordMarker(text)
        self._offset = 0
        self._audio: list[NDArray[np.int16]] = []  # of the chunk that is being filled
        self._marks: list[WordMark] = []
        self._wanted = 1  # samples; the first buffer goes out at once

    def add(self, audio: NDArray[np.int16], words: list[WordEvent]) -> bool:
        """Append a buffer; False: the request was aborted."""
        if self._job.stop.is_set():
            return False
        for word in words:
            if word.position < len(self._places):
                self._marks += self._marker.marks_at(self._places[word.position], word.at_sample)
        self._audio.append(audio)
        if sum(map(len, self._audio)) >= self._wanted:
            self._send()
            self._wanted = self._rate * _CHUNK_MS // 1000
        return not self._job.stop.is_set()

    def end(self) -> None:
        """Append the pause after the text, and the marks that are still due."""
        self._marks += self._marker.remaining_marks()
        self._audio.append(np.zeros(self._rate * pause_after(self._text) // 1000, np.int16))
        if self._marks or any(map(len, self._audio)):
            self._send()

    def _send(self) -> None:
        audio = np.concatenate(self._audio)
        chunk = SpeechChunk(sample_rate=self._rate, offset=self._offset, words=self._marks)
        self._offset += len(audio)
        self._audio, self._marks = [], []
        if not self._job.sink.send(chunk, audio):
            self._job.stop.set()


def pause_after(text: str) -> int:
    """Milliseconds of silence after the last mark of ``text``."""
    stripped = text.rstrip().rstrip(_CLOSING)
    return _PAUSES_MS.get(stripped[-1:], 0)
