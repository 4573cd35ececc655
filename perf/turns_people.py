"""How soon, and how often too soon, the end of a turn is found in recordings of people.

Each recording is a turn of one speaker: its end is an end, the pauses inside are holds. As eot-bench does,
every pause of 100 ms or more is scored each 100 ms by what was heard until then, and thresholds, delays and
timeouts are swept. The policy that serves is swept with the score at 160 ms and Moonshine's words. Where it
adapts, ten recordings of a speaker are a call; beside it, as much later for all speakers.
No server runs, and no time of computing counts.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from eval_recordings import open_moonshine, to_pcm
from harness.people import Clip, load_folder, load_people
from harness.program import run_program
from harness.recordings import RATE, RecordingError
from harness.report import Table
from rich.console import Console

from parley.errors import InvalidMessageError
from parley.launcher.options import ROOT
from parley.protocol import TurnOptions, VadOptions
from parley.runtime.onnx import open_session
from parley.turns.cues import find_cue
from parley.turns.settings import SCORED_SILENCE_MS, TurnSettings, choose_settings
from parley.turns.smart_turn import SmartTurn, bundled_folder, network_file
from parley.turns.sweep import (
    NUMBERS,
    Frontier,
    LabelledPause,
    OperatingPoint,
    measure_adapting,
    measure_settings,
    sweep,
    sweep_settings,
)
from parley.vad import silero
from parley.vad.segmenter import SpeechBegan, SpeechEnded, SpeechSegmenter
from parley_client.audio.files import Pcm

_STEP_MS, _LAST_MS = 100, 1_600
_PER_MS = RATE // 1_000
_AFTER = np.zeros((_LAST_MS + 200) * _PER_MS, np.int16)
_BUDGETS_MS = (300, 500, 800)
_CUT_OFFS = 0.05
_CALL = 10
"""Turns of a speaker that are a call."""
_LATER_MS = range(0, 500, 5)


@dataclass(frozen=True)
class Silence:
    """A pause in a recording; positions are samples."""

    begin: int
    end: int | None
    """None: the recording ends with it."""


def load_turns(count: int | None) -> list[Clip]:
    """Recordings of one turn of one speaker each, ``count`` of each source; None: all.

    Raises:
        RecordingError: they are not there.
    """
    return [one for one in load_people(count) if " " in one.text]  # some are single letters


def find_silences(vad: silero.SileroVad, audio: Pcm) -> list[Silence]:
    """The pauses of 100 ms or more after speech."""
    count = len(audio) // silero.WINDOW
    windows = audio[: count * silero.WINDOW].reshape(1, count, silero.WINDOW).astype(np.float32) / 32_768
    state, context = np.zeros((1, *silero.STATE), np.float32), np.zeros((1, silero.CONTEXT), np.float32)
    speech, _, _ = vad.detect(windows, np.array([count], np.int32), state, context)
    segmenter = SpeechSegmenter(VadOptions(silence_ms=_STEP_MS), max_utterance_ms=10**9)
    found: list[Silence] = []
    for probability in speech[0]:
        for change in segmenter.push(float(probability)):
            if isinstance(change, SpeechEnded):
                found.append(Silence(change.end, None))
            elif isinstance(change, SpeechBegan) and found:
                found[-1] = Silence(found[-1].begin, change.onset)
    return found


def label_silences(
    audio: Pcm, silences: Sequence[Silence], network: SmartTurn, transcribe: Callable[[Pcm], str]
) -> tuple[list[LabelledPause], list[LabelledPause]]:
    """The pauses as the field scores them, and as the policy that serves does."""
    swept, served = [], []
    for silence in silences:
        length_ms = math.inf if silence.end is None else (silence.end - silence.begin) / _PER_MS
        moments = range(_STEP_MS, int(min(length_ms, _LAST_MS)) + 1, _STEP_MS)
        heard = {at_ms: audio[: silence.begin + at_ms * _PER_MS] for at_ms in (*moments, SCORED_SILENCE_MS)}
        scores = {at_ms: float(network.score([piece])[0]) for at_ms, piece in heard.items()}
        label = LabelledPause(silence.end is None, length_ms)
        swept.append(replace(label, scores=tuple((float(at_ms), scores[at_ms]) for at_ms in moments)))
        at_ms = SCORED_SILENCE_MS
        cue = find_cue(transcribe(heard[at_ms]), "en")
        served.append(replace(label, scores=((at_ms, scores[at_ms]),), cue=cue, ready_ms=at_ms))
    return swept, served


def read_settings(given: Sequence[str]) -> TurnSettings:
    """The settings of a session with these options of ``turn``, each ``NAME=VALUE``.

    Raises:
        InvalidMessageError: there is no such option, or its value is out of range.
    """
    try:
        options = msgspec.convert(dict(one.split("=", 1) for one in given), TurnOptions, strict=False)
    except ValueError as error:
        raise InvalidMessageError(f"--set {' '.join(given)}: {error}") from error
    settings = choose_settings(options, "normal")
    if settings is None:
        raise InvalidMessageError("with eagerness=off every pause ends the turn: there is nothing to sweep")
    return settings


def all_later(
    pauses: Sequence[LabelledPause], settings: TurnSettings, delay_ms: float
) -> OperatingPoint[TurnSettings]:
    """All silences of the settings longer by as much as the mean delay allows."""
    names = ("complete_ms", "incomplete_ms", "unfinished_ms", "limit_ms")
    points = (
        measure_settings(pauses, replace(settings, **{name: getattr(settings, name) + by for name in names}))
        for by in _LATER_MS
    )
    return max((one for one in points if one.delay_ms <= delay_ms), key=lambda one: one.delay_ms)


def row_of(name: str, frontier: Frontier[Any]) -> list[str]:
    """Cut-offs within budgets of delay, the delay at :data:`_CUT_OFFS`, and the area."""
    within = [frontier.within(budget) for budget in _BUDGETS_MS]
    at = frontier.at(_CUT_OFFS)
    cells = [f"{one.cut_offs:.1%}" if one else "-" for one in within]
    return [name, *cells, f"{at.delay_ms:.0f} ms" if at else "-", f"{frontier.area:.3f}"]


def main() -> int:
    """Measure; returns 0."""
    parser = argparse.ArgumentParser(prog="turns-people", description=__doc__)
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="an option of turn, as of a session"
    )
    parser.add_argument(
        "--folder", type=Path, help="of recordings instead, one turn each: SPEAKER/FILE, in order of names"
    )
    parser.add_argument("--count", type=int, metavar="N", help="recordings of each source")
    parser.add_argument("--weights", type=Path, help="folder of another end-of-turn network than Smart Turn")
    args = parser.parse_args()
    return run_program("turns-people", lambda console: _measure(args, console), RecordingError)


def _measure(args: argparse.Namespace, console: Console) -> int:
    settings = read_settings(args.set)
    turns = load_folder(args.folder) if args.folder else load_turns(args.count)
    vad = silero.SileroVad(open_session(silero.bundled_folder() / silero.FILE))
    network = SmartTurn(open_session(network_file(args.weights or bundled_folder())))
    transcribe = open_moonshine(ROOT / "models" / "moonshine-tiny-en").whole
    swept: list[LabelledPause] = []
    served: list[LabelledPause] = []
    by_speaker: dict[str, list[list[LabelledPause]]] = {}
    for one in turns:
        audio = np.concatenate([to_pcm(one), _AFTER])
        found = label_silences(audio, find_silences(vad, audio), network, transcribe)
        swept, served = swept + found[0], served + found[1]
        by_speaker.setdefault(one.speaker, []).append(found[1])
    calls = [
        list(chain.from_iterable(turns_of[at : at + _CALL]))
        for turns_of in by_speaker.values()
        for at in range(0, len(turns_of), _CALL)
    ]
    now = measure_settings(served, settings)
    rows = [
        row_of("silence alone", sweep(swept, (math.inf,))),
        row_of("the score alone", sweep(swept)),
        row_of("the policy that serves", sweep_settings(served, settings)),
    ]
    head = ["", *(f"cut off at {budget} ms" for budget in _BUDGETS_MS), f"delay at {_CUT_OFFS:.0%}", "area"]
    ends = sum(one.is_end for one in swept)
    Table(f"{len(turns)} turns of people, {len(swept) - ends} pauses inside, {ends} ends", head, rows).print(
        console
    )
    numbers = ", ".join(f"{name} {getattr(settings, name):g}" for name in NUMBERS)
    adapting = measure_adapting(calls, settings)
    later = all_later(served, settings, adapting.delay_ms)
    for name, point in ((numbers, now), (f"adapting, {len(calls)} calls", adapting), ("all later", later)):
        said = f"{name}: {point.cut_offs:.1%} cut off, {point.delay_ms:.0f} ms (mean)"
        console.print(said, highlight=False)
    return 0
