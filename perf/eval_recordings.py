"""How well a recogniser hears: word errors on recordings that it never learned.

Recordings go through the code that serves, without a server: whole, and as calls do, in pieces of 80 ms with
voice activity detection. Then again as calls by telephone, in noise and from afar. Brackets have an interval
of 95 % over recordings. Ends with status 1 where the word error rate of the recordings as they are is above
the limit. Recordings of people: make fetch MODEL="people test-recordings"
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, TypeVar

import numpy as np
from harness.people import CLEAN, Clip, conditions, hear_in, load_people, spread
from harness.recordings import SYNTHETIC, RecordingError, load_recordings
from harness.report import describe_processor
from harness.stats import ratio_estimate, spoken_words, word_errors
from local_models import LocalModels, Transcriber
from numpy.typing import NDArray

from parley.asr import checkpoint
from parley.asr.decoding.words import text_of
from parley.asr.messages import AsrOptions, TranscribeRequest, TranscriptEvent
from parley.asr.parakeet.pipeline import OfflinePipeline
from parley.asr.parakeet.stream import StreamLimits
from parley.asr.reader import Reader
from parley.asr.readers import load_reader
from parley.asr.service import ChunkRequest, ChunkResult, RecognizerPipeline, TrackedStream
from parley.asr.utterances.pipeline import SegmentPipeline, SegmentPipelineLimits
from parley.asr.utterances.recordings import SegmentRecording, SegmentRecordingLimits, SegmentRounds
from parley.asr.utterances.worker import InlineReader
from parley.launcher.options import ROOT
from parley.protocol import VadOptions
from parley.runtime.onnx import open_session
from parley.vad.silero import FILE, SileroVad, bundled_folder

Pcm: TypeAlias = NDArray[np.int16]
"""16 kHz mono, ``[n]``."""
StreamT = TypeVar("StreamT", bound=TrackedStream)

RATE = 16_000
CHUNK = RATE * 80 // 1000
_SILENCE = np.zeros(RATE * 800 // 1000, np.int16)
"""Before and after a turn."""
_FULL_SCALE = 32_768
_JOIN_MS = 8_000
_WHOLE = "whole recordings"


@dataclass(frozen=True)
class Ear:
    """A recogniser in this process."""

    whole: Callable[[Pcm], str]
    """Reads a whole recording."""
    call: Callable[[Pcm], str]
    """Reads a call."""


def open_parakeet(weights: Path) -> Ear:
    """The recogniser ``parakeet_tdt``."""
    export, transcriber = checkpoint.load(weights), Transcriber(weights)
    pipeline = OfflinePipeline(export, LocalModels.open(export), StreamLimits())
    return Ear(
        lambda audio: text_of(transcriber.words(audio)), lambda audio: hear_call(pipeline, audio, join_ms=0)
    )


def moonshine_pipeline(weights: Path) -> tuple[Reader, SileroVad, SegmentPipeline]:
    """What the recogniser ``moonshine`` consists of."""
    reader = load_reader(weights, "moonshine", open_session)
    vad = SileroVad(open_session(bundled_folder() / FILE))
    limits = SegmentPipelineLimits(
        early_ms=0
    )  # texts before an utterance has ended are the same, only sooner
    pipeline = SegmentPipeline(reader, InlineReader(reader), vad, limits, model="moonshine")
    return reader, vad, pipeline


def open_moonshine(weights: Path) -> Ear:
    """The recognisers ``moonshine`` and ``moonshine_transcribe``."""
    reader, vad, pipeline = moonshine_pipeline(weights)

    def whole(audio: Pcm) -> str:
        limits = SegmentRecordingLimits(VadOptions(silence_ms=300))
        recording, rounds = (
            SegmentRecording(audio, TranscribeRequest(), reader, limits),
            SegmentRounds(reader, vad),
        )
        while not recording.done:
            rounds.run([recording])
            if recording.error is not None:
                raise recording.error
        return recording.reply().text

    return Ear(whole, lambda audio: hear_call(pipeline, audio, join_ms=_JOIN_MS))


def load_synthetic(count: int | None) -> list[Clip]:
    """Synthetic voices, which the tiny models understand, and recordings without speech."""
    clips = [
        Clip(f"synthetic/{one.name}", "", one.text, one.samples.astype(np.float32) / _FULL_SCALE)
        for one in load_recordings(SYNTHETIC, with_silent=True)
    ]
    return spread(clips, count)


MODELS = {
    "parakeet": (open_parakeet, ROOT / "models" / checkpoint.DEFAULT, load_synthetic, 0.05),
    "moonshine": (open_moonshine, ROOT / "models" / "moonshine-tiny-en", load_people, 0.15),
}
"""How each is opened; its weights, its recordings, and the highest word error rate."""


def hear_call(pipeline: RecognizerPipeline[StreamT], audio: Pcm, *, join_ms: int) -> str:
    """The text of a call."""
    return hear_whole_call(pipeline, audio, AsrOptions(partial_interval_ms=0, join_ms=join_ms))[0]


def hear_turn(pipeline: RecognizerPipeline[StreamT], audio: Pcm, options: AsrOptions) -> tuple[str, float]:
    """The text of a turn in a call of its own, and the lowest confidence of its utterances."""
    return hear_whole_call(pipeline, np.concatenate([_SILENCE, audio, _SILENCE]), options)


def hear_whole_call(
    pipeline: RecognizerPipeline[StreamT], audio: Pcm, options: AsrOptions
) -> tuple[str, float]:
    """The text of a call, and the lowest confidence of its utterances."""
    stream = pipeline.new_stream(options)
    said: dict[int, str] = {}
    confidences: dict[int, float] = {}
    for start in range(0, len(audio), CHUNK):
        (heard,) = pipeline.step([ChunkRequest(stream, audio[start : start + CHUNK])])
        if not isinstance(heard, ChunkResult):
            raise heard
        stream = heard.stream
        for event in heard.reply.events:
            if isinstance(event, TranscriptEvent):
                if event.first in said:  # as the agent does
                    said = {number: text for number, text in said.items() if number < event.first}
                    said[event.first] = event.before
                said[event.utterance] = event.text
                if event.is_final and event.text:
                    confidences[event.utterance] = event.confidence
    pipeline.release(stream)
    return " ".join(filter(None, said.values())), min(confidences.values(), default=0.0)


class Journal:
    """What was heard; with a file also by runs before, so that one that was stopped goes on.

    Args:
        file: its first line names the recogniser.
        model: the recogniser.

    Raises:
        RecordingError: the file is of another one.
    """

    def __init__(self, file: Path | None, model: str) -> None:
        self._file = file
        self._heard: dict[tuple[str, str], str] = {}
        if file is None:
            return
        lines = file.read_text().splitlines() if file.exists() else []
        if lines and lines[0] != model:
            raise RecordingError(f"{file} is of {lines[0]}, not of {model}: name another file")
        if not lines:
            file.write_text(model + "\n")
        for condition, name, text in map(json.loads, lines[1:]):
            self._heard[condition, name] = text

    def hear(self, condition: str, clip: Clip, hear: Callable[[str, Clip], str]) -> str:
        """The text of a recording in a condition."""
        key = condition, clip.name
        if key not in self._heard:
            self._heard[key] = hear(condition, clip)
            if self._file:
                with self._file.open("a") as file:
                    file.write(json.dumps([*key, self._heard[key]]) + "\n")
        return self._heard[key]


def to_pcm(clip: Clip) -> Pcm:
    """The samples as recognisers take them."""
    samples = np.rint(clip.samples * _FULL_SCALE)
    return np.asarray(np.clip(samples, -_FULL_SCALE, _FULL_SCALE - 1), np.int16)


def report(title: str, heard: Iterable[tuple[Clip, str]], *, show: bool) -> float:
    """Print the word error rates of a condition and, on request, every text with an error.

    Args:
        title: of the condition.
        heard: each recording with its text.
        show: whether errors are printed.

    Returns:
        The rate of all words.
    """
    parts: dict[str, list[tuple[int, int]]] = {}
    for one, text in heard:
        said = spoken_words(one.text)
        errors = word_errors(said, spoken_words(text))
        parts.setdefault(one.source, []).append((errors, len(said)))
        if errors and show:
            print(f"    {one.name}\n      said    {one.text or '-'}\n      written {text or '-'}")
    both = [pair for pairs in parts.values() for pair in pairs]
    rate = ratio_estimate(both)
    assert rate is not None  # there are words in all recordings
    errors, words = (sum(column) for column in zip(*both, strict=True))
    cells = " ".join(
        f"{source} {sum(wrong for wrong, _ in pairs) / max(sum(count for _, count in pairs), 1):.1%}"
        for source, pairs in parts.items()
    )
    interval = f"{rate.value:6.1%} ({rate.low:.1%} to {rate.high:.1%})"
    print(f"{title:<16} | {interval} | {errors} of {words} | {cells}", flush=True)
    return rate.value


def main() -> int:
    """Evaluate; returns whether the limit is kept."""
    known = conditions()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add = parser.add_argument
    add("--model", choices=MODELS, default="moonshine", help="default: %(default)s")
    add("--conditions", nargs="+", choices=known, default=list(known), help="default: all")
    add("--plain", action="store_const", dest="conditions", const=[CLEAN], help="only as they are")
    add("--count", type=int, help="so many recordings of each source (default: all)")
    add("--journal", type=Path, help="file of what was heard, from which a stopped run goes on")
    add("--show", action="store_true", help="print every error")
    args = parser.parse_args()
    make, weights, load, limit = MODELS[args.model]
    try:
        clips = load(args.count)
        journal = Journal(args.journal, args.model)
    except RecordingError as error:
        parser.error(str(error))
    ear = make(weights)

    def hear(condition: str, clip: Clip) -> str:
        if condition == _WHOLE:
            return ear.whole(to_pcm(clip))
        return ear.call(to_pcm(hear_in(clip, condition, known[condition])))

    print(f"{args.model}, {len(clips)} recordings; {describe_processor()}")
    rates = {
        name: report(name, ((clip, journal.hear(name, clip, hear)) for clip in clips), show=args.show)
        for name in (_WHOLE, *args.conditions)
    }
    if max(rates[_WHOLE], rates.get(CLEAN, 0.0)) > limit:
        print(f"above the limit of {limit:.0%}", file=sys.stderr)
        return 1
    return 0
