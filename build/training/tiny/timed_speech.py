"""Speech as :mod:`tiny.speech` makes it, with the places where its words end.

espeak-ng and flite are asked through their libraries (``libespeak-ng``, ``libflite``), because their programs
do not tell when a word is spoken. The libraries' state is global: one thread of a process may use them.
"""

from __future__ import annotations

import ctypes
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from tiny.speech import FLITE_PITCH, SAMPLE_RATE, Manner, Samples, Voice, edges, read_wav, resampled

_ESPEAK_RATE, _ESPEAK_PITCH = 1, 3
_SYNCHRONOUS, _UTF8, _BY_CHARACTER = 2, 1, 1
_END_OF_EVENTS, _WORD = 0, 1


@dataclass(frozen=True)
class TimedSpeech:
    """A clip, and where it may be cut."""

    samples: Samples
    boundaries: list[tuple[int, int]]
    """Number of words so far, and the sample at which the next one begins; without the end of the clip."""


@dataclass(frozen=True)
class _Raw:
    """What a synthesizer made."""

    samples: Samples
    sample_rate: int
    boundaries: list[tuple[int, float]]
    """Number of words so far, and seconds."""


class _Event(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_int),
        ("unique_identifier", ctypes.c_uint),
        ("text_position", ctypes.c_int),
        ("length", ctypes.c_int),
        ("audio_position", ctypes.c_int),
        ("sample", ctypes.c_int),
        ("user_data", ctypes.c_void_p),
        ("id", ctypes.c_char * 8),
    )


class _EspeakVoice(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("languages", ctypes.c_char_p),
        ("identifier", ctypes.c_char_p),
        ("gender", ctypes.c_ubyte),
        ("age", ctypes.c_ubyte),
        ("variant", ctypes.c_ubyte),
        ("unused", ctypes.c_ubyte),
        ("score", ctypes.c_int),
        ("spare", ctypes.c_void_p),
    )


_Callback = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.POINTER(_Event)
)


class _Wave(ctypes.Structure):
    _fields_ = (
        ("type", ctypes.c_char_p),
        ("sample_rate", ctypes.c_int),
        ("num_samples", ctypes.c_int),
        ("num_channels", ctypes.c_int),
        ("samples", ctypes.POINTER(ctypes.c_short)),
    )


class _FliteVoice(ctypes.Structure):
    _fields_ = (("name", ctypes.c_char_p), ("features", ctypes.c_void_p))


def say_timed(text: str, voice: Voice, manner: Manner) -> TimedSpeech:
    """Speak ``text`` like :func:`tiny.speech.say`.

    Raises:
        RuntimeError: the synthesizer made no sound.
    """
    rate = manner.rate / manner.tract
    if voice.engine == "espeak":
        raw = _espeak().say(text, voice.name, rate, manner.pitch)
    elif voice.engine == "flite":
        raw = _flite().say(text, voice.name, rate, manner.pitch)
    else:
        raw = _festival(text, voice.name, rate)
    samples = resampled(raw.samples, raw.sample_rate * manner.tract)
    first, last = edges(samples)
    if last <= first:
        raise RuntimeError(f"{voice} made no sound for {text!r}")
    per_second = SAMPLE_RATE / manner.tract
    places = ((words, round(seconds * per_second) - first) for words, seconds in raw.boundaries)
    return TimedSpeech(samples[first:last], [place for place in places if 0 < place[1] < last - first])


class _Espeak:
    def __init__(self) -> None:
        self._library = ctypes.CDLL("libespeak-ng.so.1")
        self._library.espeak_Synth.argtypes = [
            ctypes.c_char_p,
            ctypes.c_size_t,
            *[ctypes.c_uint, ctypes.c_int, ctypes.c_uint, ctypes.c_uint],
            *[ctypes.c_void_p] * 2,
        ]
        self._sample_rate: int = self._library.espeak_Initialize(_SYNCHRONOUS, 200, None, 0)
        self._pieces: list[Samples] = []
        self._words: list[tuple[int, int]] = []
        self._callback = _Callback(self._receive)
        self._library.espeak_SetSynthCallback(self._callback)

    def say(self, text: str, name: str, rate: float, pitch: float) -> _Raw:
        self._pieces, self._words = [], []
        # What is no name of a voice file is a language, as for the program.
        if self._library.espeak_SetVoiceByName(name.encode()) != 0:
            wanted = _EspeakVoice(languages=name.encode())
            if self._library.espeak_SetVoiceByProperties(ctypes.byref(wanted)) != 0:
                raise RuntimeError(f"espeak-ng has no voice {name}")
        self._library.espeak_SetParameter(_ESPEAK_RATE, round(175 * rate), 0)
        self._library.espeak_SetParameter(_ESPEAK_PITCH, round(50 + 75 * (pitch - 1)), 0)
        data = text.encode() + b"\0"
        self._library.espeak_Synth(data, len(data), 0, _BY_CHARACTER, 0, _UTF8, None, None)
        # A word's event counts the characters before it.
        boundaries = [
            (len(text[:position].split()), sample / self._sample_rate)
            for position, sample in self._words
            if text[:position].split()
        ]
        samples = np.concatenate(self._pieces) if self._pieces else np.zeros(0, np.int16)
        return _Raw(samples, self._sample_rate, boundaries)

    def _receive(self, samples: Any, count: int, events: Any) -> int:
        index = 0
        while events[index].type != _END_OF_EVENTS:
            if events[index].type == _WORD:
                self._words.append((events[index].text_position - 1, events[index].sample))
            index += 1
        if samples and count > 0:
            self._pieces.append(np.ctypeslib.as_array(samples, (count,)).copy())
        return 0


