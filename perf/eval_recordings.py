"""How well a recogniser hears: word errors on recordings that it never learned.

Recordings go through the code that serves, without a server: whole, and as calls do, in pieces of 80 ms with
voice activity detection. Then again as calls with noise, babble, from afar and by telephone. Ends with status
1 where the word error rate of the recordings as they are is above the limit.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, TypeVar

import numpy as np
from harness.recordings import PEOPLE, SYNTHETIC, Recording, RecordingError, load_recordings
from harness.stats import spoken_words, word_errors
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
from parley_gateway.audio.codecs import AudioFormat, AudioStreamDecoder, Encoder

Pcm: TypeAlias = NDArray[np.int16]
"""16 kHz mono, ``[n]``."""
Wave: TypeAlias = NDArray[np.float64]
"""The same, full scale is 1."""
Change: TypeAlias = Callable[[Pcm], Pcm]
StreamT = TypeVar("StreamT", bound=TrackedStream)

RATE = 16_000
CHUNK = RATE * 80 // 1000
SILENCE = np.zeros(RATE * 800 // 1000, np.int16)
"""Before and after each recording in a call."""
_FULL_SCALE = 32_768
_VOICES = 8
"""Of a babble."""
_JOIN_MS = 8_000
_LINE_HZ = (300, 3_400)
"""What an old telephone line carries."""


@dataclass(frozen=True)
class Ear:
    """A recogniser in this process."""

    whole: Callable[[Pcm], str]
    """Reads a whole recording."""
    call: Callable[[Pcm], str]
    """Reads a recording as a call of its own."""


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
    pipeline = SegmentPipeline(reader, InlineReader(reader), vad, SegmentPipelineLimits(), model="moonshine")
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


MODELS = {
    "parakeet": (open_parakeet, ROOT / "models" / checkpoint.DEFAULT, SYNTHETIC, 0.05),
    "moonshine": (open_moonshine, ROOT / "models" / "moonshine-tiny-en", PEOPLE, 0.1),
}
"""How each is opened; its weights, its recordings, and the highest word error rate."""


def hear_call(pipeline: RecognizerPipeline[StreamT], audio: Pcm, *, join_ms: int) -> str:
    """The text of a call of its own."""
    return hear_turn(pipeline, audio, AsrOptions(partial_interval_ms=0, join_ms=join_ms))[0]


def hear_turn(pipeline: RecognizerPipeline[StreamT], audio: Pcm, options: AsrOptions) -> tuple[str, float]:
    """The text of a call of its own, and the lowest confidence of its utterances."""
    stream = pipeline.new_stream(options)
    said: dict[int, str] = {}
    confidences: dict[int, float] = {}
    call = np.concatenate([SILENCE, audio, SILENCE])
    for start in range(0, len(call), CHUNK):
        (heard,) = pipeline.step([ChunkRequest(stream, call[start : start + CHUNK])])
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


def changes(voices: Sequence[Pcm]) -> Mapping[str, Change]:
    """What is done to recordings, by name; babble is made of ``voices``."""
    loud = [_to_wave(voice) for voice in voices]
    rows = [np.concatenate(loud[number::_VOICES]) for number in range(_VOICES)]

    def white(count: int) -> Wave:
        return np.random.default_rng(1).normal(0.0, 0.1, count)

    def babble(count: int) -> Wave:
        rolled = (np.resize(np.roll(row, 7_919 * number), count) for number, row in enumerate(rows))
        return np.asarray(sum(rolled))

    def mixed(make: Callable[[int], Wave], snr_db: float) -> Change:
        def change(speech: Pcm) -> Pcm:
            wave, noise = _to_wave(speech), make(len(speech))
            gain = np.sqrt((wave**2).mean() / (noise**2).mean() / 10 ** (snr_db / 10))
            return _to_samples(wave + gain * noise)

        return change

    return {
        **{f"white noise {snr} dB": mixed(white, snr) for snr in (20, 10, 5)},
        **{f"babble {snr} dB": mixed(babble, snr) for snr in (20, 10, 5)},
        "soft (-30 dB)": lambda speech: _to_samples(_to_wave(speech) * 10 ** (-30 / 20)),
        "far": far,
        "telephone": telephone,
        "old telephone line": lambda speech: telephone(_line(speech)),
    }


def _to_wave(audio: Pcm) -> Wave:
    return audio.astype(np.float64) / _FULL_SCALE


def _to_samples(wave: Wave) -> Pcm:
    return np.clip(np.rint(wave * _FULL_SCALE), -_FULL_SCALE, _FULL_SCALE - 1).astype(np.int16)


def far(speech: Pcm) -> Pcm:
    """From the other end of a room whose echoes take half a second to fade by 60 dB."""
    count = RATE // 2
    tail = np.random.default_rng(3).standard_normal(count) * 10 ** (-3 * np.arange(count) / count)
    tail[:200] = 0.0
    tail *= np.sqrt(2.0 / (tail**2).sum())  # 3 dB more than the direct sound
    tail[0] = 1.0
    length = len(speech) + count
    heard = np.fft.irfft(np.fft.rfft(_to_wave(speech), length) * np.fft.rfft(tail, length), length)
    return _to_samples(0.3 * heard[: len(speech)])


def telephone(speech: Pcm) -> Pcm:
    """As 8 kHz µ-law carries it."""
    form = AudioFormat("ulaw", 8_000)
    return AudioStreamDecoder(form).decode(Encoder(form, RATE).encode(speech))


def _line(speech: Pcm) -> Pcm:
    spectrum, hertz = np.fft.rfft(_to_wave(speech)), np.fft.rfftfreq(len(speech), 1 / RATE)
    spectrum[(hertz < _LINE_HZ[0]) | (hertz > _LINE_HZ[1])] = 0
    return _to_samples(np.fft.irfft(spectrum, len(speech)))


def report(title: str, recordings: Sequence[Recording], hear: Callable[[Pcm], str], *, show: bool) -> float:
    """Print the word error rate and, on request, every text with an error; return the rate."""
    words = errors = 0
    for one in recordings:
        said, text = spoken_words(one.text), hear(one.samples)
        found = word_errors(said, spoken_words(text))
        words, errors = words + len(said), errors + found
        if found and show:
            print(f"    {one.name}\n      said    {one.text or '-'}\n      written {text or '-'}")
    rate = errors / max(words, 1)
    print(f"  {title:<22} {rate:>7.2%}  {errors} errors in {words} words", flush=True)
    return rate


def main() -> int:
    """Evaluate; returns whether the limit is kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    add = parser.add_argument
    add("--model", choices=MODELS, default="moonshine", help="default: %(default)s")
    add("--plain", action="store_true", help="only as they are")
    add("--show", action="store_true", help="print every error")
    args = parser.parse_args()
    make, weights, manifest, limit = MODELS[args.model]
    try:
        recordings = load_recordings(manifest, with_silent=True)
        voices = [one.samples for one in load_recordings(SYNTHETIC)]
    except RecordingError as error:
        parser.error(str(error))
    ear = make(weights)
    rates = [
        report("whole recordings", recordings, ear.whole, show=args.show),
        report("calls", recordings, ear.call, show=args.show),
    ]
    for name, change in {} if args.plain else changes(voices).items():
        changed = [Recording(one.name, one.text, change(one.samples)) for one in recordings]
        report(f"calls, {name}", changed, ear.call, show=args.show)
    if max(rates) > limit:
        print(f"above the limit of {limit:.0%}", file=sys.stderr)
        return 1
    return 0
