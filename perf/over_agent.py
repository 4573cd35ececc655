"""What stops the agent: signs of listening, sounds and interruptions, through the code that serves.

Each is heard alone in the middle of an answer, by voice activity detection, Moonshine tiny and the policy of
interruptions. No server runs, and no time of computing counts. An agent that is silent would
answer a sound in which there are words.

A second table has turns of people before a crowd that talks on: how many end where the caller does, with
``vad.ignore_background`` and without.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain

import msgspec
import numpy as np
from eval_recordings import Pcm, moonshine_pipeline
from harness.people import Wave, add_noise, crowd, load_people
from harness.program import run_program
from harness.recordings import RATE, RecordingError
from harness.report import Table
from harness.stats import Share, p50_p95, text_of
from rich.console import Console
from simulate.interaction import TICS

from parley.asr.messages import (
    AsrOptions,
    OnsetEvent,
    OnsetLostEvent,
    SpeechStartedEvent,
    SpeechStoppedEvent,
    TranscriptEvent,
)
from parley.asr.segmenter.segmentation import UtteranceBegan, UtteranceEnded, UtteranceLimits, detect
from parley.asr.service import ChunkRequest, ChunkResult
from parley.asr.utterances.pipeline import SegmentPipeline
from parley.launcher.options import ROOT
from parley.protocol import BargeInOptions, VadOptions
from parley.turns.interruption import InterruptionPolicy, InterruptSpeech, Verdict, interruption_words
from parley.vad.silero import WINDOW, SileroVad
from parley_testing.scenario import ScenarioError
from parley_testing.sounds import loudness, make
from parley_testing.voices import KOKORO, Line, LineCache

_PER_MS = RATE // 1_000
_SILENCE = np.zeros(RATE, np.float32)
_VAD = VadOptions(onset_threshold=0.15, silence_ms=160)
_LEVELS_DB = (-26.0, -34.0)
"""Of speech and of sounds, below full scale."""
_SEEDS = 8
_AROUND_S = 4
"""Before and after a turn in a crowd."""
_CROWDS_DB = (None, 20.0, 15.0, 10.0, 5.0)
_EARLY_MS, _LATE_MS = 350, 500
"""How far from the caller's last sound a turn may end."""
_QUIET_MS = 1_200
"""Nothing may begin so long after it: the agent would wait."""
_LONGEST_S = 2.5
"""Of a recording of people: an interruption is decided by its beginning."""
_AGENT = "To make tea, boil fresh water, pour it over the leaves, and drink it after some minutes."
_ROOM = ("door", "keyboard", "click", "ring")
_GOALS = {
    "backchannels": "≤ 3 %",
    "interruptions": "≥ 97 %",
    "interruptions by people": "≥ 97 %",
    "vocal tics": "≤ 10 %",
    "sounds of the room": "≤ 2 %",
}
"""The share of each kind that stops the agent."""
BACKCHANNELS = """
    Mhm.|Uh-huh.|Okay.|Yeah.|Yes.|Right.|I see.|Got it.|Sure.|Oh.|Wow.|Really?|Makes sense.|Go on.|Oh, okay.
    Yeah, yeah.|Ah, I see.|Oh, really?|That's good.|Interesting.|Okay, great.|Alright.|Exactly.|Hm.
"""
INTERRUPTIONS = """
    Stop.|Wait.|No.|Hold on.|No, I meant coffee.|Can you repeat that?|What about green tea?|That's wrong.
    Excuse me, I have a question.|How long exactly?|I already know that.|Yes, but I have no leaves.
    Louder, please.|Okay, and what about milk?|Actually, tell me about Paris.|Could you speak slowly?
"""


@dataclass(frozen=True)
class Sound:
    """Something that the caller does while the agent speaks."""

    kind: str
    name: str
    wave: Wave


@dataclass
class Figures:
    """Of all sounds of a kind."""

    stopped: Share = field(default_factory=Share)
    answered: Share = field(default_factory=Share)
    after_ms: list[float] = field(default_factory=list)
    """From the beginning of the sound until it is an interruption."""


