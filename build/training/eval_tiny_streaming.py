"""Measure the exported tiny streaming recogniser on sentences and voices that it was not trained on.

Every clip goes through the code that serves, without a server, with each look-ahead: in pieces of 80 ms,
silence before it and a flush at its end, as an utterance of its own.  Prints the word error rates; what
is written where there is no speech; how late words are written; and every mistake with the default
look-ahead.  Ends with status 1 where that look-ahead's word error rate on held-out sentences and voices
is above the limit.

How late a word is written: the audio that had been heard when its first token was written, less the
time at which the offline model (``--offline-model``) places that token.  Only words of clips that both
models hear without error count.  The last token is also compared with the end of the speech itself.

The clips are made from ``--seed`` by the programs of ``tiny.speech``, or taken from ``--work``.
Needs ``src`` on ``PYTHONPATH``.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import parley  # noqa: F401 - first: it turns ONNX Runtime's telemetry off

# isort: split
import jiwer
import numpy as np
import onnx_asr

from parley.asr.decoding.words import words_of
from parley.asr.streaming import encoder as streaming_checkpoint
from parley.asr.streaming.utterance import StreamingUtterance
from parley.models.nemotron_streaming import load_recognizer
from parley.runtime.onnx import open_session
from tiny.augment import Heard, clean, silent, varied
from tiny.corpus import SPLITS, make
from tiny.speech import SAMPLE_RATE

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 0.06
JUDGED = "sentences_and_voices"
LOOK_AHEADS = (0, 1, 6, 13)
JUDGED_LOOK_AHEAD = 1
SILENT_CLIPS = 100
PIECE = 1280
"""Samples that arrive at once: 80 ms."""


@dataclass(frozen=True)
class Clip:
    """A clip that is heard, and what is said in it."""

    split: str
    voice: str
    text: str
    heard: Heard


@dataclass(frozen=True)
class Written:
    """What was written for one clip, and when."""

    words: tuple[str, ...]
    starts: tuple[float, ...]
    """Seconds of audio that had been heard when each word's first token was written."""
    end: float
    """Seconds of audio that had been heard when the last token was written."""

    @property
    def text(self) -> str:
        """All words."""
        return " ".join(self.words)


class Recogniser:
    """The exported model with one look-ahead."""

    def __init__(self, folder: Path, look_ahead: int) -> None:
        export = streaming_checkpoint.load(folder)
        wait = export.look_ahead_ms(look_ahead)
        self._recognizer, chunks = load_recognizer(
            export, [wait], open_session, slots=1, audio=16 * wait + PIECE
        )
        self._checkpoint = export.checkpoint
        self._chunk = chunks[wait]

    def hear(self, heard: Heard) -> Written:
        """Transcribe one clip."""
        utterance = StreamingUtterance(1, 0, chunk=self._chunk, keep_audio=False)
        utterance.slot = self._recognizer.acquire()
        audio = np.rint(heard.audio * 32767).astype(np.int16)
        times: list[float] = []
        for start in range(0, len(audio), PIECE):
            piece = audio[start : start + PIECE]
            self._recognizer.write(utterance, piece)
            utterance.hear(piece)
            utterance.ended = start + PIECE >= len(audio)
            self._recognizer.recognize([utterance]).keep([utterance.slot])
            if utterance.failure is not None:
                raise utterance.failure
            times += [utterance.written / SAMPLE_RATE] * (len(utterance.tokens().ids) - len(times))
        self._recognizer.release(utterance.slot)
        tokens = utterance.tokens()
        begins = [self._checkpoint.vocabulary[token].startswith("\u2581") for token in tokens.ids]
        return Written(
            tuple(word.text for word in words_of(tokens, self._checkpoint)),
            tuple(time for time, new in zip(times, begins, strict=True) if new),
            times[-1] if times else 0.0,
        )


def placed(offline: onnx_asr.adapters.TimestampedResultsAsrAdapter, heard: Heard) -> Written:
    """Where the offline model places the words of one clip."""
    result = offline.recognize(heard.audio)
    words: list[tuple[str, float]] = []
    for token, time in zip(result.tokens or (), result.timestamps or (), strict=True):
        if token.startswith(" ") or not words:
            words.append((token.lstrip(), time))
        else:
            words[-1] = (words[-1][0] + token, words[-1][1])
    return Written(tuple(word for word, _ in words), tuple(time for _, time in words), 0.0)


