"""How well the end of a turn is found in the recordings of the tests, and how long it takes.

Each recording is heard whole and, with silence from there on, up to the end of each of its words but the
last: a caller who falls silent in the middle of a sentence. Nobody did when the sentence was spoken, so a cut
does not sound like a person who hesitates, and synthetic voices do not sound like persons at all. Recordings
of people can be brought along: folders with a ``manifest.json`` as in ``tests/data/asr_eval``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from eval_asr import ROOT, load_clips
from numpy.typing import NDArray

from parley.asr import checkpoint
from parley.asr.parakeet.local import Transcriber
from parley.serving.onnx import open_session
from parley.turns.cues import find_cue
from parley.turns.policy import judge
from parley.turns.settings import PRESETS, TurnSettings
from parley.turns.smart_turn import FILE, SmartTurn, bundled_folder

PER_MS = 16
NOTICED_MS = 300
"""Silence after which a pause is noticed (``vad.silence_ms``)."""
BEFORE = np.zeros(500 * PER_MS, np.int16)
AFTER = np.zeros(NOTICED_MS * PER_MS, np.int16)


@dataclass(frozen=True)
class Pause:
    """A pause at the end of a turn, or within one."""

    text: str
    score: float
    """That the turn is over, as the model hears it."""
    over: bool


def find_pauses(folder: Path, transcriber: Transcriber, network: SmartTurn) -> list[Pause]:
    """The pauses of all recordings of a folder."""
    pauses = []
    for clip in load_clips(folder):
        words = transcriber.words(clip.audio)
        for count, word in enumerate(words, 1):
            over = count == len(words)
            end = len(clip.audio) if over else min(word.end_ms, words[count].start_ms) * PER_MS
            speech = np.concatenate([BEFORE, clip.audio[:end], AFTER])
            text = " ".join(word.text for word in words[:count])
            pauses.append(Pause(text, float(network.score([speech])[0]), over))
    return pauses


def silences(pauses: Sequence[Pause], settings: TurnSettings | None, *, scored: bool) -> NDArray[np.int64]:
    """Silence that ends the turn at each pause (milliseconds): no less than it takes to notice it."""
    if settings is None:
        return np.full(len(pauses), NOTICED_MS)
    needed = [
        judge(settings, pause.score if scored else None, find_cue(pause.text, "en")).needed_ms
        for pause in pauses
    ]
    return np.maximum(needed, NOTICED_MS)


def main() -> None:
    """Print what the model hears, and what the policy makes of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    data = ROOT / "tests/data"
    parser.add_argument("folders", type=Path, nargs="*", default=[data / "asr_eval", data / "conversation"])
    parser.add_argument("--pause-ms", type=int, default=800, help="length of a pause within a turn")
    args = parser.parse_args()
    transcriber = Transcriber(ROOT / "models" / checkpoint.DEFAULT)
    network = SmartTurn(open_session(bundled_folder() / FILE))
    pauses = [pause for folder in args.folders for pause in find_pauses(folder, transcriber, network)]
    over = np.array([pause.over for pause in pauses])
    scores = np.array([pause.score for pause in pauses])
    print(f"smart_turn: {np.mean(scores[over] >= 0.5):.1%} of {over.sum()} turns sound complete,")
    print(f"            {np.mean(scores[~over] < 0.5):.1%} of {(~over).sum()} beginnings of turns incomplete")
    print(f"\n{'':28}cut off by a pause   silence after a turn, ms")
    print(f"{'':28}   of {args.pause_ms} ms             p50    p95")
    rows: list[tuple[str, TurnSettings | None, bool]] = [("off", None, False)]
    rows += [(f"{name}, words alone", settings, False) for name, settings in PRESETS.items()]
    rows += [(f"{name}, words and sound", settings, True) for name, settings in PRESETS.items()]
    for name, settings, scored in rows:
        needed = silences(pauses, settings, scored=scored)
        cut_off = np.mean(needed[~over] <= args.pause_ms)
        p50, p95 = np.percentile(needed[over], [50, 95])
        print(f"{name:28}{cut_off:12.1%}{'':14}{p50:9.0f}{p95:7.0f}")


if __name__ == "__main__":
    main()
