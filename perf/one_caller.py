"""Whether the voice that opened a call is the one that is answered, through the code that serves.

Calls of two turns of a person, with a crowd or another person who talk on 10 dB softer, with another person
who says something as loudly between the turns, and without others; by level alone, and by level and voice.
No server runs, and no time of computing counts but that of the voice's vectors.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import numpy as np
from eval_recordings import Pcm
from harness.people import Clip, Wave, add_noise, crowd, load_people
from harness.program import run_program
from harness.recordings import RATE, RecordingError
from harness.report import Table
from harness.stats import Share
from numpy.typing import NDArray
from rich.console import Console

from parley.agent.caller_gate import CallerGate
from parley.agent.ports import Scoring
from parley.asr.messages import OnsetEvent, OnsetLostEvent
from parley.asr.segmenter.segmentation import UtteranceBegan, UtteranceEnded, UtteranceLimits, detect
from parley.audio.buffer import AudioPiece
from parley.errors import ParleyError
from parley.launcher.options import ROOT
from parley.protocol import SpeechStarted, SpeechStopped, Transcript, VadOptions
from parley.runtime.onnx import open_session
from parley.speakers.campplus import make_graph
from parley.speakers.embedding import FILE, SpeakerEmbedding
from parley.vad.silero import FILE as VAD_FILE
from parley.vad.silero import SileroVad, bundled_folder
from parley_testing.sounds import loudness

_WEIGHTS = ROOT / "models" / "campplus-zh-en" / FILE
_VAD = VadOptions(onset_threshold=0.15, silence_ms=160, ignore_background=True)
_PER_MS = RATE // 1_000
_PIECE = 96 * _PER_MS
_LEAD_S, _GAP_S = 0.4, 4
"""Before the first turn, and behind each."""
_EARLY_MS, _LATE_MS = 350, 2_000
"""How far from the caller's last sound a turn may end."""
_QUIET_MS = 1_200
"""The caller's speech does not go on so long after it."""
_TOUCHES_MS = 200
"""An utterance with less of a turn is another person's."""
_WORD_MS = 500
"""Shorter sounds of others are not counted."""
_LEVEL_DB, _SOFTER_DB = -26.0, 10.0
_GOALS = "goals: 90% answered, 3% of others' taken, 1% of the caller's ignored, 5% of a core"


@dataclass(frozen=True)
class Call:
    """A call, and where in it the caller speaks (ms)."""

    kind: str
    audio: Pcm
    turns: Sequence[tuple[float, float]]


@dataclass
class Figures:
    """Counts over all calls of a kind."""

    answered: Share = field(default_factory=Share)
    taken: Share = field(default_factory=Share)
    ignored: Share = field(default_factory=Share)
    seconds: float = 0.0
    computed_s: float = 0.0


class Speakers:
    """:class:`parley.engines.base.SpeakerModel` in this process."""

    def __init__(self) -> None:
        self._network = SpeakerEmbedding(open_session(_WEIGHTS, part=make_graph(_WEIGHTS)))
        self.computed_s = 0.0

    async def embed(self, speech: NDArray[np.int16]) -> NDArray[np.float32]:
        """The vector, and the time that it took on a core."""
        began = time.process_time()
        vector = self._network.embed(speech)
        self.computed_s += time.process_time() - began
        return vector


class Conversation:
    """Writes down what is passed on; implements :class:`parley.agent.speech_events.SpeechHandler`."""

    def __init__(self) -> None:
        self.at_ms = 0.0
        self.began: list[float] = []
        self.ended: list[float] = []
        """Where in the call each was passed on."""
        self.texts: set[int] = set()
        """Utterances that have words."""

    def on_onset(self, at_ms: int) -> None:
        """Does not count."""

    def on_onset_cancelled(self) -> None:
        """Does not count."""

    def on_speech_started(self, _event: SpeechStarted) -> None:
        """The turn goes on, or begins."""
        self.began.append(self.at_ms)

    def on_speech_stopped(self, _event: SpeechStopped, _detected_at: float) -> None:
        """It may be over."""
        self.ended.append(self.at_ms)

    def on_audio_processed(self, piece: AudioPiece) -> None:
        """Count the audio."""
        self.at_ms = (piece.position + len(piece.samples)) / _PER_MS

    def on_transcript(self, event: Transcript) -> None:
        """Words of the caller, unless there are none."""
        if event.text:
            self.texts.add(event.utterance)

    def on_error(self, error: ParleyError) -> None:
        """Nothing fails here."""
        raise error

    def on_recognizer_unavailable(self) -> None:
        """There is none."""


