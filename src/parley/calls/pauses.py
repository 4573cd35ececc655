"""Finds the pauses of a recorded call, labels them by what came after, and scores them as a call does.

No person labels them: a pause is a hold if the user goes on, else the end of a turn. Where the agent spoke in
between, the user goes on only if that begins before the agent was heard for :data:`REACTION_MS`; later speech
is taken for a reaction to it, so a user who yields to an agent that was too early counts as one who had
finished.
"""

from __future__ import annotations

import wave
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from parley.calls.folder import AUDIO, EVENTS
from parley.calls.mixing import RATE
from parley.errors import InvalidAudioError
from parley.turns.cues import find_cue
from parley.turns.smart_turn import BEFORE_ONSET_MS, SAMPLES, SmartTurn
from parley.turns.sweep import LONGEST_HOLD_MS, LabelledPause

REACTION_MS = 500


@dataclass
class _Utterance:
    """Speech of the user. Times are milliseconds of the recording."""

    began: int
    ended: int = 0
    detected: int = 0
    """Where the silence after it was noticed."""
    said: int = 0
    """When its text was there."""
    number: int = 0
    text: str = ""
    first: int = 0
    before: str = ""
    probability: float | None = None
    text_probability: float | None = None
    interrupts: bool = False


@dataclass(frozen=True)
class RecordedPause:
    """A labelled pause, and the audio that its score hears."""

    pause: LabelledPause
    """With the score that the call had, if it had one."""
    turn_ms: int
    """Where the turn began."""
    detected_ms: int


def read_pauses(folder: Path, language: str) -> list[RecordedPause]:
    """The pauses after the user's words in the folder of a call.

    Args:
        folder: of the call.
        language: primary language of its words ("en").

    Raises:
        OSError: the folder has no readable events.
    """
    reader = _Reader()
    for raw in (folder / EVENTS).read_bytes().splitlines():
        with suppress(msgspec.DecodeError):  # the last line of a call whose server died
            line = msgspec.json.decode(raw, type=dict[str, Any])
            reader.note(line["at_ms"], line.get("event", {}))
    return _label(reader.turns_taken(), sorted(reader.heard), language)


@dataclass
class _Reader:
    heard: list[int] = field(default_factory=list)
    """When words of the agent were heard."""
    _spans: dict[str, tuple[int, int]] = field(default_factory=dict)
    _all: list[_Utterance] = field(default_factory=list)
    _speaking: _Utterance | None = None
    _unsaid: deque[_Utterance] = field(default_factory=deque)

    def note(self, at_ms: int, event: dict[str, Any]) -> None:
        match event:
            case {"type": "speech_started"}:
                self._speaking = _Utterance(event["at_ms"])
            case {"type": "speech_stopped"}:
                stopped = self._speaking or _Utterance(event["at_ms"])
                stopped.ended, stopped.detected = event["at_ms"], event["detected_at_ms"]
                self._speaking = None
                self._all.append(stopped)
                self._unsaid.append(stopped)
            case {"type": "transcript"} if self._unsaid:
                said = self._unsaid.popleft()
                said.said, said.number, said.text = at_ms, event["utterance"], event["text"].strip()
                said.first, said.before = event.get("first", 0), event.get("before", "").strip()
            case {"type": "turn_decision", "probability": float() as probability} if self._all:
                last = self._all[-1]
                if last.number == event["utterance"]:
                    last.probability = probability if last.probability is None else last.probability
                    # The language model's comes later than the first decision.
                    last.text_probability = event.get("text_probability") or last.text_probability
            case {"type": "interrupted"}:
                for one in filter(None, (self._speaking, *self._all[-1:])):
                    one.interrupts = True
            case {"type": "words", "response_id": response}:
                self.heard.append(at_ms)
                self._spans[response] = self._spans.get(response, (at_ms, at_ms))[0], at_ms
            case _:
                pass

    def turns_taken(self) -> list[_Utterance]:
        """Utterances with words, without those over the agent that did not interrupt it."""
        spans = [(first + REACTION_MS, last) for first, last in self._spans.values()]
        return [
            one
            for one in self._all
            if one.text and (one.interrupts or not any(a <= one.began <= b for a, b in spans))
        ]


def _label(said: Sequence[_Utterance], heard: Sequence[int], language: str) -> list[RecordedPause]:
    found: list[RecordedPause] = []
    turn: dict[int, str] = {}
    began = 0
    for at, one in enumerate(said):
        began = began if turn else one.began
        if one.first in turn:  # decoded together with what was said before, as the agent takes it
            turn = {number: text for number, text in turn.items() if number < one.first}
            turn[one.first] = one.before
        turn[one.number] = one.text
        following = said[at + 1] if at + 1 < len(said) else None
        answered = next(iter(heard[bisect_right(heard, one.ended) :]), None)
        is_end = following is None or (answered is not None and answered + REACTION_MS <= following.began)
        pause = LabelledPause(
            is_end=is_end,
            scores=() if one.probability is None else ((one.detected - one.ended, one.probability),),
            cue=find_cue(" ".join(filter(None, turn.values())), language),
            text_probability=one.text_probability,
            ready_ms=max(0, one.said - one.ended),
        )
        if following is not None and not is_end:
            pause = replace(pause, length_ms=following.began - one.ended)
        found.append(RecordedPause(pause, began, one.detected))
        if is_end or pause.length_ms > LONGEST_HOLD_MS:
            turn = {}
    return found


def score_pauses(folder: Path, found: Iterable[RecordedPause], network: SmartTurn) -> list[LabelledPause]:
    """The pauses with the scores of a network; without audio with those that the call had.

    Raises:
        InvalidAudioError: the audio is none of a recorded call.
        InferenceError: the network failed.
    """
    path, scored = folder / AUDIO, []
    if not path.exists():
        return [one.pause for one in found]
    try:
        with wave.open(str(path)) as file:
            form = file.getnchannels(), file.getsampwidth(), file.getframerate()
            if form != (2, 2, RATE):
                raise InvalidAudioError(
                    f"{path} has {form[0]} channels of {8 * form[1]} bits at {form[2]} Hz; "
                    f"recorded calls have 2 of 16 bits at {RATE} Hz, the user's first"
                )
            for one in found:
                heard, pause = _read_user(file, one.turn_ms - BEFORE_ONSET_MS, one.detected_ms), one.pause
                if len(heard):  # else the recording ended before the call
                    score = float(network.score([heard])[0])
                    pause = replace(pause, scores=((pause.ready_ms, score),))
                scored.append(pause)
    except (wave.Error, EOFError) as error:
        raise InvalidAudioError(f"{path} is no WAV file: {error}") from error
    return scored


def _read_user(file: wave.Wave_read, begin_ms: int, end_ms: int) -> NDArray[np.int16]:
    """The user's channel, as much as a score hears of it; empty: the recording does not have its end."""
    end = end_ms * RATE // 1000
    begin = max(0, begin_ms * RATE // 1000, end - SAMPLES)
    if end > file.getnframes():
        return np.zeros(0, np.int16)
    file.setpos(begin)
    return np.frombuffer(file.readframes(end - begin), "<i2")[::2].astype(np.int16)
