"""How well Moonshine hears people, what it takes for speech, and what that costs.

Real recordings go through the code that serves, without a server, whole and as calls in pieces of 80 ms: as
they are, in noise and babble, soft, from afar and by telephone. Then sounds that are no speech are read, with
voice activity detection and without it, and the time is measured that reading takes, one stream on one
thread. Ends with status 1 where the word error rate of the recordings as they are is above the limit.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import soundfile
import soxr
from eval_asr import CHUNK, SILENCE, Clip, load_clips
from harness.stats import spoken_words, word_errors
from numpy.typing import NDArray

from parley.asr.families import load_reader
from parley.asr.messages import AsrOptions, SpeechStoppedEvent, TranscribeRequest, TranscriptEvent
from parley.asr.pipeline.step import ChunkRequest, ChunkResult
from parley.asr.segments.pipeline import SegmentPipeline, SegmentPipelineLimits
from parley.asr.segments.reader import Reader, ReadOptions, RecognizedText
from parley.asr.segments.recordings import SegmentRecording, SegmentRecordingLimits, SegmentRounds
from parley.asr.segments.worker import InlineReader, ThreadedReader
from parley.protocol import VadOptions
from parley.runtime.onnx import open_session
from parley.vad.silero import FILE, SileroVad, bundled_folder
from parley_gateway.audio.codecs import AudioFormat, AudioStreamDecoder, Encoder

Wave = NDArray[np.float64]
"""Mono at 16 kHz, ``[n]``, full scale is 1."""
RATE = 16_000
_FULL_SCALE = 32_768
_VOICES = 8
"""Of a babble."""

ROOT = Path(__file__).resolve().parent.parent
RECORDINGS = ROOT / "models/test-recordings"
LIMIT = 0.1
JOIN_MS = 8_000
_PAUSES = VadOptions(silence_ms=300)
_NOTHING = ReadOptions()


def to_wave(audio: NDArray[np.int16]) -> Wave:
    """Samples as numbers."""
    return audio.astype(np.float64) / _FULL_SCALE


def to_samples(wave: Wave) -> NDArray[np.int16]:
    """Numbers as samples; what is too loud is cut off."""
    return np.clip(np.rint(wave * _FULL_SCALE), -_FULL_SCALE, _FULL_SCALE - 1).astype(np.int16)


def white(count: int) -> Wave:
    """Noise of all frequencies."""
    return np.random.default_rng(1).normal(0.0, 0.1, count)


def hum(count: int) -> Wave:
    """A mains hum with its harmonics."""
    time = np.arange(count) / RATE
    return np.asarray(sum(0.1 / k * np.sin(2 * np.pi * 50 * k * time) for k in (1, 2, 3, 5)))


def music(count: int) -> Wave:
    """Four chords in turn, each of plucked strings, with a beat."""
    out = np.zeros(count)
    rng = np.random.default_rng(2)
    chords = ((220.0, 261.6, 329.6), (174.6, 220.0, 261.6), (261.6, 329.6, 392.0), (196.0, 246.9, 293.7))
    for beat, start in enumerate(range(0, count, RATE // 2)):
        time = np.arange(min(RATE // 2, count - start)) / RATE
        for tone in chords[beat // 4 % 4]:
            out[start : start + len(time)] += sum(
                0.06 / k * np.sin(2 * np.pi * k * tone * time) * np.exp(-3 * k * time) for k in range(1, 6)
            )
        strike = min(800, len(time))
        out[start : start + strike] += 0.1 * rng.standard_normal(strike) * np.exp(-np.arange(strike) / 200)
    return out


def babble(voices: Sequence[NDArray[np.int16]], count: int) -> Wave:
    """Several people who speak at once: recordings one over the other, each going round."""
    loud = [to_wave(voice) for voice in voices]
    rows = [np.concatenate(loud[number::_VOICES]) for number in range(_VOICES)]
    return np.asarray(sum(np.resize(np.roll(row, 7_919 * number), count) for number, row in enumerate(rows)))


def mixed(speech: NDArray[np.int16], noise: Wave, snr_db: float) -> NDArray[np.int16]:
    """Speech in noise, with this ratio of their mean powers (dB)."""
    wave = to_wave(speech)
    gain = np.sqrt((wave**2).mean() / (noise**2).mean() / 10 ** (snr_db / 10))
    return to_samples(wave + gain * noise)


def soft(speech: NDArray[np.int16]) -> NDArray[np.int16]:
    """30 dB less."""
    return to_samples(to_wave(speech) * 10 ** (-30 / 20))


def far(speech: NDArray[np.int16]) -> NDArray[np.int16]:
    """From the other end of a room whose echoes take half a second to fade by 60 dB."""
    rng = np.random.default_rng(3)
    count = RATE // 2
    tail = rng.standard_normal(count) * 10 ** (-3 * np.arange(count) / count)
    tail[:200] = 0.0
    tail *= np.sqrt(2.0 / (tail**2).sum())  # 3 dB more than the direct sound
    tail[0] = 1.0
    wave = to_wave(speech)
    length = len(wave) + count
    heard = np.fft.irfft(np.fft.rfft(wave, length) * np.fft.rfft(tail, length), length)[: len(wave)]
    return to_samples(0.3 * heard)


def telephone(speech: NDArray[np.int16]) -> NDArray[np.int16]:
    """As 8 kHz µ-law carries it."""
    form = AudioFormat("ulaw", 8_000)
    return AudioStreamDecoder(form).decode(Encoder(form, RATE).encode(speech))


def versions(
    voices: Sequence[NDArray[np.int16]],
) -> Mapping[str, Callable[[NDArray[np.int16]], NDArray[np.int16]]]:
    """What is done to recordings, by name.

    Args:
        voices: recordings that babble is made from.
    """

    def in_white(snr_db: float) -> Callable[[NDArray[np.int16]], NDArray[np.int16]]:
        return lambda speech: mixed(speech, white(len(speech)), snr_db)

    def in_babble(snr_db: float) -> Callable[[NDArray[np.int16]], NDArray[np.int16]]:
        return lambda speech: mixed(speech, babble(voices, len(speech)), snr_db)

    return {
        "as they are": lambda speech: speech,
        **{f"white noise {snr} dB": in_white(snr) for snr in (20, 10, 5)},
        **{f"babble {snr} dB": in_babble(snr) for snr in (20, 10, 5)},
        "soft (-30 dB)": soft,
        "far": far,
        "telephone": telephone,
    }


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
        wave = wave if rate == RATE else soxr.resample(wave, rate, RATE)
        found.append(Clip(entry["file"], entry["text"], to_samples(wave.astype(np.float64))))
    return found


def transcribe_call(pipeline: SegmentPipeline, audio: NDArray[np.int16]) -> str:
    """A recording as a call of its own, the pauses of which are those of one turn."""
    stream = pipeline.new_stream(AsrOptions(partial_interval_ms=0, join_ms=JOIN_MS))
    said: dict[int, str] = {}
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
    return " ".join(filter(None, said.values()))


def read_whole(reader: Reader, vad: SileroVad, audio: NDArray[np.int16]) -> str:
    """A recording as ``moonshine_transcribe`` reads it."""
    recording = SegmentRecording(audio, TranscribeRequest(), reader, SegmentRecordingLimits(_PAUSES))
    rounds = SegmentRounds(reader, vad)
    while not recording.done:
        rounds.run([recording])
        if recording.error is not None:
            raise recording.error
    return recording.reply().text


def rate(title: str, clips: Sequence[Clip], hear: Callable[[NDArray[np.int16]], str], *, show: bool) -> float:
    """Print the word error rate and, on request, every text with an error."""
    errors = count = 0
    shown = []
    for clip in clips:
        heard = hear(clip.audio)
        distance = word_errors(spoken_words(clip.text), spoken_words(heard))
        errors, count = errors + distance, count + len(spoken_words(clip.text))
        if show:
            shown.append(f"    {clip.name}: {distance} errors\n      {heard}")
    print(f"  {title:<22} {errors / count:>7.1%}  {errors} errors in {count} words")
    print("\n".join(shown) + "\n" if shown else "", end="")
    return errors / count


def final_texts(pipeline: SegmentPipeline, audio: NDArray[np.int16]) -> list[TranscriptEvent]:
    """The final texts of a call, each utterance by itself."""
    stream = pipeline.new_stream(AsrOptions(partial_interval_ms=0))
    found: list[TranscriptEvent] = []
    call = np.concatenate([SILENCE, audio, SILENCE])
    for start in range(0, len(call), CHUNK):
        (heard,) = pipeline.step([ChunkRequest(stream, call[start : start + CHUNK])])
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
    pipeline = SegmentPipeline(reader, InlineReader(reader), vad, SegmentPipelineLimits(), model="moonshine")
    seconds = 60 * RATE
    makers: dict[str, Callable[[int], Wave]] = {
        "silence": np.zeros,
        "soft noise": lambda n: 0.01 * white(n),
        "white noise": white,
        "hum": hum,
        "music": music,
        "babble": lambda n: babble(voices, n),
    }
    noises = {name: to_samples(make(seconds)) for name, make in makers.items()}
    noisy = [mixed(clip.audio, babble(voices, len(clip.audio)), 10) for clip in clips]
    print("\nconfidence                         texts  p5    p50   p95   from 0.35  0.40  0.45  0.50  0.55")
    _print_sure("people", [e for clip in clips for e in final_texts(pipeline, clip.audio)])
    _print_sure("synthetic voices", [e for voice in voices for e in final_texts(pipeline, voice)])
    _print_sure("people in babble, 10 dB", [e for audio in noisy for e in final_texts(pipeline, audio)])
    for name, noise in noises.items():
        _print_sure(f"{name}, 60 s", final_texts(pipeline, noise))
    for name, noise in noises.items():
        lengths = [RATE * n for n in (1, 2, 4, 6)]
        stretches = [noise[at : at + n] for n in lengths for at in range(0, seconds - n, 6 * RATE)]
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
        audio = clip.audio[: round(seconds * RATE)]
        found = [reader.read(audio, _NOTHING) for _ in range(5)]
        encoder = statistics.median(text.encoder_ms for text in found)
        whole = statistics.median(text.encoder_ms + text.decoder_ms for text in found)
        print(f"  {seconds:>6}           {encoder:>7.1f}   {whole:>7.1f}")


def print_call_costs(reader: Reader, vad: SileroVad, clips: Sequence[Clip]) -> None:
    """Print what calls take of a core, and how soon after the end of speech the final text is there.

    Calls go through the worker with its thread, in real time.
    """
    worker = ThreadedReader(reader, room=128)
    pipeline = SegmentPipeline(reader, worker, vad, SegmentPipelineLimits(), model="moonshine")
    delays_ms: list[float] = []
    spent, seconds = time.process_time(), 0.0
    for clip in clips:
        stream = pipeline.new_stream(AsrOptions(join_ms=JOIN_MS))
        call = np.concatenate([SILENCE, clip.audio, SILENCE])
        began = time.perf_counter()
        ended: dict[int, float] = {}
        for start in range(0, len(call), CHUNK):
            due = began + (start + CHUNK) / RATE
            time.sleep(max(0.0, due - time.perf_counter()))
            (heard,) = pipeline.step([ChunkRequest(stream, call[start : start + CHUNK])])
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
                (heard,) = pipeline.step([ChunkRequest(stream, call[:0])])
            if not isinstance(heard, ChunkResult):
                raise heard
        pipeline.release(stream)
        seconds += len(call) / RATE
    spent = time.process_time() - spent
    worker.close(5.0)
    p50, p95 = np.percentile(delays_ms, [50, 95])
    print(
        f"\ncalls in real time with partial texts: {spent / seconds:.0%} of a core each, "
        f"{seconds / spent:.1f} of them a core"
    )
    print(f"final text after the end of speech: p50 {p50:.0f} ms, p95 {p95:.0f} ms (160 ms of them silence)")


def main() -> int:
    """Evaluate; returns whether the limit is kept."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--weights", type=Path, default=ROOT / "models" / "moonshine-tiny-en", metavar="DIR")
    parser.add_argument("--recordings", type=Path, default=ROOT / "perf/recordings.json", metavar="FILE")
    parser.add_argument("--limit", type=float, default=LIMIT, help="highest word error rate (default: 0.1)")
    parser.add_argument("--show", action="store_true", help="print the texts of the recordings as they are")
    parser.add_argument("--only", choices=["errors", "gate", "costs"], help="print only this")
    args = parser.parse_args()

    reader = load_reader(args.weights, "moonshine", open_session)
    vad = SileroVad(open_session(bundled_folder() / FILE))
    clips = load_recordings(args.recordings)
    if not clips:
        parser.error(f"no recordings: `make fetch MODEL={RECORDINGS.name}` brings them")
    voices = [clip.audio for clip in load_clips(ROOT / "tests/data/asr_eval") if clip.text]
    worst = 0.0
    if args.only in (None, "errors"):
        pipeline = SegmentPipeline(
            reader, InlineReader(reader), vad, SegmentPipelineLimits(), model="moonshine"
        )
        print("word error rate of whole recordings")
        worst = rate("as they are", clips, lambda audio: read_whole(reader, vad, audio), show=args.show)
        print("word error rate of calls")
        for name, change in versions(voices).items():
            changed = [replace(clip, audio=change(clip.audio)) for clip in clips]
            found = rate(
                name,
                changed,
                lambda audio: transcribe_call(pipeline, audio),
                show=args.show and name == "as they are",
            )
            worst = max(worst, found) if name == "as they are" else worst
    if args.only in (None, "gate"):
        print_gate(
            load_reader(args.weights, "moonshine", open_session, least_confidence=0.0),
            vad,
            clips,
            voices,
        )
    if args.only in (None, "costs"):
        print_costs(reader, clips[0])
        print_call_costs(reader, vad, clips)
    if worst > args.limit:
        print(f"above the limit of {args.limit:.0%}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
