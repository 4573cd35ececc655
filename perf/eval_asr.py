"""How well the recogniser hears: word error rate and every error, on recordings that it never learned.

The recordings go through the code that serves, without a server: whole ("recordings"), and as a
call does, in pieces of 80 ms with voice activity detection ("calls"). Ends with status 1 where the
word error rate is above the limit.

With ``--telephone`` they first go through a telephone's codec, and, if wanted, lose what an old line loses.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile
from harness.stats import word_errors
from local_models import LocalModels, Transcriber
from numpy.typing import NDArray

from parley.asr import checkpoint
from parley.asr.decoding.words import text_of
from parley.asr.features.log_mel import LogMel
from parley.asr.messages import AsrOptions, TranscriptEvent
from parley.asr.offline.pipeline import step
from parley.asr.offline.stream import OfflineStream, StreamLimits
from parley.asr.pipeline.step import ChunkRequest, ChunkResult
from parley_gateway.audio.codecs import AudioFormat, AudioStreamDecoder, Encoder

ROOT = Path(__file__).resolve().parent.parent
LIMIT = 0.05
CHUNK = 1280
"""Samples of a piece: 80 ms."""
LINE_HZ = (300, 3_400)
"""What an old telephone line carries."""
SILENCE = np.zeros(12_800, np.int16)
"""Before and after each recording in a call: 800 ms."""


@dataclass(frozen=True)
class Clip:
    """A recording and its words; none where there is no speech."""

    name: str
    text: str
    audio: NDArray[np.int16]


def load_clips(folder: Path) -> list[Clip]:
    """Read the recordings that ``manifest.json`` lists."""
    return [
        Clip(entry["file"], entry["text"], soundfile.read(folder / entry["file"], dtype="int16")[0])
        for entry in json.loads((folder / "manifest.json").read_text())
    ]


def by_telephone(clip: Clip, *, line: bool) -> Clip:
    """The recording as 8 kHz µ-law carries it; behind an old line if wanted."""
    audio = clip.audio
    if line:
        spectrum = np.fft.rfft(audio)
        hertz = np.fft.rfftfreq(len(audio), 1 / 16_000)
        spectrum[(hertz < LINE_HZ[0]) | (hertz > LINE_HZ[1])] = 0
        audio = np.clip(np.fft.irfft(spectrum, len(audio)), -32_768, 32_767).astype(np.int16)
    form = AudioFormat("ulaw", 8_000)
    return Clip(clip.name, clip.text, AudioStreamDecoder(form).decode(Encoder(form, 16_000).encode(audio)))


def transcribe_calls(export: checkpoint.Checkpoint, clips: Iterable[Clip]) -> list[str]:
    """Hear each recording as a call of its own; the texts of its utterances joined."""
    models, mel = LocalModels.open(export), LogMel(export.config)
    texts = []
    for clip in clips:
        stream = OfflineStream(export, mel, AsrOptions(partial_interval_ms=0), StreamLimits())
        audio = np.concatenate([SILENCE, clip.audio, SILENCE])
        finals = []
        for start in range(0, len(audio), CHUNK):
            (heard,) = step([ChunkRequest(stream, audio[start : start + CHUNK])], models)
            if not isinstance(heard, ChunkResult):
                raise heard
            stream = heard.stream
            finals += [event.text for event in heard.reply.events if isinstance(event, TranscriptEvent)]
        texts.append(" ".join(finals))
    return texts


def report(title: str, clips: Sequence[Clip], texts: Sequence[str]) -> float:
    """Print every error and the rate; return the rate."""
    words = errors = wrong = 0
    print(f"{title}:")
    for clip, text in zip(clips, texts, strict=True):
        words += len(clip.text.split())
        distance = word_errors(clip.text.split(), text.split())
        errors += distance
        if distance:
            wrong += 1
            print(
                f"  {clip.name}\n    said     {clip.text or '(nothing)'}\n    written  {text or '(nothing)'}"
            )
    rate = errors / max(words, 1)
    print(f"  word error rate {rate:.2%}: {errors} errors in {words} words, {wrong} of {len(clips)} clips")
    return rate


def main() -> int:
    """Evaluate; returns whether the limit is kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--weights", type=Path, default=ROOT / "models" / checkpoint.DEFAULT, metavar="DIR")
    parser.add_argument("--clips", type=Path, default=ROOT / "tests/data/asr_eval", metavar="DIR")
    parser.add_argument("--limit", type=float, default=LIMIT, help="highest word error rate (default: 0.05)")
    parser.add_argument(
        "--telephone",
        choices=["g711", "line"],
        help="as 8 kHz µ-law carries them; behind a line of 300 to 3400 Hz",
    )
    args = parser.parse_args()

    clips = load_clips(args.clips)
    if args.telephone:
        clips = [by_telephone(clip, line=args.telephone == "line") for clip in clips]
    transcriber = Transcriber(args.weights)
    whole = report("recordings", clips, [text_of(transcriber.words(clip.audio)) for clip in clips])
    calls = report("calls", clips, transcribe_calls(checkpoint.load(args.weights), clips))
    if max(whole, calls) > args.limit:
        print(f"above the limit of {args.limit:.0%}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
