"""How exchanges sound: sentences with their pauses, recordings, noises."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from parley_client.audio.files import read_speech, speech_span
from parley_client.errors import AudioFileError
from parley_testing.scenario import (
    Caller,
    Exchange,
    FillerWord,
    Insert,
    Pause,
    Scenario,
    ScenarioError,
    Sentence,
)
from parley_testing.sounds import BABBLE, Wave, loudness, make
from parley_testing.voices import RATE, Line, Spoken

Pcm = NDArray[np.int16]
_PER_MS = RATE // 1000
_FADE = 3 * _PER_MS
_WINDOW = 5 * _PER_MS
_FULL = 32_767.0
_SOUND_DB = 0.0
"""A sound is as loud as the caller's speech unless its exchange says otherwise."""
_BABBLE_LINES = (
    "we could meet near the old station after lunch",
    "she never told anybody where the money went",
    "they are building another bridge over the river",
    "half of them left before the concert was over",
    "you have to turn left behind the big garage",
    "nobody knows how the cat got onto the roof",
)
_BABBLERS = ("woman-1", "woman-2", "woman-3", "woman-4", "man-1", "man-2")


@dataclass(frozen=True)
class Clip:
    """Something that goes through the microphone."""

    samples: Pcm
    """16 kHz mono, shape ``[n]``."""
    first: int
    """Its first loud sample: the true beginning."""
    last: int
    """One past its last loud sample: the true end."""
    pauses: tuple[tuple[int, int], ...] = ()
    """Silences that were put in: first sample and one past the last."""