class _Flite:
    def __init__(self) -> None:
        library = self._library = ctypes.CDLL("libflite.so.1", mode=ctypes.RTLD_GLOBAL)
        for name in ("usenglish", "cmulex"):
            ctypes.CDLL(f"libflite_{name}.so.1", mode=ctypes.RTLD_GLOBAL)
        pointer, text = ctypes.c_void_p, ctypes.c_char_p
        for function, result, arguments in (
            (library.flite_synth_text, pointer, (text, pointer)),
            (library.utt_wave, ctypes.POINTER(_Wave), (pointer,)),
            (library.utt_relation, pointer, (pointer, text)),
            (library.relation_head, pointer, (pointer,)),
            (library.item_next, pointer, (pointer,)),
            (library.flite_ffeature_float, ctypes.c_float, (pointer, text)),
            (library.flite_ffeature_string, text, (pointer, text)),
            (library.flite_feat_set_float, None, (pointer, text, ctypes.c_float)),
            (library.delete_utterance, None, (pointer,)),
        ):
            function.restype, function.argtypes = result, arguments
        library.flite_init()
        self._voices: dict[str, Any] = {}

    def _voice(self, name: str) -> Any:
        if name not in self._voices:
            register = getattr(ctypes.CDLL(f"libflite_cmu_us_{name}.so.1"), f"register_cmu_us_{name}")
            register.restype, register.argtypes = ctypes.POINTER(_FliteVoice), (ctypes.c_char_p,)
            self._voices[name] = register(None)
        return self._voices[name]

    def say(self, text: str, name: str, rate: float, pitch: float) -> _Raw:
        library, voice = self._library, self._voice(name)
        features = voice.contents.features
        library.flite_feat_set_float(features, b"duration_stretch", 1 / rate)
        library.flite_feat_set_float(features, b"int_f0_target_mean", FLITE_PITCH[name] * pitch)
        utterance = library.flite_synth_text(text.encode(), ctypes.cast(voice, ctypes.c_void_p))
        try:
            wave = library.utt_wave(utterance).contents
            samples = np.ctypeslib.as_array(wave.samples, (wave.num_samples,)).copy()
            ends, parts = [], []
            item = library.relation_head(library.utt_relation(utterance, b"Word"))
            while item:
                ends.append(
                    library.flite_ffeature_float(item, b"R:SylStructure.daughtern.daughtern.R:Segment.end")
                )
                parts.append(library.flite_ffeature_string(item, b"name").decode())
                item = library.item_next(item)
            return _Raw(samples, wave.sample_rate, _counted(text, parts, ends))
        finally:
            library.delete_utterance(utterance)


_WORDS_OF_FESTIVAL = """
(define (print_words utt)
  (mapcar (lambda (w) (format t "%s %f\\n" (item.name w) (item.feat w "word_end")))
          (utt.relation.items utt 'Word)))
"""


def _festival(text: str, name: str, rate: float) -> _Raw:
    with tempfile.TemporaryDirectory() as folder:
        wav = Path(folder) / "speech.wav"
        script = (
            f"{_WORDS_OF_FESTIVAL}(voice_{name})(Parameter.set 'Duration_Stretch {1 / rate:.3f})"
            f'(set! utt (utt.synth (Utterance Text "{text}")))'
            f'(utt.save.wave utt "{wav}" \'riff)(print_words utt)'
        )
        script_file = Path(folder) / "speak.scm"
        script_file.write_text(script)
        said = subprocess.run(
            ["festival", "--batch", str(script_file)],
            check=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        samples, sample_rate = read_wav(wav.read_bytes())
    lines = [line.rsplit(" ", 1) for line in said.stdout.splitlines() if " " in line]
    parts, ends = [part for part, _ in lines], [float(end) for _, end in lines]
    return _Raw(samples, sample_rate, _counted(text, parts, ends))


def _counted(text: str, parts: Sequence[str], ends: Sequence[float]) -> list[tuple[int, float]]:
    """The ends of the text's words, of which a synthesizer may make several ("what's": "what" and "'s")."""
    boundaries, at = [], 0
    for count, word in enumerate(text.split(), 1):
        rest = _plain(word)
        while rest and at < len(parts) and rest.startswith(_plain(parts[at])):
            rest, at = rest[len(_plain(parts[at])) :], at + 1
        if rest or at == 0:
            # Spoken in other words than written: nothing is known from here on.
            break
        boundaries.append((count, ends[at - 1]))
    return boundaries[:-1] if len(boundaries) == len(text.split()) else boundaries


def _plain(word: str) -> str:
    return "".join(letter for letter in word.lower() if letter.isalnum())


@cache
def _espeak() -> _Espeak:
    return _Espeak()


@cache
def _flite() -> _Flite:
    return _Flite()