def print_rates(clips: Sequence[Clip], written: dict[str, list[Written]]) -> None:
    """Word error rates by split and condition."""
    print(f"{'word error rate':24}{'clips':>6}" + "".join(f"{name:>10}" for name in written))
    for split in dict.fromkeys(clip.split for clip in clips):
        columns = [rate(clips, column, split) for column in written.values()]
        count = sum(clip.split == split for clip in clips)
        print(f"{split:24}{count:6}" + "".join(f"{value:10.1%}" for value in columns))


def rate(clips: Sequence[Clip], written: Sequence[Written], split: str) -> float:
    """Word error rate of one split, 0 to 1."""
    rows = [(clip.text, row.text) for clip, row in zip(clips, written, strict=True) if clip.split == split]
    return float(jiwer.wer([text for text, _ in rows], [text for _, text in rows]))


def print_delays(
    clips: Sequence[Clip], written: dict[str, list[Written]], reference: Sequence[Written]
) -> None:
    """How late words are written, in milliseconds."""
    print(f"\n{'written late by (ms)':24}{'words':>6}{'mean':>8}{'median':>8}{'p95':>8}{'last token':>12}")
    for name, column in written.items():
        rows = [
            (clip, row, place)
            for clip, row, place in zip(clips, column, reference, strict=True)
            if row.text == place.text == clip.text
        ]
        late = [
            1000 * (start - time)
            for _, row, place in rows
            for start, time in zip(row.starts, place.starts, strict=True)
        ]
        if not late:
            print(f"{name:24}{0:6}")
            continue
        last = np.mean([1000 * (row.end - clip.heard.span[1] / SAMPLE_RATE) for clip, row, _ in rows])
        middle, most = np.percentile(late, (50, 95))
        print(f"{name:24}{len(late):6}{np.mean(late):8.0f}{middle:8.0f}{most:8.0f}{last:12.0f}")


def print_silence(recogniser: Recogniser, seed: int) -> None:
    """What is written for segments without speech."""
    rng = np.random.default_rng(seed)
    texts = [recogniser.hear(silent(rng.uniform(0.3, 3), rng)).text for _ in range(SILENT_CLIPS)]
    some = [text for text in texts if text]
    print(f"\nsegments without speech: {len(some)} of {SILENT_CLIPS} gave text: {some}")


def print_mistakes(clips: Sequence[Clip], written: Sequence[Written]) -> None:
    """Every wrong transcript."""
    wrong = [(clip, row) for clip, row in zip(clips, written, strict=True) if clip.text != row.text]
    print(f"\nwrong: {len(wrong)} of {len(clips)} clips")
    for clip, row in wrong:
        print(f"  {clip.text}\n    {row.text}   [{clip.voice}]")


def main() -> None:
    """Print the whole evaluation."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", type=Path, default=ROOT / "models/tiny-nemotron-streaming")
    parser.add_argument("--offline-model", type=Path, default=ROOT / "models/tiny-parakeet-tdt")
    parser.add_argument("--work", type=Path, default=ROOT / "out/tiny-asr", help="clips")
    parser.add_argument("--clips", type=int, default=1000, help="most clips of each split")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=2, help="synthesizers at a time")
    args = parser.parse_args()

    clips, noisy = [], []
    for split, count in SPLITS.items():
        if split == "train":
            continue
        made = make(split, count, args.seed, args.work / "data", args.processes)
        rng = np.random.default_rng(args.seed)
        for index in range(min(args.clips, count)):
            voice, text = made.voices[index], made.texts[index]
            clips.append(Clip(split, voice, text, clean(made[index])))
            noisy.append(varied(made[index], rng))

    recognisers = {look_ahead: Recogniser(args.model, look_ahead) for look_ahead in LOOK_AHEADS}
    written = {
        f"R={look_ahead}": [recogniser.hear(clip.heard) for clip in clips]
        for look_ahead, recogniser in recognisers.items()
    }
    judged = recognisers[JUDGED_LOOK_AHEAD]
    judged_name = f"R={JUDGED_LOOK_AHEAD}"
    print_rates(clips, {**written, f"{judged_name} noisy": [judged.hear(heard) for heard in noisy]})
    offline = onnx_asr.load_model("nemo-conformer-tdt", args.offline_model).with_timestamps()
    print_delays(clips, written, [placed(offline, clip.heard) for clip in clips])
    print_silence(judged, args.seed)
    print_mistakes(clips, written[judged_name])
    reached = rate(clips, written[judged_name], JUDGED)
    if reached > LIMIT:
        sys.exit(f"\n{JUDGED} with {judged_name}: {reached:.1%} is above {LIMIT:.0%}")


if __name__ == "__main__":
    main()
