"""How exactly values are collected by telephone: free recognition against the dialogue that collects them.

Synthetic callers say phone numbers, codes, card numbers, addresses, names, dates, times, numbers and choices.
The audio goes through babble, G.711 and lost packets to Moonshine, in this process. ``free`` is the best
transcript with figures and addresses in their written form; ``first`` and ``second`` are the values after one
answer and two, ``exact`` those that the caller has confirmed. The caller agrees when the value is read back,
else corrects a part or says all of it again with words of the spelling alphabet, in other words each time.
Ends with status 1 where fewer values than ``--least`` are exact.
"""

from __future__ import annotations

import argparse
import random
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import TypeAlias

import numpy as np
from eval_recordings import RATE, hear_turn, moonshine_pipeline
from harness.recordings import SYNTHETIC, load_recordings
from harness.report import describe_processor
from numpy.typing import NDArray

from parley.agent.collecting import wording
from parley.agent.collecting.checks import iban, luhn
from parley.agent.collecting.dialogue import Dialogue
from parley.agent.collecting.reading import UserAnswer, read
from parley.agent.collecting.spelling import WORDS
from parley.asr.itn import inverse_normalizer
from parley.asr.messages import AsrOptions
from parley.launcher.options import ROOT
from parley.protocol import CollectField, CollectKind
from parley.spoken import say_time_of
from parley_testing.line import Line as TelephoneLine
from parley_testing.voices import KOKORO, Line, LineCache

Pcm: TypeAlias = NDArray[np.int16]

_TODAY = date(2026, 11, 29)
_DIGITS = "zero one two three four five six seven eight nine".split()
_WORD = {letter: word.capitalize() for word, letter in WORDS.items()}
_BATCH = 20
"""Lines that are spoken together; each batch goes into the cache."""
_JOIN_MS = 20_000
_PACKET = RATE // 50
_FULL_SCALE = 32_768
_BABBLING = 8
"""Voices beside the caller's."""
_NAMES = (
    "Julia Weber, Simon Clarke, Greta Olsen, Frank Dubois, Alice Quinn, Martin Vogel, Sophie Lambert, "
    "Jack Fowler, Irene Kovacs, Walter Young, Zoe Hartley, Ben Ximenes, "
    "Anna Miller, Peter Smyth, Laura Jansen, Tom Becker, Maria Gomez, David Hughes, Emma Fischer, "
    "Paul Novak, Nina Patel, Oscar Brandt, Helen Carver, Victor Stone"
).split(", ")
_CHOICES = "Garden room,Sea view,Roof terrace,Wine cellar,Corner table,Quiet floor,Family suite".split(",")
_FORMS = ("{0} as in {1}", "{1}", "{0} for {1}")
"""How the caller names a letter, another way each time."""
_HOSTS = ("example.com", "gmail.com", "parley.org")


@dataclass
class Case:
    """One caller, and what comes of it."""

    what: CollectField
    truth: str
    first: str
    """What the caller says first."""
    again: Sequence[str]
    """The value said slowly, in other words each time."""
    voice: str
    heard: str = ""
    turns: list[tuple[str, str, str, str]] = field(default_factory=list)
    """What the caller said, what was heard, what the agent said then, and the value that it had."""
    reply: str = ""
    """What the caller says next; empty: the dialogue has ended."""
    dialogue: Dialogue = field(init=False)

    def __post_init__(self) -> None:
        self.dialogue = Dialogue([self.what])
        self.dialogue.ask(self.what.name)
        self.reply = self.first

    @property
    def kind(self) -> str:
        """Its row of the table."""
        return self.what.check or self.what.kind

    def value(self, answers: int | None = None) -> str:
        """What is collected after so many answers; of all, only what the caller has confirmed."""
        return self.turns[:answers][-1][-1]

    def hear(self, heard: UserAnswer) -> None:
        """The agent's turn, and what the caller says to it."""
        outcome = self.dialogue.on_turn(heard, _TODAY)
        read_back = self.dialogue.state.value if self.dialogue.state.phase == "confirm" else ""
        self.turns.append((self.reply, heard.text, outcome.say, outcome.value or read_back))
        self.reply = "" if outcome.field else self._answer(outcome.say)

    def _answer(self, asked: str) -> str:
        state = self.dialogue.state
        if asked == wording.read_back(self.what, self.truth):
            return "Yes, that's right."
        if state.phase == "part" and 0 <= state.place < len(self.truth):
            return f"{_slow(self.truth[state.place])}."
        turn = len(self.turns) - 1
        again = self.again[turn % len(self.again)]
        if state.phase != "confirm":
            return again
        is_name = self.what.kind == "name"
        said, right = (one.split() if is_name else list(one) for one in (state.value, self.truth))
        wrong = [pair for pair in zip(said, right, strict=False) if pair[0] != pair[1]]
        if len(wrong) == 1 and len(said) == len(right):
            if is_name:
                return f"No, {wrong[0][1]}, spelled {_slow(wrong[0][1], _FORMS[turn % 3])}."
            if self.what.kind == "code" and not (self.what.check or turn):
                return f"No, not {_plain(wrong[0][0])}, {_slow(wrong[0][1])}."
        return f"No, {again}"


