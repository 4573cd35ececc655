"""The parts of espeak-ng's C interface that are used, through ctypes.

The library's state is global: one process may use it from one thread at a time. espeak-ng is
licensed under GPL-3.0-or-later, so it is an optional extra that only the process of the model
``espeak`` and that of :mod:`parley.tts.espeak_phonemes.process` load. Interface: ``speak_lib.h`` of
espeak-ng 1.52.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from parley.errors import InferenceError, ModelLoadingError

_AUDIO_OUTPUT_SYNCHRONOUS = 2
_CHARS_UTF8 = 1  # without the flags for SSML (0x10) and phonemes in [[ ]] (0x100): both are plain text
_POSITION_CHARACTER = 1
_PARAMETER_RATE = 1
# IPA, with "^" between the letters of one sound.
_PHONEMES_IPA, _PHONEMES_TIE = 0x02, 0x80
_TIE = ord("^") << 8
_EVENT_END_OF_LIST = 0
_EVENT_WORD = 1


@dataclass(frozen=True)
class WordEvent:
    """The start of a word in the audio."""

    position: int
    """Index of a character of the word in the text."""
    at_sample: int
    """From the beginning of the text's audio."""


class _EventId(ctypes.Union):
    _fields_ = (
        ("number", ctypes.c_int),
        ("name", ctypes.c_char_p),
        ("string", ctypes.c_char * 8),
    )


class _Event(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),  # in characters, from 1
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", _EventId),
    )


_Callback = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event)
)

OnAudio: TypeAlias = Callable[[NDArray[np.int16], list[WordEvent]], bool]
"""Receives the next samples and the words that begin in them; False: stop."""


class EspeakLibrary:
    """espeak-ng, loaded into this process.

    Args:
        buffer_ms: audio per call of ``on_audio``; the library rounds it.

    Raises:
        ModelLoadingError: the package or its data cannot be loaded.
    """

    def __init__(self, buffer_ms: int = 40) -> None:
        try:
            import espeakng_loader  # noqa: PLC0415 - an optional extra

            self._library = ctypes.CDLL(espeakng_loader.get_library_path())
            data = espeakng_loader.get_data_path().encode()
        except (ImportError, OSError) as error:
            raise ModelLoadingError(
                f"espeak-ng cannot be loaded ({error}); "
                "install it in the checkout with: pip install '.[espeak]'"
            ) from error
        self._library.espeak_Synth.argtypes = [
            ctypes.c_char_p,
            ctypes.c_size_t,
            ctypes.c_uint,
            ctypes.c_int,
            ctypes.c_uint,
            ctypes.c_uint,
            ctypes.c_void_p,
            ctypes.c_void_p,
        ]
        self._library.espeak_TextToPhonemes.argtypes = [
            ctypes.POINTER(ctypes.c_char_p),
            ctypes.c_int,
            ctypes.c_int,
        ]
        self._library.espeak_TextToPhonemes.restype = ctypes.c_char_p
        self.sample_rate: int = self._library.espeak_Initialize(_AUDIO_OUTPUT_SYNCHRONOUS, buffer_ms, data, 0)
        if self.sample_rate <= 0:
            raise ModelLoadingError(f"espeak-ng cannot be started with its data in {data.decode()}")
        self._on_audio: OnAudio | None = None
        self._failure: Exception | None = None
        # ctypes does not keep the callback alive; this reference does.
        self._callback = _Callback(self._receive)
        self._library.espeak_SetSynthCallback(self._callback)

    def set_voice(self, identifier: str) -> bool:
        """Select a voice file with its variant, for example ``gmw/en-US+f2``; False: unknown."""
        return bool(self._library.espeak_SetVoiceByName(identifier.encode()) == 0)

    def set_rate(self, words_per_minute: int) -> None:
        """Choose the speed, 80-450."""
        self._library.espeak_SetParameter(_PARAMETER_RATE, words_per_minute, 0)

    def speak(self, text: str, on_audio: OnAudio) -> None:
        """Synthesize ``text``; returns when ``on_audio`` has got all of it or returned False.

        Raises:
            InferenceError: the library failed. Errors of ``on_audio`` are passed on.
        """
        raw = text.encode() + b"\0"
        self._on_audio, self._failure = on_audio, None
        status = self._library.espeak_Synth(raw, len(raw), 0, _POSITION_CHARACTER, 0, _CHARS_UTF8, None, None)
        self._on_audio, failure = None, self._failure
        if failure is not None:
            raise failure
        if status != 0:
            raise InferenceError(f"espeak-ng failed with status {status}")

    def phonemes(self, text: str) -> str:
        """How ``text`` is pronounced: words in IPA with single spaces, "^" between letters of one sound."""
        raw = ctypes.c_char_p(text.encode())
        clauses: list[str] = []
        mode = _PHONEMES_IPA | _PHONEMES_TIE | _TIE
        while raw.value is not None:  # each call reads a clause, and moves the pointer on
            clause = self._library.espeak_TextToPhonemes(ctypes.byref(raw), _CHARS_UTF8, mode)
            clauses.append(clause.decode())
        return " ".join(" ".join(clauses).split())

    def close(self) -> None:
        """Free the library's memory."""
        self._library.espeak_Terminate()

    def _receive(
        self, samples: ctypes._Pointer[ctypes.c_short], count: int, events: ctypes._Pointer[_Event]
    ) -> int:
        """Called by the library; an exception must not leave it. Returns 1 to stop."""
        try:
            if self._on_audio is None:
                return 1
            words = []
            index = 0
            while events[index].type != _EVENT_END_OF_LIST:
                event = events[index]
                if event.type == _EVENT_WORD:
                    words.append(WordEvent(event.text_position - 1, event.sample))
                index += 1
            if samples and count > 0:
                audio = np.ctypeslib.as_array(samples, (count,)).copy()
            else:
                audio = np.empty(0, np.int16)
            return 0 if self._on_audio(audio, words) else 1
        except Exception as error:  # noqa: BLE001 - raised by speak()
            self._failure = error
            return 1
