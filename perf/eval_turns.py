"""How well the end of a turn is found in the recordings of the tests, and how long it takes.

Each recording is heard whole and, with silence from there on, up to the end of each of its words but the
last: a caller who falls silent in the middle of a sentence. The speakers did not, so a cut
does not sound like a person who hesitates, and synthetic voices do not sound like persons at all. Recordings
of people can be brought along: folders with a ``manifest.json`` as in ``tests/data/asr_eval``.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from harness.recordings import load_recordings
from local_models import Transcriber
from numpy.typing import NDArray

from parley.asr import checkpoint
from parley.launcher.options import ROOT
from parley.runtime.onnx import open_session
from parley.turns.cues import find_cue
from parley.turns.endpointing import judge
from parley.turns.settings import PRESETS, TurnSettings
from parley.turns.smart_turn import SmartTurn, bundled_folder, network_file

PER_MS = 16
NOTICED_MS = 160
"""Silence after which a pause is noticed (``vad.silence_ms``)."""
PAUSES_MS = (300, 500, 800, 1_200)
BEFORE = np.zeros(500 * PER_MS, np.int16)
AFTER = np.zeros(NOTICED_MS * PER_MS, np.int16)
_SEARCH_MS = 60
"""The recogniser places words to 80 ms; a pause is put where it is quietest this near."""


@dataclass(frozen=True)
class Pause:
    """A pause at the end of a turn, or within one."""

    text: str
    speech: NDArray[np.int16]
    """With the silence until the pause is noticed."""
    over: bool


def find_pauses(folder: Path, transcriber: Transcriber) -> list[Pause]:
    """The pauses of all recordings of a folder."""
    pauses = []
    for clip in load_recordings(folder / "manifest.json"):
        words = transcriber.words(clip.samples)
        loud = _loud_end(clip.samples)
        for count, word in enumerate(words, 1):
            over = count == len(words)
            end = loud if over else _quietest(clip.samples, min(word.end_ms, words[count].start_ms) * PER_MS)
            speech = np.concatenate([BEFORE, clip.samples[:end], AFTER])
            pauses.append(Pause(" ".join(word.text for word in words[:count]), speech, over))
    return pauses


def _loud_end(audio: NDArray[np.int16]) -> int:
    """Where the speech ends: the recordings have silence of their own after it."""
    level = np.abs(audio.astype(np.int32))
    return int(np.flatnonzero(level > 0.01 * level.max())[-1]) + 10 * PER_MS if level.any() else len(audio)


def _quietest(audio: NDArray[np.int16], near: int) -> int:
    start = max(0, near - _SEARCH_MS * PER_MS)
    around = audio[start : near + _SEARCH_MS * PER_MS].astype(np.float64)
    return start + int(np.argmin(np.convolve(np.square(around), np.ones(5 * PER_MS), "same")))


def silences(
    pauses: Sequence[Pause], scores: NDArray[np.float32] | None, settings: TurnSettings | None
) -> NDArray[np.int64]:
    """Silence that ends the turn at each pause (milliseconds): no less than it takes to notice it."""
    if settings is None:
        return np.full(len(pauses), NOTICED_MS)
    needed = [
        judge(
            settings, None if scores is None else float(scores[index]), find_cue(pause.text, "en")
        ).needed_ms
        for index, pause in enumerate(pauses)
    ]
    return np.maximum(needed, NOTICED_MS)


def main() -> None:
    """Print what the networks hear, and what the policy makes of it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    data = ROOT / "tests/data"
    parser.add_argument("folders", type=Path, nargs="*", default=[data / "asr_eval", data / "conversation"])
    parser.add_argument(
        "--network",
        type=Path,
        nargs="*",
        default=[ROOT / "models/tiny-smart-turn", bundled_folder()],
        help="folders of end-of-turn networks (default: those of the tiny and the gpu profile)",
    )
    args = parser.parse_args()
    transcriber = Transcriber(ROOT / "models" / checkpoint.DEFAULT)
    pauses = [pause for folder in args.folders for pause in find_pauses(folder, transcriber)]
    over = np.array([pause.over for pause in pauses])
    rows: list[tuple[str, NDArray[np.float32] | None, TurnSettings | None]] = [("off", None, None)]
    rows += [(f"{name}, words", None, settings) for name, settings in PRESETS.items()]
    for folder in args.network:
        file = network_file(folder)
        network = SmartTurn(open_session(file))
        started = time.perf_counter()
        scores = network.score([pause.speech for pause in pauses])
        each_ms = (time.perf_counter() - started) / len(pauses) * 1000
        print(f"{file.stem}: {each_ms:.1f} ms for a score;")
        print(f"    {np.mean(scores[over] >= 0.5):6.1%} of {over.sum()} turns sound complete,")
        print(f"    {np.mean(scores[~over] < 0.5):6.1%} of {(~over).sum()} beginnings of turns incomplete")
        rows += [(f"{name}, words, {file.stem}", scores, settings) for name, settings in PRESETS.items()]
    print(f"\n{'':32}cut off by a pause of ... ms          silence after a turn, ms")
    print(f"{'':32}{''.join(f'{pause:8}' for pause in PAUSES_MS)}           p50    p95")
    for name, found, settings in rows:
        needed = silences(pauses, found, settings)
        cut_off = "".join(f"{np.mean(needed[~over] <= pause):8.1%}" for pause in PAUSES_MS)
        p50, p95 = np.percentile(needed[over], [50, 95])
        print(f"{name:32}{cut_off}{'':6}{p50:8.0f}{p95:7.0f}")


if __name__ == "__main__":
    main()