def cases(count: int, seed: int) -> list[Case]:
    """``count`` values of each of ten kinds."""
    draw = random.Random(seed)
    found: list[Case] = []
    voices = list(KOKORO.voices)

    def add(truth: str, first: str, again: Sequence[str], **options: object) -> None:
        one = CollectField(name="value", **options)  # type: ignore[arg-type]
        found.append(Case(one, truth, first, again, voices[len(found) % len(voices)]))

    def digits(number: int) -> str:
        return "".join(draw.choice("0123456789") for _ in range(number))

    def slow(text: str, said: str = "{}.") -> list[str]:
        return [said.format(_slow(text, form)) for form in _FORMS]

    for index in range(count):
        phone = "0" + digits(9)
        add(phone, f"My number is {_grouped(phone)}.", slow(phone), kind="phone", length=10)
        code = "".join(draw.choice("ABCDEFGHJKLMNPQRSTUVWXYZ") for _ in range(2)) + digits(4)
        add(code, f"It's {_plain(code)}.", slow(code), kind="code", pattern="AA9999")
        card = digits(15)
        card = next(card + last for last in "0123456789" if luhn(card + last))
        add(card, f"{_grouped(card, 4)}.", slow(card), kind="code",
            length=16, check="luhn", pattern="9" * 16)  # fmt: skip
        account = digits(18)
        account = next(f"DE{check:02}{account}" for check in range(2, 99) if iban(f"DE{check:02}{account}"))
        add(account, f"{_plain(account[:2])}, {_grouped(account[2:], 2)}.", slow(account), kind="code",
            length=22, check="iban", pattern="DE" + "9" * 20)  # fmt: skip
        name = _NAMES[(index + seed * 12) % len(_NAMES)]
        last = name.split()[1]
        spelled = ", ".join(last.upper())
        add(name, f"My name is {name}. {last} is spelled {spelled}.",
            slow(last, name + ", spelled {}."), kind="name")  # fmt: skip
        host = draw.choice(_HOSTS)
        local = f"{name.split()[0].lower()}.{last.lower()}"
        at_host = host.replace(".", " dot ")
        add(f"{local}@{host}", f"My email is {local.replace('.', ' dot ')} at {at_host}.",
            slow(local, "{} at " + f"{at_host}."), kind="email")  # fmt: skip
        day = _TODAY + timedelta(days=draw.randrange(1, 300))
        ending = {1: "st", 2: "nd", 3: "rd"}.get(day.day % 10 if day.day // 10 != 1 else 0, "th")
        said = f"{day:%B} {day.day}{ending}"
        add(day.isoformat(), f"On {said}, please.",
            [f"{said}.", f"The {day.day}{ending} of {day:%B}."], kind="date")  # fmt: skip
        clock = f"{draw.randrange(24):02}:{draw.choice((0, 15, 30, 40)):02}"
        when = say_time_of(clock)
        add(clock, f"At {when}, please.", [f"{when}.", f"At {when}."], kind="time")
        number = str(draw.randrange(11, 100))
        add(number, f"We are {number}.", [f"{_slow(number)}.", f"The number is {number}."], kind="number")
        choice = draw.choice(_CHOICES)
        add(choice, f"The {choice.lower()}, please.",
            [f"{choice}.", f"I would like the {choice}."], kind="choice", values=_CHOICES)  # fmt: skip
    return found


def _grouped(digits: str, size: int = 3) -> str:
    return ", ".join(
        " ".join(_DIGITS[int(one)] for one in digits[at : at + size]) for at in range(0, len(digits), size)
    )


def _plain(code: str) -> str:
    return ", ".join(_DIGITS[int(one)] if one.isdecimal() else one for one in code)


def _slow(text: str, form: str = _FORMS[0]) -> str:
    """Digits one by one, letters with a word of the spelling alphabet."""
    parts = [
        _DIGITS[int(one)]
        if one.isdecimal()
        else form.format(one.upper(), _WORD[one.upper()])
        if one.isalpha()
        else "dot"
        for one in text
        if one.isalnum() or one == "."
    ]
    return ", ".join(parts)


def _has(kind: CollectKind, text: str, truth: str) -> bool:
    if kind in ("date", "time"):
        return read(CollectField(name="value", kind=kind), UserAnswer(text), _TODAY).value == truth
    written = inverse_normalizer("en")(text)
    return re.sub(r"[^\w@]|_", "", truth).lower() in re.sub(r"[^\w@]|_", "", written).lower()


class Callers:
    """Speaks lines, and gives what the recogniser writes of them."""

    def __init__(self, snr_db: int, loss: float) -> None:
        self._cache = LineCache(KOKORO)
        loud = [one.samples / _FULL_SCALE for one in load_recordings(SYNTHETIC)]
        self._babble = [np.concatenate(loud[number::_BABBLING]) for number in range(_BABBLING)]
        self._snr_db, self._loss = snr_db, loss
        _, _, self._pipeline = moonshine_pipeline(ROOT / "models" / "moonshine-tiny-en")

    def speak(self, lines: Sequence[Line]) -> None:
        """Bring all lines into the cache."""
        missing = self._cache.missing(lines)
        for at in range(0, len(missing), _BATCH):
            self._cache.speak(missing[at : at + _BATCH])
            print(f"spoken: {min(at + _BATCH, len(missing))} of {len(missing)}", file=sys.stderr, flush=True)

    def hear(self, line: Line, seed: int, phrases: Sequence[str]) -> UserAnswer:
        """What the recogniser writes of a line that was spoken."""
        noisy = self._add_babble(self._cache.speak([line])[line].samples)
        telephone = TelephoneLine(telephone=True, loss=self._loss, seed=seed)
        pieces = [telephone.send(noisy[at : at + _PACKET]) for at in range(0, len(noisy), _PACKET)]
        options = AsrOptions(partial_interval_ms=0, join_ms=_JOIN_MS, phrases=list(phrases))
        return UserAnswer(*hear_turn(self._pipeline, np.concatenate(pieces), options))

    def _add_babble(self, speech: Pcm) -> Pcm:
        if not self._snr_db:
            return speech
        rows = [
            np.resize(np.roll(row, 7_919 * number), len(speech)) for number, row in enumerate(self._babble)
        ]
        wave, noise = speech / _FULL_SCALE, np.sum(rows, axis=0)
        gain = np.sqrt((wave**2).mean() / (noise**2).mean() / 10 ** (self._snr_db / 10))
        mixed = np.rint((wave + gain * noise) * _FULL_SCALE)
        return np.asarray(np.clip(mixed, -_FULL_SCALE, _FULL_SCALE - 1), np.int16)


def run(found: Sequence[Case], callers: Callers) -> None:
    """Hold all calls until each has ended: all first answers, then all second ones, and so on."""
    seed = 0
    while talking := [one for one in found if one.reply]:
        callers.speak([Line(one.reply, one.voice) for one in talking])
        for number, one in enumerate(found, seed):
            if one.reply:
                line = Line(one.reply, one.voice)
                heard = callers.hear(line, number, one.dialogue.phrases)
                if not one.turns:
                    one.heard = callers.hear(line, number, ()).text if one.what.values else heard.text
                one.hear(heard)
        seed += len(found)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--count", type=int, default=12, help="values of each kind (default: %(default)s)")
    add("--snr", type=int, choices=(0, 5, 10, 20), default=20, help="of the babble in dB; 0: none")
    add("--loss", type=float, default=0.02, help="share of lost packets (default: %(default)s)")
    add("--least", type=float, default=0.0, help="share of exact values below which the status is 1")
    add("--seed", type=int, default=7, help="of the values; even: other names (default: %(default)s)")
    add("--show", action="store_true", help="print the calls whose value is not exact")
    args = parser.parse_args()
    found = cases(args.count, args.seed)
    run(found, Callers(args.snr, args.loss))
    print(f"G.711, babble {args.snr} dB, {args.loss:.0%} loss; {describe_processor()}")
    print("kind     | values |   free |  first | second |  exact | questions | wrong confirmed | given up")
    for kind in [*dict.fromkeys(one.kind for one in found), "all"]:
        mine = [one for one in found if kind in ("all", one.kind)]
        free = sum(_has(one.what.kind, one.heard, one.truth) for one in mine)
        right = [sum(one.value(answers) == one.truth for one in mine) for answers in (1, 2, None)]
        shares = " | ".join(f"{part / len(mine):6.1%}" for part in (free, *right))
        questions = sum(len(one.turns) for one in mine) / len(mine)
        given_up = sum(not one.value() for one in mine)
        wrong = len(mine) - right[-1] - given_up
        print(f"{kind:8} | {len(mine):6} | {shares} | {questions:9.1f} | {wrong:15} | {given_up:8}")
    for one in found if args.show else ():
        if one.value() != one.truth:
            print(f"{one.kind} {one.truth!r} = {one.value()!r}")
            for turn in one.turns:
                print("  caller {!r}\n  heard  {!r}\n  agent  {!r}".format(*turn))
    return int(sum(one.value() == one.truth for one in found) < args.least * len(found))
