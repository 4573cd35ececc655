"""How both sides of calls took turns, by the definitions of τ-voice, and how soon an answer says something.

As there, sides are heard in steps of 200 ms: a shorter silence is none, and an answer that ends by itself
within a window counts as one that has yielded. Here the time of a yield is not rounded to steps.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import accumulate, zip_longest
from typing import Literal, TypeAlias

from harness.stats import Share

from parley.turns.interruption import interruption_words, words_of
from parley_testing.log import Act
from parley_testing.turns import Answer, CallReading, filler_words, plain_text_words

Category: TypeAlias = Literal["turn", "backchannel", "tic", "others"]
_STEP_S = 0.2
_YIELD_S = 2.0
"""An interruption is yielded to within this."""
_TALKED_THROUGH_S = 1.0
"""What is no turn has stopped the agent if that is silent within this."""
_IGNORED_S = 2.0
"""What is no turn was answered if the agent speaks within this."""
TICS = frozenset(("cough", "throat", "sneeze", "breath", "laugh", "hmm"))
"""Sounds of the caller's own voice; those of the room are not judged."""
_LONGEST_ACKNOWLEDGEMENT = 6
_Span: TypeAlias = tuple[float, float]


@dataclass
class Interaction:
    """What all calls together scored. Times are seconds."""

    response_s: list[float] = field(default_factory=list)
    """From the end of a turn to the agent's first sound after it."""
    unanswered: Share = field(default_factory=Share)
    """Turns behind which the caller spoke first."""
    yield_s: list[float] = field(default_factory=list)
    """From the beginning of an interruption to the agent's silence."""
    not_yielded: Share = field(default_factory=Share)
    backchannels: Share = field(default_factory=Share)
    """Those that stopped the agent."""
    tics: Share = field(default_factory=Share)
    """Those that stopped the agent, or were answered; the next likewise."""
    others: Share = field(default_factory=Share)


def add_call(scores: Interaction, reading: CallReading) -> None:
    """Score the acts of a call."""
    spans = _spoken(reading)
    heard = sorted(
        (act for act in reading.log.acts if act.staged and _category(act) is not None),
        key=lambda act: act.began_s,
    )
    for act, following in zip_longest(heard, heard[1:]):
        name = f"{reading.log.scenario.name}: {act.exchange.content or act.exchange.words!r}"
        over_s = next((end for begin, end in spans if begin <= act.began_s < end), None)
        category = _category(act)
        if category == "turn":
            if over_s is not None:
                in_time = over_s <= act.began_s + _YIELD_S
                scores.not_yielded.note("" if in_time else name)
                scores.yield_s += [over_s - act.began_s] * in_time
            _score_response(scores, act, following, spans, name)
            continue
        share = {"backchannel": scores.backchannels, "tic": scores.tics}.get(category or "", scores.others)
        if over_s is not None:
            share.note(name if over_s <= act.began_s + _TALKED_THROUGH_S else "")
        elif category != "backchannel":
            spoke = any(act.began_s <= begin <= act.ended_s + _IGNORED_S for begin, _ in spans)
            share.note(name if spoke else "")


def _score_response(
    scores: Interaction, act: Act, following: Act | None, spans: list[_Span], name: str
) -> None:
    """A turn that ended while the agent was silent: who spoke next?"""
    if any(begin < act.ended_s < end for begin, end in spans):
        return
    answer_s = next((begin for begin, _ in spans if begin >= act.ended_s), None)
    again_s = following.began_s if following else None
    if answer_s is not None and (again_s is None or answer_s <= again_s):
        scores.unanswered.note()
        scores.response_s.append(answer_s - act.ended_s)
    elif again_s is not None:
        scores.unanswered.note(name)


def _category(act: Act) -> Category | None:
    """What an act is to τ-voice; None: it makes no sound, or is a sound of the room."""
    exchange = act.exchange
    if exchange.kind == "backchannel":
        return "backchannel"
    if exchange.kind == "sound":
        return "tic" if exchange.content in TICS else None
    if exchange.is_spoken:
        return "others" if exchange.answered is False and not exchange.interrupts else "turn"
    return None


def _spoken(reading: CallReading) -> list[_Span]:
    """When the agent was heard, from and to (seconds of the call)."""
    spans: list[_Span] = []
    for begin, end in sorted(span for answer in reading.answers for span in _sounding(answer)):
        if spans and begin - spans[-1][1] < _STEP_S:
            spans[-1] = spans[-1][0], max(spans[-1][1], end)
        else:
            spans.append((begin, end))
    return spans


def _sounding(answer: Answer) -> Iterator[_Span]:
    """The spans of an answer, which stands still while it is paused, and ends where it is interrupted."""
    at = answer.first_sound_s
    if at is None:
        return
    left_s = sum(sound.length_ms for _, sound in answer.sounds) / 1000
    last = answer.interruption[0] if answer.interruption else float("inf")
    for paused, resumed in [*answer.pauses, (float("inf"), None)]:
        end = min(at + left_s, max(at, paused), last)
        if end > at:
            yield at, end
        left_s -= end - at
        if resumed is None or left_s <= 0 or resumed >= last:
            return
        at = max(at, resumed)


def first_carrying_s(answer: Answer, language: str) -> float | None:
    """When the first word is heard that is no filler and no acknowledgement; None: no words are known.

    Fillers are what the agent says while a tool is at work; acknowledgements ("Sure!", "Okay,") are the words
    that it takes for signs of listening from its users, where a mark follows them. An answer that has
    nothing else begins with its first word. Inside a piece words are taken to be of even length by character.
    """
    first_s = answer.first_sound_s
    words: list[tuple[float, str]] = []
    for at, sound in answer.sounds:
        parts = sound.text.split()
        begins = accumulate((len(part) + 1 for part in parts), initial=0)
        heard_s = max(at, (first_s or 0.0) + sound.offset_ms / 1000)
        per_letter_s = sound.length_ms / 1000 / max(1, len(sound.text))
        words += [(heard_s + begin * per_letter_s, part) for begin, part in zip(begins, parts, strict=False)]
    if not words or first_s is None:
        return None
    skipped = filler_words(answer, plain_text_words(" ".join(word for _, word in words)))
    rest = words[skipped:] or words
    known = interruption_words(language.partition("-")[0])
    for length in range(min(_LONGEST_ACKNOWLEDGEMENT, len(rest) - 1), 0, -1):
        said = [word for _, word in rest[:length]]
        if not said[-1][-1].isalnum() and known.is_backchannel(words_of(" ".join(said))):
            return rest[length][0]
    return rest[0][0]
