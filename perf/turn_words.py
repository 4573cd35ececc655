"""How well sound and words tell the end of a turn: pauses of synthetic callers, profile open, no server.

    python -m perf turn-words           sentences and voices of the callers in the simulator and the examples
    python -m perf turn-words --fit     those of turn_words.toml, and the weights that suit them best

Sentences are spoken whole, and cut before a word, where people pause. What was said until then goes through
Moonshine, Smart Turn and the language model. For sound and words, alone and as the agent weighs them: the AUC
(of all pairs of a whole sentence and a cut one, the share in which the first has the higher probability), and
the share of cut sentences that are taken for whole where 95 % of the whole ones are. In ``normal``, without
and with the rules about last words: the share of cut ones that end a turn at once (early), and the wait
behind whole ones.

Exit status: 0 sound and words together have fewer of these than the sound alone, 1 they have not.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import sys
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from eval_open_llm import settings
from eval_recordings import MODELS, hear_turn, moonshine_pipeline
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from parley.agent.generation import read_turn
from parley.asr.messages import AsrOptions
from parley.chat import ChatMessage
from parley.models.qwen3 import load_chat_service, warm_up
from parley.runtime.onnx import open_session
from parley.turns.cues import find_cue
from parley.turns.endpointing import features, join, judge, needs_reading
from parley.turns.settings import PRESETS
from parley.turns.smart_turn import FILE, SmartTurn, bundled_folder
from parley_client.cli import CHECKOUT
from parley_testing.rendering import cut_point
from parley_testing.scenario import Pause, Sentence
from parley_testing.scenario_file import load_scenarios
from parley_testing.voices import KOKORO, RATE, Line, LineCache, Spoken

SENTENCES = Path(__file__).with_suffix(".toml")
SCENARIOS = CHECKOUT / "perf" / "simulate" / "scenarios_open"
TESTS = CHECKOUT / "examples" / "agents"
_SILENCE = np.zeros(RATE // 4, np.int16)
_LEAD = np.zeros(RATE // 2, np.int16)
_KEPT = 0.95
"""Share of the whole sentences that a threshold has to take for whole."""
_ROUNDS = 50


@dataclass(frozen=True)
class Said:
    """A sentence of a caller."""

    line: Line
    sentence: Sentence
    pauses: Sequence[int]
    """Numbers of the words before which the caller pauses."""


@dataclass(frozen=True)
class Measured:
    """What sound and words say about one pause."""

    whole: bool
    heard: str
    sound: float
    text: float


def own_sentences(seed: int) -> list[Said]:
    """Those that the weights are fitted to, each cut twice at random."""
    table, chance = tomllib.loads(SENTENCES.read_text("utf-8")), random.Random(seed)
    said = []
    for text in table["sentences"]:
        words = tuple(text.split())
        pauses = chance.sample(range(1, len(words)), min(2, len(words) - 1))
        said.append(Said(Line(text, chance.choice(table["voices"])), Sentence(words), pauses))
    return said


def judged_sentences(seed: int) -> list[Said]:
    """Those of the scenarios: cut where the caller pauses, else once at random."""
    chance, found = random.Random(seed), dict[Line, Said]()
    examples = load_scenarios(sorted(TESTS.glob("*.tests.toml")), own_agent=True)
    for scenario in [*load_scenarios([SCENARIOS], lambda _: None), *examples]:
        for exchange in scenario.exchanges:
            sentence = exchange.sentence
            if sentence is None or len(sentence.words) < 2:
                continue
            inner = [at for at, insert in sentence.inserts if isinstance(insert, Pause)]
            pauses = inner or [chance.randrange(1, len(sentence.words))]
            line = Line(sentence.text, exchange.voice, exchange.rate)
            found.setdefault(line, Said(line, sentence, pauses))
    return list(found.values())


async def measure(said: Sequence[Said], spoken: dict[Line, Spoken]) -> list[Measured]:
    """Ask the models of profile open about the end of each sentence, and about each pause in it."""
    parameters, config = settings(None, "trained")
    chat, engine = load_chat_service(parameters, "")
    _, _, pipeline = moonshine_pipeline(MODELS["moonshine"][1])
    smart_turn = SmartTurn(open_session(bundled_folder() / FILE))
    opening = [
        ChatMessage(role="system", content=config.system_prompt),
        ChatMessage(role="assistant", content=config.greeting),
    ]
    measured = []
    try:
        await warm_up(chat)
        for number, one in enumerate(said):
            for at in (*one.pauses, len(one.sentence.words)):
                audio = spoken[one.line].samples[: cut_point(spoken[one.line], one.sentence, at)]
                heard, _ = hear_turn(pipeline, audio, AsrOptions(partial_interval_ms=0))
                if not any(map(str.isalnum, heard)):
                    continue
                sound = float(smart_turn.score([np.concatenate([_LEAD, audio, _SILENCE])])[0])
                messages = [*opening, ChatMessage(role="user", content=heard)]
                name = f"{number}-{at}"
                text = await read_turn(chat, name, messages, [], config.deadlines)
                measured.append(Measured(at == len(one.sentence.words), heard, sound, text))
    finally:
        await engine.shutdown()
    return measured


def fit(measured: Sequence[Measured]) -> NDArray[np.float64]:
    """Weights of a logistic regression, whole and cut sentences counting as much: bias, sound, text."""
    rows = np.array([[1.0, *features(one.sound, one.text)] for one in measured])
    labels = np.array([one.whole for one in measured], np.float64)
    shares = np.where(labels == 1, 0.5 / labels.sum(), 0.5 / (1 - labels).sum()) * len(labels)
    weights = np.zeros(rows.shape[1])
    for _ in range(_ROUNDS):  # Newton's method
        found = 1 / (1 + np.exp(-rows @ weights))
        slope = rows.T @ (shares * (labels - found)) - weights
        curve = (rows * (shares * found * (1 - found))[:, None]).T @ rows + np.eye(len(weights))
        weights = weights + np.linalg.solve(curve, slope)
    return weights


def area(whole: NDArray[np.float64], cut: NDArray[np.float64]) -> float:
    """The share of pairs in which the whole sentence has the higher score; half for equal ones."""
    return float(np.mean((whole[:, None] > cut) + (whole[:, None] == cut) / 2))


def mistaken(whole: NDArray[np.float64], cut: NDArray[np.float64]) -> float:
    """The share of cut sentences above the threshold that keeps :data:`_KEPT` of the whole ones."""
    return float(np.mean(cut >= np.quantile(whole, 1 - _KEPT)))


def report(measured: Sequence[Measured], *, show: bool) -> bool:
    """Print the table; whether sound and words together are mistaken less often than the sound."""
    table = Table("", "AUC", f"cut, above the threshold of {_KEPT:.0%} of the whole", "early", "wait, mean")
    whole = np.array([one.whole for one in measured])
    normal = PRESETS["normal"]
    evidence: dict[str, list[tuple[float | None, float | None]]] = {
        "sound": [(one.sound, None) for one in measured],
        "words": [(None, one.text) for one in measured],
        "both": [(one.sound, one.text) for one in measured],
    }
    shares = {}
    for name, known in evidence.items():
        values = np.array([sound if text is None else join(sound, text) for sound, text in known], np.float64)
        waits = np.array([judge(normal, sound, None, text).needed_ms for sound, text in known])
        shares[name] = mistaken(values[whole], values[~whole])
        table.add_row(
            name,
            f"{area(values[whole], values[~whole]):.3f}",
            f"{shares[name]:.1%}",
            f"{np.mean(waits[~whole] <= normal.complete_ms):.1%}",
            f"{np.mean(waits[whole]):.0f} ms",
        )
    waits = np.zeros(len(measured))
    for number, one in enumerate(measured):
        cue = find_cue(one.heard, "en")
        text = one.text if needs_reading(cue) else None
        waits[number] = judge(normal, one.sound, cue, text).needed_ms
    early = np.mean(waits[~whole] <= normal.complete_ms)
    table.add_row("with the rules", "", "", f"{early:.1%}", f"{np.mean(waits[whole]):.0f} ms")
    print(f"{whole.sum()} whole sentences, {(~whole).sum()} cut ones")
    Console().print(table)
    if show:
        for one in sorted(measured, key=lambda one: (one.whole, join(one.sound, one.text))):
            print(f"{'whole' if one.whole else 'cut'} {one.sound:.3f} {one.text:.3f} {one.heard}")
    return shares["both"] < shares["sound"]


def main() -> int:
    """Speak, measure and report."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--fit", action="store_true", help="the sentences that the weights are fitted to")
    parser.add_argument("--show", action="store_true", help="print every pause with its probabilities")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    said = (own_sentences if args.fit else judged_sentences)(args.seed)
    spoken = LineCache(KOKORO).speak([one.line for one in said])
    measured = asyncio.run(measure(said, spoken))
    better = report(measured, show=args.show)
    if args.fit:
        print("bias, sound, text:", ", ".join(f"{weight:.2f}" for weight in fit(measured)))
    return 0 if better else 1


if __name__ == "__main__":
    sys.exit(main())