class Studio:
    """Makes the clips of scenarios, of which ``spoken`` has all :func:`lines`."""

    def __init__(self, spoken: Mapping[Line, Spoken]) -> None:
        self._spoken = dict(spoken)
        self._loops: dict[str, Wave] = {}

    def add(self, spoken: Mapping[Line, Spoken]) -> None:
        """Take further lines."""
        self._spoken |= spoken

    def clip(self, exchange: Exchange, caller: Caller) -> Clip | None:
        """How an exchange sounds; None: it makes no sound.

        Raises:
            ScenarioError: a recording cannot be read.
        """
        if exchange.sentence is not None:
            return self._levelled(self._sentence(exchange, exchange.sentence), exchange, caller)
        if exchange.file is not None:
            return self._levelled(_recording(exchange), exchange, caller)
        if exchange.kind == "sound":
            wave = self.loop(BABBLE)[: 2 * RATE] if exchange.content == BABBLE else make(exchange.content)
            samples = _pcm(wave * _gain(caller.level_db + exchange.gain_db + _SOUND_DB))
            return Clip(samples, *speech_span(samples))
        return None

    def check(self, scenario: Scenario) -> None:
        """Make sure that all of a scenario can be heard.

        Raises:
            ScenarioError: it cannot; the message says where.
        """
        for exchange in scenario.exchanges:
            try:
                self.clip(exchange, scenario.caller)
            except ScenarioError as error:
                raise ScenarioError(f"{scenario.name}, exchange {exchange.index + 1}: {error}") from error

    def loop(self, name: str) -> Wave:
        """A background, of RMS 1, to be repeated."""
        if name not in self._loops:
            wave = self._babble() if name == BABBLE else make(name)
            self._loops[name] = wave / loudness(wave)
        return self._loops[name]

    def _sentence(self, exchange: Exchange, sentence: Sentence) -> tuple[Wave, list[tuple[int, int]]]:
        whole = self._spoken[Line(sentence.text, exchange.voice, exchange.rate)]
        pieces = {insert: self._insert(insert, exchange, whole) for _, insert in sentence.inserts}
        return put_between(whole, sentence, pieces)

    def _insert(self, insert: Insert, exchange: Exchange, whole: Spoken) -> Wave:
        if isinstance(insert, Pause):
            return np.zeros(insert.ms * _PER_MS)
        if isinstance(insert, FillerWord):
            spoken = self._spoken[Line(insert.word, exchange.voice, exchange.rate)]
            return _trimmed(spoken.samples)
        return make(insert.name) * loudness(whole.samples / _FULL)

    def _levelled(self, made: tuple[Wave, list[tuple[int, int]]], exchange: Exchange, caller: Caller) -> Clip:
        wave, pauses = made
        wave = wave / max(loudness(wave), 1e-9) * _gain(caller.level_db + exchange.gain_db)
        samples = _pcm(wave)
        return Clip(samples, *speech_span(samples), tuple(pauses))

    def _babble(self) -> Wave:
        out = np.zeros(8 * RATE)
        for number, line in enumerate(_babble_lines()):
            speech = _trimmed(self._spoken[line].samples)
            for at in range(number * 4_321 % RATE, len(out), len(speech) + RATE // 3):
                piece = speech[: len(out) - at]
                out[at : at + len(piece)] += piece / loudness(speech)
        return out


def put_between(
    whole: Spoken, sentence: Sentence, pieces: Mapping[Insert, Wave]
) -> tuple[Wave, list[tuple[int, int]]]:
    """Cut a spoken sentence at its words and put the pieces between them.

    The sentence was spoken as a whole, so that every part keeps the melody that it has in it, as it is when
    a speaker hesitates.

    Returns:
        The sound, full scale 1, and where its pauses are (first sample, one past the last).
    """
    speech = _trimmed(whole.samples, keep_start=True)
    parts: list[Wave] = []
    pauses: list[tuple[int, int]] = []
    done = length = 0
    for index, insert in sentence.inserts:
        at = max(done, min(len(speech), cut_point(whole, sentence, index)))
        part = _faded(speech[done:at])
        parts += [part, pieces[insert]]
        length += len(part)
        if isinstance(insert, Pause):
            pauses.append((length, length + len(pieces[insert])))
        length += len(pieces[insert])
        done = at
    parts.append(_faded(speech[done:]) if sentence.inserts else speech)
    return np.concatenate(parts), pauses


def cut_point(whole: Spoken, sentence: Sentence, index: int) -> int:
    """The sample before which word ``index`` has not begun: the quietest place near its mark."""
    if index == 0:
        return 0
    if index >= len(sentence.words):
        return len(whole.samples)
    position = len(" ".join(sentence.words[:index])) + 1
    marks = [*whole.words, (len(sentence.text), len(whole.samples))]
    before = max((mark for mark in marks if mark[0] <= position), default=(0, 0))
    after = min(mark for mark in marks if mark[0] > position) if before[0] < position else before
    share = (position - before[0]) / (after[0] - before[0]) if after[0] > before[0] else 0.0
    at = round(before[1] + share * (after[1] - before[1])) + whole.marks.early_ms * _PER_MS
    search = whole.marks.search_ms * _PER_MS
    start, stop = max(0, at - search), min(len(whole.samples), at + search)
    energy = np.convolve(whole.samples[start:stop].astype(np.float64) ** 2, np.ones(_WINDOW), "same")
    return start + int(np.argmin(energy)) if len(energy) else at


def background_gain(snr_db: float, caller: Caller) -> float:
    """What a loop of RMS 1 is multiplied with (full scale 32767)."""
    return _gain(caller.level_db - snr_db) * _FULL


def _recording(exchange: Exchange) -> tuple[Wave, list[tuple[int, int]]]:
    assert exchange.file is not None
    try:
        samples = read_speech(exchange.file)
    except AudioFileError as error:
        raise ScenarioError(str(error)) from error
    wave = samples / _FULL
    begin, end = (ms * _PER_MS for ms in exchange.part or (0, len(wave)))
    if begin >= len(wave):
        raise ScenarioError(f"{exchange.file}: is over before its part begins")
    wave = wave[:end]
    parts, pauses, done, length = [], [], begin, 0
    for at_ms, pause_ms in exchange.cuts:
        at = at_ms * _PER_MS
        if not done < at < len(wave):
            raise ScenarioError(f"{exchange.file}: no place for a pause at {at_ms} ms")
        parts += [_faded(wave[done:at]), np.zeros(pause_ms * _PER_MS)]
        length += at - done
        pauses.append((length, length + pause_ms * _PER_MS))
        length += pause_ms * _PER_MS
        done = at
    parts.append(_faded(wave[done:]) if exchange.cuts or exchange.part else wave[done:])
    return np.concatenate(parts), pauses


def lines(scenarios: Iterable[Scenario]) -> list[Line]:
    """All that is spoken in scenarios, and in the babble of their rooms."""
    found = _babble_lines()
    for scenario in scenarios:
        for exchange in scenario.exchanges:
            sentence = exchange.sentence
            if sentence is None:
                continue
            texts = [sentence.text, *(i.word for _, i in sentence.inserts if isinstance(i, FillerWord))]
            found += [Line(text, exchange.voice, exchange.rate) for text in texts]
    return found


def _babble_lines() -> list[Line]:
    return [Line(text, voice) for text, voice in zip(_BABBLE_LINES, _BABBLERS, strict=True)]


def _trimmed(samples: Pcm, *, keep_start: bool = False) -> Wave:
    first, last = speech_span(samples)
    return np.asarray(samples[0 if keep_start else first : last] / _FULL)


def _faded(wave: Wave) -> Wave:
    """Without clicks at its ends."""
    faded, count = wave.copy(), min(_FADE, len(wave) // 2)
    ramp = np.linspace(0, 1, count, endpoint=False)
    faded[:count] *= ramp
    faded[len(faded) - count :] *= ramp[::-1]
    return faded


def _gain(level_db: float) -> float:
    return float(10 ** (level_db / 20))


def _pcm(wave: Wave) -> Pcm:
    return np.asarray(np.clip(np.rint(wave * _FULL), -32_768, 32_767), np.int16)