class Line:
    """Hears a call, as sessions do, but for the words."""

    def __init__(self, vad: SileroVad, speakers: Speakers, *, by_voice: bool) -> None:
        self._vad = vad
        self._cut = False
        self._options = msgspec.structs.replace(_VAD, ignore_background=not by_voice)
        self.heard = Conversation()
        self.spans: dict[int, tuple[float, float]] = {}
        """Utterances of anybody (ms)."""
        self._gate = CallerGate(
            Scoring(speakers, lambda _: None),
            self.heard,
            "en",
            enabled=by_voice,
            deadline_s=60.0,
            name="call",
            cut=self._end_utterance,
            ignored=lambda _: None,
            is_echo=lambda _: False,
        )

    def _end_utterance(self) -> None:
        self._cut = True

    async def hear(self, audio: Pcm) -> None:
        """Hear all of it: i16 ``[n]``, 16 kHz."""
        track = UtteranceLimits().segmenter(self._options)
        began = 0.0
        for start in range(0, len(audio), _PIECE):
            piece = audio[start : start + _PIECE]
            flush, self._cut = self._cut, False
            windows = track.accept(piece, flush=flush)
            (scored,) = detect([track], [windows], self._vad)
            self._gate.on_audio_processed(AudioPiece(piece, start, 0.0))
            for one in track.detected(scored):
                if isinstance(one, OnsetEvent):
                    self._gate.on_onset(one.at_ms)
                elif isinstance(one, OnsetLostEvent):
                    self._gate.on_onset_cancelled()
                elif isinstance(one, UtteranceBegan):
                    began = one.event.at_ms
                    self._gate.on_speech_started(SpeechStarted(at_ms=one.event.at_ms))
                elif isinstance(one, UtteranceEnded):
                    self._stop(one, began)
            for _ in range(8):  # the tasks that judge voices
                await asyncio.sleep(0)

    def _stop(self, one: UtteranceEnded, began: float) -> None:
        event = one.event
        self.spans[event.utterance] = began, event.at_ms
        stopped = SpeechStopped(at_ms=event.at_ms, detected_at_ms=event.detected_at_ms)
        self._gate.on_speech_stopped(stopped, 0.0)
        self._gate.on_transcript(
            Transcript(utterance=event.utterance, text="words", is_final=True, confidence=1.0)
        )


def make_calls(clips: Sequence[Clip]) -> list[Call]:
    """A call of each kind for each recording, with another one of the same person before it."""
    calls = []
    by_speaker: dict[str, list[Clip]] = {}
    for clip in clips:
        by_speaker.setdefault(clip.speaker, []).append(clip)
    voices = sorted(by_speaker)
    for number, clip in enumerate(clips):
        own = by_speaker[clip.speaker]
        first, second = _at(own[(own.index(clip) + 1) % len(own)].samples), _at(clip.samples)
        others = [voice for voice in voices if not _is_same(voice, clip.speaker)]
        other = np.concatenate([_at(one.samples) for one in by_speaker[others[number % len(others)]]])
        other = np.roll(other, -number * RATE)
        lead, gap = (np.zeros(round(length * RATE), np.float32) for length in (_LEAD_S, _GAP_S))
        quiet = np.concatenate([lead, first, gap, second, gap])
        softer = np.float32(10 ** (-_SOFTER_DB / 20))
        said = np.zeros_like(quiet)
        middle = len(lead) + len(first) + RATE * 3 // 2
        said[middle : middle + 2 * RATE] = np.resize(other, 2 * RATE)
        turns = [_span(first, len(lead)), _span(second, len(lead) + len(first) + len(gap))]
        soft = np.concatenate([lead, first, gap, second * 10 ** (-6 / 20), gap]).astype(np.float32)
        waves = {
            "no other": quiet,
            "no other; the second turn is 6 dB softer": soft,
            "a crowd, 10 dB softer": add_noise(quiet, np.roll(crowd(), -number * RATE), _SOFTER_DB),
            "one person, 10 dB softer": quiet + softer * np.resize(other, len(quiet)),
            "one person, as loud, between the turns": quiet + said,
        }
        for kind, wave in waves.items():
            calls.append(Call(kind, np.rint(np.clip(wave, -1, 1) * 32_767).astype(np.int16), turns))
    return calls