class Listener:
    """Hears one sound as :class:`parley.agent.interruptions.InterruptionDetector` does."""

    def __init__(self, pipeline: SegmentPipeline) -> None:
        self._pipeline = pipeline
        self._policy: InterruptionPolicy | None = None
        self._onset_ms = 0
        self._speaking = self._confirmed = False
        self.said: list[str] = []
        """Texts of the utterances."""
        self.interrupted_ms: float | None = None
        """When the agent was stopped."""

    def hear(self, audio: Pcm) -> None:
        """Hear all of it: i16 ``[n]``, 16 kHz."""
        stream = self._pipeline.new_stream(AsrOptions(vad=_VAD))
        for start in range(0, len(audio), WINDOW):
            (heard,) = self._pipeline.step([ChunkRequest(stream, audio[start : start + WINDOW])])
            if not isinstance(heard, ChunkResult):
                raise heard
            stream, at_ms = heard.stream, heard.reply.stream_ms
            for event in heard.reply.events:
                self._apply(self._judge(event, at_ms / 1_000), at_ms)
            policy = self._policy
            if policy is not None and policy.due is not None and policy.due <= at_ms / 1_000:
                self._apply(policy.tick(at_ms / 1_000), at_ms)
        self._pipeline.release(stream)

    def _judge(self, event: object, at: float) -> Verdict:
        if isinstance(event, OnsetEvent) and self._policy is None:
            self._onset_ms, self._confirmed = event.at_ms, False
            self._policy = InterruptionPolicy(
                BargeInOptions(), interruption_words("en"), agent_text=_AGENT, closing=False, began_at=at
            )
        policy = self._policy
        if isinstance(event, TranscriptEvent):
            return self._read(event, at)
        if policy is not None and isinstance(event, SpeechStartedEvent):
            if self._confirmed:
                policy.on_speech_resumed()
            self._speaking = self._confirmed = True
            return policy.tick(at)
        if policy is not None and isinstance(event, SpeechStoppedEvent):
            self._speaking = False
            policy.on_speech_stopped(event.at_ms - self._onset_ms, at)
        elif isinstance(event, OnsetLostEvent) and not self._confirmed:
            self._policy = None
        return None

    def _read(self, event: TranscriptEvent, at: float) -> Verdict:
        policy = self._policy
        if event.is_final:
            self.said.append(event.text)
        if policy is None:
            return None
        if not event.is_final:
            return policy.on_partial(event.text, event.confidence, at)
        if not self._speaking:
            self._policy = None
        return policy.on_final(event.text, event.confidence, at, more=self._speaking)

    def _apply(self, verdict: Verdict, at_ms: float) -> None:
        if isinstance(verdict, InterruptSpeech) and self._confirmed and self.interrupted_ms is None:
            self.interrupted_ms = at_ms


def find_sounds(voices: int, people: int) -> Iterator[Sound]:
    """All of them, by so many synthetic voices, with so many recordings of each source of people.

    Raises:
        ScenarioError: the voices' weights are missing.
        RecordingError: the recordings are.
    """
    texts = {"backchannels": BACKCHANNELS, "interruptions": INTERRUPTIONS}
    said = {kind: re.split(r"\||\n", text.strip()) for kind, text in texts.items()}
    lines = {
        kind: [Line(text.strip(), voice) for voice in [*KOKORO.voices][:voices] for text in texts]
        for kind, texts in said.items()
    }
    spoken = LineCache(KOKORO).speak([*chain.from_iterable(lines.values())])
    for kind, group in lines.items():
        for line in group:
            wave = np.asarray(spoken[line].samples / 32_768, np.float32)
            yield Sound(kind, f"{line.voice}: {line.text}", wave)
    for clip in load_people(people):
        if " " in clip.text:
            wave = clip.samples[: round(_LONGEST_S * RATE)]
            yield Sound("interruptions by people", f"{clip.name}: {clip.text}", wave)
    for kind, names in (("vocal tics", sorted(TICS)), ("sounds of the room", _ROOM)):
        for name in names:
            for seed in range(_SEEDS):
                yield Sound(kind, f"{name} {seed}", np.asarray(make(name, seed), np.float32))


