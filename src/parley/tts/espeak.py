"""Speech from espeak-ng, in the one thread that may call it."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from parley.errors import ParleyError, UnsupportedLanguageError, UnsupportedVoiceError
from parley.languages import find_language, primary_language
from parley.tts.espeak_library import EspeakLibrary, OnAudio, WordEvent
from parley.tts.messages import SpeakRequest, SpeechChunk, WordMark
from parley.tts.queue import Send, SpeechQueue
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
_CLOSING = "\"')]}»”\u2019"


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


class EspeakSynthesizer(SpeechQueue):
    """Speaks requests one after the other; each takes about a hundredth of its audio's length.

    The library belongs to it from now on.
    """

    def __init__(self, library: EspeakLibrary, *, max_requests: int = 64) -> None:
        self._library = _Library(library)
        super().__init__(self._make_utterance, name="espeak", max_requests=max_requests)

    def close(self, timeout_s: float = 5.0) -> None:
        """Fail all requests, stop the thread, and free the library."""
        super().close(timeout_s)
        if self.ended:
            self._library.close()

    def _make_utterance(self, request: SpeakRequest) -> _Utterance:
        return _Utterance(request, voice_file(request.voice, request.language), self._library)


class _Library:
    """espeak-ng with the voice that was chosen last."""

    def __init__(self, library: EspeakLibrary) -> None:
        self._library = library
        self._voice = ""
        self.sample_rate = library.sample_rate
        self.close = library.close

    def speak(self, text: str, voice: str, on_audio: OnAudio) -> None:
        """Speak a text; ``on_audio`` as in :meth:`parley.tts.espeak_library.EspeakLibrary.speak`."""
        if voice != self._voice:
            if not self._library.set_voice(voice):
                raise ParleyError(f"espeak-ng has no voice {voice}")
            self._voice = voice
        self._library.speak(text, on_audio)


class _Utterance:
    """Cuts the audio of one request into chunks."""

    def __init__(self, request: SpeakRequest, voice: str, library: _Library) -> None:
        self._language = request.language
        self._voice = voice
        self._library = library
        self._text = plain_text(request.text)
        self._places: Sequence[int] = ()
        """For each character that is spoken, its index in the text."""
        self._rate = library.sample_rate
        self._marker = WordMarker(self._text)
        self._offset = 0
        self._audio: list[NDArray[np.int16]] = []  # of the chunk that is being filled
        self._marks: list[WordMark] = []
        self._wanted = 1  # samples; the first buffer goes out at once
        self._stop = threading.Event()

    @property
    def made_s(self) -> float:
        """See :class:`parley.tts.queue.PiecewiseSpeech`."""
        return self._offset / self._rate

    @property
    def stopped(self) -> bool:
        """See :class:`parley.tts.queue.PiecewiseSpeech`."""
        return self._stop.is_set()

    def stop(self) -> None:
        """See :class:`parley.tts.queue.PiecewiseSpeech`."""
        self._stop.set()

    def advance(self, send: Send) -> bool:
        """Speak the whole text."""
        if is_speakable(self._text):
            spoken, self._places = with_minus(self._text, primary_language(self._language))
            self._library.speak(spoken, self._voice, partial(self._add, send))
            if not self.stopped:
                self._end(send)
        return True

    def _add(self, send: Send, audio: NDArray[np.int16], words: list[WordEvent]) -> bool:
        """Append a buffer; False: the request was aborted."""
        if self.stopped:
            return False
        for word in words:
            if word.position < len(self._places):
                self._marks += self._marker.marks_at(self._places[word.position], word.at_sample)
        self._audio.append(audio)
        if sum(map(len, self._audio)) >= self._wanted:
            self._send(send)
            self._wanted = self._rate * _CHUNK_MS // 1000
        return not self.stopped

    def _end(self, send: Send) -> None:
        """Append the pause after the text, and the marks that are still due."""
        self._marks += self._marker.remaining_marks()
        self._audio.append(np.zeros(self._rate * pause_after(self._text) // 1000, np.int16))
        if self._marks or any(map(len, self._audio)):
            self._send(send)

    def _send(self, send: Send) -> None:
        audio = np.concatenate(self._audio)
        chunk = SpeechChunk(sample_rate=self._rate, offset=self._offset, words=self._marks)
        self._offset += len(audio)
        self._audio, self._marks = [], []
        send(chunk, audio)


def pause_after(text: str) -> int:
    """Milliseconds of silence after the last mark of ``text``."""
    stripped = text.rstrip().rstrip(_CLOSING)
    return _PAUSES_MS.get(stripped[-1:], 0)