def _is_same(one: str, other: str) -> bool:
    """Whether two speakers may be one person, as the two readings of literature seem to be."""
    return one == other or (one.endswith(".wav") and other.endswith(".wav"))


def _at(wave: Wave) -> Wave:
    return np.asarray(wave * (10 ** (_LEVEL_DB / 20) / loudness(np.asarray(wave, np.float64))), np.float32)


def _span(wave: Wave, begin: int) -> tuple[float, float]:
    (loud,) = np.nonzero(np.abs(wave) > 0.01 * np.abs(wave).max())
    return (begin + loud[0]) / _PER_MS, (begin + loud[-1]) / _PER_MS


def judge(call: Call, line: Line, found: Figures) -> None:
    """Add what a call has shown."""
    heard = line.heard
    own: set[int] = set()
    for begin, end in call.turns:
        near = [at_ms for at_ms in heard.ended if end - _EARLY_MS <= at_ms <= end + _LATE_MS]
        later = [at_ms for at_ms in heard.began if near and near[-1] < at_ms < near[-1] + _QUIET_MS]
        spoken = {
            number
            for number, (first, last) in line.spans.items()
            if min(last, end) - max(first, begin) >= _TOUCHES_MS
        }
        own |= spoken
        found.answered.note("" if not near or later or not spoken & heard.texts else call.kind)
        found.ignored.note("" if spoken & heard.texts else call.kind)
    for number in line.spans.keys() - own:
        if line.spans[number][1] - line.spans[number][0] < _WORD_MS:
            continue
        found.taken.note(call.kind if number in heard.texts else "")
    found.seconds += len(call.audio) / RATE


def main() -> int:
    """Measure; returns 0."""
    parser = argparse.ArgumentParser(prog="one-caller", description=__doc__)
    parser.add_argument("--people", type=int, default=20, metavar="N", help="recordings of each source")
    args = parser.parse_args()
    return run_program("one-caller", lambda console: _measure(args, console), RecordingError, ParleyError)


def _measure(args: argparse.Namespace, console: Console) -> int:
    vad, speakers = SileroVad(open_session(bundled_folder() / VAD_FILE)), Speakers()
    calls = make_calls([clip for clip in load_people(args.people) if " " in clip.text])
    rows = []
    for by_voice in (False, True):
        figures: dict[str, Figures] = {}
        for call in calls:
            found = figures.setdefault(call.kind, Figures())
            line, before = Line(vad, speakers, by_voice=by_voice), speakers.computed_s
            asyncio.run(line.hear(call.audio))
            found.computed_s += speakers.computed_s - before
            judge(call, line, found)
        for kind, found in figures.items():
            shares = (found.answered, found.taken, found.ignored)
            parts = [f"{one.share or 0.0:.1%}" for one in shares]
            core = f"{found.computed_s / found.seconds:.1%}"
            rows.append([kind, "yes" if by_voice else "no", *parts, core])
    head = ["who else speaks", "by voice", "turns answered", "others' taken", "turns ignored", "of a core"]
    Table(f"{len(calls) // 5} calls of people of each kind; {_GOALS}", head, rows).print(console)
    return 0
