"""How exactly values are collected by telephone: free recognition against collecting with one question more.

Synthetic callers say phone numbers, codes, card numbers, addresses, names, dates, times, numbers and choices.
The audio goes through babble, G.711 and lost packets to Moonshine, in this process. ``free`` is the best
transcript with figures and addresses in their written form. ``collected`` is the value after the first answer
and one more: the caller agrees, corrects a part, or says all of it again with words of the spelling alphabet.
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
from eval_recordings import RATE, changes, hear_turn, moonshine_pipeline
from harness.recordings import SYNTHETIC, load_recordings
from harness.report import describe_processor
from numpy.typing import NDArray

from parley.agent.collecting.checks import iban, luhn
from parley.agent.collecting.dialogue import Dialogue, Outcome
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
_NAMES = (
    "Anna Miller, Peter Smyth, Laura Jansen, Tom Becker, Maria Gomez, David Hughes, Emma Fischer, "
    "Paul Novak, Nina Patel, Oscar Brandt, Helen Carver, Victor Stone"
).split(", ")
_CHOICES = "Garden room,Sea view,Roof terrace,Wine cellar,Corner table,Quiet floor,Family suite".split(",")
_HOSTS = ("example.com", "gmail.com", "parley.org")


@dataclass
class Case:
    """One caller, and what comes of it."""

    what: CollectField
    truth: str
    first: str
    """What the caller says first."""
    again: str
    """The value said slowly."""
    voice: str
    heard: str = ""
    asked: Outcome = field(default_factory=Outcome)
    reply: str = ""
    heard_reply: str = ""
    value: str = ""
    dialogue: Dialogue = field(init=False)

    def __post_init__(self) -> None:
        self.dialogue = Dialogue([self.what])
        self.dialogue.ask(self.what.name)

    @property
    def free(self) -> bool:
        """Whether the best transcript has the value."""
        return _has(self.what.kind, self.heard, self.truth)


def cases(count: int) -> list[Case]:
    """``count`` values of each of ten kinds."""
    draw = random.Random(7)
    found: list[Case] = []
    voices = list(KOKORO.voices)

    def add(truth: str, first: str, again: str, **options: object) -> None:
        one = CollectField(name="value", **options)  # type: ignore[arg-type]
        found.append(Case(one, truth, first, again, voices[len(found) % len(voices)]))

    def digits(number: int) -> str:
        return "".join(draw.choice("0123456789") for _ in range(number))

    for index in range(count):
        phone = "0" + digits(9)
        add(phone, f"My number is {_grouped(phone)}.", f"{_slow(phone)}.", kind="phone", length=10)
        code = "".join(draw.choice("ABCDEFGHJKLMNPQRSTUVWXYZ") for _ in range(2)) + digits(4)
        add(code, f"It's {_plain(code)}.", f"{_slow(code)}.", kind="code", pattern="AA9999")
        card = digits(15)
        card = next(card + last for last in "0123456789" if luhn(card + last))
        add(
            card,
            f"{_grouped(card, 4)}.",
            f"{_slow(card)}.",
            kind="code",
            length=16,
            check="luhn",
            pattern="9" * 16,
        )
        account = digits(18)
        account = next(f"DE{check:02}{account}" for check in range(2, 99) if iban(f"DE{check:02}{account}"))
        add(account, f"{_plain(account[:2])}, {_grouped(account[2:], 2)}.", f"{_slow(account)}.", kind="code",
            length=22, check="iban", pattern="DE" + "9" * 20)  # fmt: skip
        name = _NAMES[index % len(_NAMES)]
        last = name.split()[1]
        spelled = ", ".join(last.upper())
        add(
            name,
            f"My name is {name}. {last} is spelled {spelled}.",
            f"{name}, spelled {_slow(last)}.",
            kind="name",
        )
        host = draw.choice(_HOSTS)
        local = f"{name.split()[0].lower()}.{last.lower()}"
        at_host = host.replace(".", " dot ")
        add(f"{local}@{host}", f"My email is {local.replace('.', ' dot ')} at {at_host}.",
            f"{_slow(local)} at {at_host}.", kind="email")  # fmt: skip
        day = _TODAY + timedelta(days=draw.randrange(1, 300))
        ending = {1: "st", 2: "nd", 3: "rd"}.get(day.day % 10 if day.day // 10 != 1 else 0, "th")
        said = f"{day:%B} {day.day}{ending}"
        add(day.isoformat(), f"On {said}, please.", f"{said}.", kind="date")
        clock = f"{draw.randrange(24):02}:{draw.choice((0, 15, 30, 40)):02}"
        when = say_time_of(clock)
        add(clock, f"At {when}, please.", f"{when}.", kind="time")
        number = str(draw.randrange(11, 100))
        add(number, f"We are {number}.", f"{_slow(number)}.", kind="number")
        choice = draw.choice(_CHOICES)
        add(choice, f"The {choice.lower()}, please.", f"{choice}.", kind="choice", values=_CHOICES)
    return found


def _grouped(digits: str, size: int = 3) -> str:
    return ", ".join(
        " ".join(_DIGITS[int(one)] for one in digits[at : at + size]) for at in range(0, len(digits), size)
    )


def _plain(code: str) -> str:
    return ", ".join(_DIGITS[int(one)] if one.isdecimal() else one for one in code)


def _slow(text: str) -> str:
    """Digits one by one, letters with a word of the spelling alphabet."""
    parts = [
        _DIGITS[int(one)]
        if one.isdecimal()
        else f"{one.upper()} as in {_WORD[one.upper()]}"
        if one.isalpha()
        else "dot"
        for one in text
        if one.isalnum() or one == "."
    ]
    return ", ".join(parts)


def answer(case: Case) -> str:
    """What the caller says to the question: empty where nothing is asked any more."""
    state = case.dialogue.state
    if case.asked.field:
        return ""
    if state.phase == "confirm":
        if state.value == case.truth:
            return "Yes, that's right."
        wrong = [
            at for at, pair in enumerate(zip(state.value, case.truth, strict=False)) if len(set(pair)) > 1
        ]
        if (
            len(state.value) == len(case.truth)
            and len(wrong) == 1
            and wrong[0] < 12
            and case.what.kind == "code"
        ):
            return f"No, not {_plain(state.value[wrong[0]])}, {_slow(case.truth[wrong[0]])}."
        return f"No, {case.again}"
    if state.phase == "part" and state.place >= 0:
        return f"{_slow(case.truth[state.place])}."
    return case.truth if state.phase == "part" and case.truth in (state.one, state.other) else case.again


def _has(kind: CollectKind, text: str, truth: str) -> bool:
    if kind in ("date", "time"):
        return read(CollectField(name="value", kind=kind), UserAnswer(text), _TODAY).value == truth
    written = inverse_normalizer("en")(text)
    return re.sub(r"[^\w@]|_", "", truth).lower() in re.sub(r"[^\w@]|_", "", written).lower()


class Callers:
    """Speaks lines, and gives what the recogniser writes of them."""

    def __init__(self, snr_db: int, loss: float) -> None:
        self._cache = LineCache(KOKORO)
        voices = [one.samples for one in load_recordings(SYNTHETIC)]
        self._babble = changes(voices)[f"babble {snr_db} dB"] if snr_db else lambda audio: audio
        self._loss = loss
        _, _, self._pipeline = moonshine_pipeline(ROOT / "models" / "moonshine-tiny-en")

    def speak(self, lines: Sequence[Line]) -> None:
        """Bring all lines into the cache."""
        missing = self._cache.missing(lines)
        for at in range(0, len(missing), _BATCH):
            self._cache.speak(missing[at : at + _BATCH])
            print(f"spoken: {min(at + _BATCH, len(missing))} of {len(missing)}", file=sys.stderr, flush=True)

    def hear(self, line: Line, seed: int, phrases: Sequence[str]) -> UserAnswer:
        """What the recogniser writes of a line that was spoken."""
        noisy = self._babble(self._cache.speak([line])[line].samples)
        telephone = TelephoneLine(telephone=True, loss=self._loss, seed=seed)
        pieces = [telephone.send(noisy[at : at + _PACKET]) for at in range(0, len(noisy), _PACKET)]
        options = AsrOptions(partial_interval_ms=0, join_ms=_JOIN_MS, phrases=list(phrases))
        return UserAnswer(*hear_turn(self._pipeline, np.concatenate(pieces), options))


def run(found: Sequence[Case], callers: Callers) -> None:
    """Hold all calls: first all first answers, then all second ones."""
    callers.speak([Line(one.first, one.voice) for one in found])
    for seed, one in enumerate(found):
        heard = callers.hear(Line(one.first, one.voice), seed, ())
        one.heard = heard.text
        if one.what.values:
            heard = callers.hear(Line(one.first, one.voice), seed, one.what.values)
        one.asked = one.dialogue.on_turn(heard, _TODAY)
        one.value, one.reply = one.asked.value, answer(one)
    callers.speak([Line(one.reply, one.voice) for one in found if one.reply])
    for seed, one in enumerate(found):
        if one.reply:
            heard = callers.hear(Line(one.reply, one.voice), len(found) + seed, one.dialogue.phrases)
            one.heard_reply = heard.text
            one.value = one.dialogue.on_turn(heard, _TODAY).value or one.dialogue.state.value


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
    add("--show", action="store_true", help="print the calls whose value is not exact")
    args = parser.parse_args()
    found = cases(args.count)
    run(found, Callers(args.snr, args.loss))
    print(f"G.711, babble {args.snr} dB, {args.loss:.0%} loss; {describe_processor()}")
    print("kind     | values | free exact   | first answer | collected exact")
    kinds = {one.what.check or one.what.kind: None for one in found}
    for kind in [*kinds, "all"]:
        mine = [one for one in found if kind in ("all", one.what.check or one.what.kind)]
        free, exact = (sum(one.free for one in mine), sum(one.value == one.truth for one in mine))
        agreed = sum(one.reply.startswith("Yes") for one in mine)
        shares = " | ".join(f"{part / len(mine):12.1%}" for part in (free, agreed, exact))
        print(f"{kind:8} | {len(mine):6} | {shares}")
    for one in found if args.show else ():
        if one.value != one.truth:
            print(
                f"{one.what.check or one.what.kind} {one.truth!r}\n  1 {one.heard!r}\n  ? {one.asked.say!r}"
            )
            print(f"  2 {one.reply!r}\n    {one.heard_reply!r}\n  = {one.value!r}")
    return int(sum(one.value == one.truth for one in found) < args.least * len(found))
