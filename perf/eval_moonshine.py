"""How well Moonshine hears people, what it takes for speech, and what that costs.

Real recordings go through the code that serves, without a server, whole and as calls in pieces of 80 ms: as
they are, in noise and babble, soft, from afar and by telephone. Then sounds that are no speech are read, with
voice activity detection and without it, and the time is measured that reading takes, one stream on one
thread. Ends with status 1 where the word error rate of the recordings as they are is above the limit.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import degraded
import numpy as np
import soundfile
import soxr
from eval_asr import CHUNK, SILENCE, Clip, load_clips
from numpy.typing import NDArray
from word_errors import word_errors

from parley.asr.decoding.boosting import PhraseAutomaton
from parley.asr.messages import AsrOptions, SpeechStoppedEvent, TranscribeRequest, TranscriptEvent
from parley.asr.moonshine import networks
from parley.asr.moonshine.pipeline import MoonshineLimits, MoonshinePipeline
from parley.asr.moonshine.reader import Reader, RecognizedText
from parley.asr.moonshine.recordings import MoonshineRecording, MoonshineRecordingLimits, MoonshineRounds
from parley.asr.moonshine.worker import InlineReader, ThreadedReader
from parley.asr.pipeline.step import ChunkRequest, ChunkResult
from parley.protocol import VadOptions
from parley.runtime.onnx import open_session
from parley.turns.interruption_words import as_said
from parley.vad.silero import FILE, SileroVad, bundled_folder

ROOT = Path(__file__).resolve().parent.parent
RECORDINGS = ROOT / "models/test-recordings"
LIMIT = 0.1
JOIN_MS = 8_000
_PAUSES = VadOptions(silence_ms=300)
_NOTHING = PhraseAutomaton.nothing()
_WORDS = re.compile(r"[a-z0-9']+")


def words(text: str) -> list[str]:
    """The words that count: without case, punctuation and dashes."""
    return as_said(_WORDS.findall(text.lower().replace("\N{RIGHT SINGLE QUOTATION MARK}", "'")))


def load_recordings(manifest: Path) -> list[Clip]:
    """Those that the manifest names and that are there: beside it, or among the fetched weights."""
    found = []
    for entry in json.loads(manifest.read_text()):
        places = [folder / entry["file"] for folder in (manifest.parent, RECORDINGS)]
        path = next((place for place in places if place.is_file()), None)
        if path is None:
            print(f"{entry['file']} is not there and is left out", file=sys.stderr)
            continue
        wave, rate = soundfile.read(path, dtype="float32")
        wave = wave if wave.ndim == 1 else wave.mean(axis=1)
        wave = wave if rate == degraded.RATE else soxr.resample(wave, rate, degraded.RATE)
        found.append(Clip(entry["file"], entry["text"], degraded.to_samples(wave.astype(np.float64))))
    return found


def hear_call(rail: MoonshinePipeline, audio: NDArray[np.int16]) -> str:
    """A recording as a call of its own, the pauses of which are those of one turn."""
    stream = rail.new_stream(AsrOptions(partial_interval_ms=0, join_ms=JOIN_MS))
    said: dict[int, str] = {}
    call = np.concatenate([SILENCE, audio, SILENCE])
    for start in range(0, len(call), CHUNK):
        (heard,) = rail.step([ChunkRequest(stream, call[start : start + CHUNK])])
        if not isinstance(heard, ChunkResult):
            raise heard
        stream = heard.stream
        for event in heard.reply.events:
            if isinstance(event, TranscriptEvent):
                if event.first in said:  # as the agent does
                    said = {number: text for number, text in said.items() if number < event.first}
                    said[event.first] = event.before
                said[event.utterance] = event.text
    return " ".join(filter(None, said.values()))


def read_whole(reader: Reader, vad: SileroVad, audio: NDArray[np.int16]) -> str:
    """A recording as ``moonshine_transcribe`` reads it."""
    recording = MoonshineRecording(audio, TranscribeRequest(), reader, MoonshineRecordingLimits(_PAUSES))
    rounds = MoonshineRounds(reader, vad)
    while not recording.done:
        rounds.run([recording])
        if recording.error is not None:
            raise recording.error
    return recording.reply().text


def rate(title: str, clips: Sequence[Clip], hear: Callable[[NDArray[np.int16]], str], *, show: bool) -> float:
    """Print the word error rate and, if wanted, every text with an error."""
    errors = count = 0
    shown = []
    for clip in clips:
        heard = hear(clip.audio)
        distance = word_errors(words(clip.text), words(heard))
        errors, count = errors + distance, count + len(words(clip.text))
        if show:
            shown.append(f"    {clip.name}: {distance} errors\n      {heard}")
    print(f"  {title:<22} {errors / count:>7.1%}  {errors} errors in {count} words")
    print("\n".join(shown) + "\n" if shown else "", end="")
    return errors / count


def final_texts(rail: MoonshinePipeline, audio: NDArray[np.int16]) -> list[TranscriptEvent]:
    """The final texts of a call, each utterance by itself."""
    stream = rail.new_stream(AsrOptions(partial_interval_ms=0))
    found: list[TranscriptEvent] = []
    call = np.concatenate([SILENCE, audio, SILENCE])
    for start in range(0, len(call), CHUNK):
        (heard,) = rail.step([ChunkRequest(stream, call[start : start + CHUNK])])
        if not isinstance(heard, ChunkResult):
            raise heard
        stream = heard.stream
        found += [event for event in heard.reply.events if isinstance(event, TranscriptEvent)]
    return found


def print_gate(
    reader: Reader, vad: SileroVad, clips: Sequence[Clip], voices: Sequence[NDArray[np.int16]]
) -> None:
    """Print how sure the network is of speech and of other sounds, and what of both would be taken for text.

    Args:
        reader: that takes everything for text.
        vad: what it lets through are utterances; what it does not is read too, in pieces of 1 to 6 s.
        clips: people who speak.
        voices: what babble is made of.
    """
    rail = MoonshinePipeline(reader, InlineReader(reader), vad, MoonshineLimits())
    seconds = 60 * degraded.RATE
    makers: dict[str, Callable[[int], degraded.Wave]] = {
        "silence": np.zeros,
        "soft noise": lambda n: 0.01 * degraded.white(n),
        "white noise": degraded.white,
        "hum": degraded.hum,
        "music": degraded.music,
        "babble": lambda n: degraded.babble(voices, n),
    }
    noises = {name: degraded.to_samples(make(seconds)) for name, make in makers.items()}
    noisy = [degraded.mixed(clip.audio, degraded.babble(voices, len(clip.audio)), 10) for clip in clips]
    print("\nconfidence                         texts  p5    p50   p95   from 0.35  0.40  0.45  0.50  0.55")
    _print_sure("people", [e for clip in clips for e in final_texts(rail, clip.audio)])
    _print_sure("synthetic voices", [e for voice in voices for e in final_texts(rail, voice)])
    _print_sure("people in babble, 10 dB", [e for audio in noisy for e in final_texts(rail, audio)])
    for name, noise in noises.items():
        _print_sure(f"{name}, 60 s", final_texts(rail, noise))
    for name, noise in noises.items():
        lengths = [degraded.RATE * n for n in (1, 2, 4, 6)]
        stretches = [noise[at : at + n] for n in lengths for at in range(0, seconds - n, 6 * degraded.RATE)]
        _print_sure(f"{name}, read unasked", [reader.read(audio, _NOTHING) for audio in stretches])


def _print_sure(name: str, texts: Sequence[RecognizedText | TranscriptEvent]) -> None:
    sure = np.array([text.confidence for text in texts])
    p5, p50, p95 = np.percentile(sure, [5, 50, 95]) if len(sure) else np.zeros(3)
    shares = "  ".join(f"{(sure >= least).sum():>4}" for least in (0.35, 0.40, 0.45, 0.50, 0.55))
    print(f"  {name:<30} {len(sure):>6}  {p5:.2f}  {p50:.2f}  {p95:.2f}       {shares}")


def print_costs(reader: Reader, clip: Clip) -> None:
    """Print what reading costs by length."""
    print("\nseconds of audio   encoder   all (ms, median of 5)")
    for seconds in (0.5, 1, 2, 3, 6, 9):
        audio = clip.audio[: round(seconds * degraded.RATE)]
        found = [reader.read(audio, _NOTHING) for _ in range(5)]
        encoder = statistics.median(text.encoder_ms for text in found)
        whole = statistics.median(text.encoder_ms + text.decoder_ms for text in found)
        print(f"  {seconds:>6}           {encoder:>7.1f}   {whole:>7.1f}")


def print_call_costs(reader: Reader, vad: SileroVad, clips: Sequence[Clip]) -> None:
    """Print what calls take of a core, and how soon after the end of speech the final text is there.

    Calls go through the desk with its thread, in real time.
    """
    desk = ThreadedReader(reader, room=128)
    rail = MoonshinePipeline(reader, desk, vad, MoonshineLimits())
    delays_ms: list[float] = []
    spent, seconds = time.process_time(), 0.0
    for clip in clips:
        stream = rail.new_stream(AsrOptions(join_ms=JOIN_MS))
        call = np.concatenate([SILENCE, clip.audio, SILENCE])
        began = time.perf_counter()
        ended: dict[int, float] = {}
        for start in range(0, len(call), CHUNK):
            due = began + (start + CHUNK) / degraded.RATE
            time.sleep(max(0.0, due - time.perf_counter()))
            (heard,) = rail.step([ChunkRequest(stream, call[start : start + CHUNK])])
            while isinstance(heard, ChunkResult):
                stream = heard.stream
                for event in heard.reply.events:
                    if isinstance(event, SpeechStoppedEvent):
                        ended[event.utterance] = began + event.at_ms / 1000
                    elif isinstance(event, TranscriptEvent) and event.is_final:
                        delays_ms.append(1000 * (time.perf_counter() - ended[event.utterance]))
                if not stream.awaited:
                    break
                time.sleep(0.016)  # as the agent does
                (heard,) = rail.step([ChunkRequest(stream, call[:0])])
            if not isinstance(heard, ChunkResult):
                raise heard
        rail.release(stream)
        seconds += len(call) / degraded.RATE
    spent = time.process_time() - spent
    desk.close(5.0)
    p50, p95 = np.percentile(delays_ms, [50, 95])
    print(
        f"\ncalls in real time with partial texts: {spent / seconds:.0%} of a core each, "
        f"{seconds / spent:.1f} of them a core"
    )
    print(f"final text after the end of speech: p50 {p50:.0f} ms, p95 {p95:.0f} ms (160 ms of them silence)")


def main() -> int:
    """Evaluate and say whether the limit is kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--weights", type=Path, default=ROOT / "models" / networks.DEFAULT, metavar="DIR")
    parser.add_argument("--recordings", type=Path, default=ROOT / "perf/recordings.json", metavar="FILE")
    parser.add_argument("--limit", type=float, default=LIMIT, help="highest word error rate (default: 0.1)")
    parser.add_argument("--show", action="store_true", help="print the texts of the recordings as they are")
    parser.add_argument("--only", choices=["errors", "gate", "costs"], help="print only this")
    args = parser.parse_args()

    reader = Reader.load(args.weights, open_session)
    vad = SileroVad(open_session(bundled_folder() / FILE))
    clips = load_recordings(args.recordings)
    if not clips:
        parser.error(f"no recordings: `make fetch MODEL={RECORDINGS.name}` brings them")
    voices = [clip.audio for clip in load_clips(ROOT / "tests/data/asr_eval") if clip.text]
    worst = 0.0
    if args.only in (None, "errors"):
        rail = MoonshinePipeline(reader, InlineReader(reader), vad, MoonshineLimits())
        print("word error rate of whole recordings")
        worst = rate("as they are", clips, lambda audio: read_whole(reader, vad, audio), show=args.show)
        print("word error rate of calls")
        for name, change in degraded.versions(voices).items():
            changed = [replace(clip, audio=change(clip.audio)) for clip in clips]
            found = rate(
                name,
                changed,
                lambda audio: hear_call(rail, audio),
                show=args.show and name == "as they are",
            )
            worst = max(worst, found) if name == "as they are" else worst
    if args.only in (None, "gate"):
        print_gate(Reader.load(args.weights, open_session, least_confidence=0.0), vad, clips, voices)
    if args.only in (None, "costs"):
        print_costs(reader, clips[0])
        print_call_costs(reader, vad, clips)
    if worst > args.limit:
        print(f"above the limit of {args.limit:.0%}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