def measure(pipeline: SegmentPipeline, sound: Sound, found: Figures) -> None:
    """Hear a sound at each level."""
    for level in _LEVELS_DB:
        wave = sound.wave * (10 ** (level / 20) / loudness(np.asarray(sound.wave, np.float64)))
        listener = Listener(pipeline)
        audio = np.concatenate([_SILENCE, wave, _SILENCE])
        listener.hear(np.rint(np.clip(audio, -1, 1) * 32_767).astype(np.int16))
        name = f"{sound.name} at {level:.0f} dB: {' | '.join(listener.said)}"
        found.stopped.note(name if listener.interrupted_ms is not None else "")
        found.answered.note(name if any(listener.said) else "")
        if listener.interrupted_ms is not None:
            (loud,) = np.nonzero(np.abs(wave) > 0.01 * np.abs(wave).max())
            found.after_ms.append(listener.interrupted_ms - (len(_SILENCE) + loud[0]) / _PER_MS)


def finds_end(vad: SileroVad, speech: Wave, snr_db: float | None, *, ignore: bool) -> bool:
    """Whether a turn ends where the caller does, before a crowd so much softer (None: there is none)."""
    around = np.zeros(_AROUND_S * RATE, np.float32)
    wave = np.concatenate([around, speech, around])
    if snr_db is not None:
        wave = add_noise(wave, crowd(), snr_db)
    options = msgspec.structs.replace(_VAD, ignore_background=ignore)
    track = UtteranceLimits().segmenter(options)
    windows = track.accept(np.rint(np.clip(wave, -1, 1) * 32_767).astype(np.int16))
    (scored,) = detect([track], [windows], vad)
    (loud,) = np.nonzero(np.abs(speech) > 0.01 * np.abs(speech).max())
    end_ms = 1_000 * _AROUND_S + loud[-1] / _PER_MS
    found = [one.event for one in track.detected(scored) if isinstance(one, UtteranceBegan | UtteranceEnded)]
    ends = [one.at_ms for one in found if isinstance(one, SpeechStoppedEvent)]
    near = [at_ms for at_ms in ends if end_ms - _EARLY_MS <= at_ms <= end_ms + _LATE_MS]
    later = [
        one.at_ms for one in found if isinstance(one, SpeechStartedEvent) and near and one.at_ms > near[-1]
    ]
    return bool(near) and not any(at_ms < end_ms + _QUIET_MS for at_ms in later)


def _measure_ends(vad: SileroVad, people: int, console: Console) -> None:
    turns = [clip.samples for clip in load_people(people) if " " in clip.text]
    rows = []
    for snr_db in _CROWDS_DB:
        found = [
            np.mean([finds_end(vad, one, snr_db, ignore=ignore) for one in turns]) for ignore in (False, True)
        ]
        name = "silence" if snr_db is None else f"a crowd, {snr_db:.0f} dB softer"
        rows.append([name, *(f"{share:.0%}" for share in found)])
    head = ["behind the caller", "turns that end", "with ignore_background"]
    Table(f"{len(turns)} turns of people", head, rows).print(console)


def main() -> int:
    """Measure; returns 0."""
    parser = argparse.ArgumentParser(prog="over-agent", description=__doc__)
    parser.add_argument("--voices", type=int, default=8, metavar="N", help="synthetic voices (default: all)")
    parser.add_argument("--people", type=int, default=20, metavar="N", help="recordings of each source")
    parser.add_argument(
        "--show", action="store_true", help="print each sound that was taken for another kind"
    )
    args = parser.parse_args()
    return run_program("over-agent", lambda console: _measure(args, console), RecordingError, ScenarioError)


def _measure(args: argparse.Namespace, console: Console) -> int:
    _, vad, pipeline = moonshine_pipeline(ROOT / "models" / "moonshine-tiny-en")
    figures: dict[str, Figures] = {}
    for sound in find_sounds(args.voices, args.people):
        measure(pipeline, sound, figures.setdefault(sound.kind, Figures()))
    rows = []
    for kind, found in figures.items():
        stopped = found.stopped.share or 0.0
        after = text_of(p50_p95(found.after_ms) or ())
        rows.append(
            [
                kind,
                str(found.stopped.of),
                f"{stopped:.1%}",
                _GOALS[kind],
                f"{found.answered.share or 0.0:.1%}",
                after,
            ]
        )
        if args.show:
            wrong = found.stopped.cases if not kind.startswith("interruptions") else []
            for case in wrong:
                console.print(f"{kind}: {case}", markup=False, highlight=False)
    head = ["", "heard", "stopped the agent", "goal", "had words", "until then, ms"]
    Table("Sounds over the agent's speech", head, rows).print(console)
    _measure_ends(vad, args.people, console)
    return 0
