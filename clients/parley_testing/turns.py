"""What the agent took for turns of the caller, and what it did about each, from a call's log."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field

from parley import protocol
from parley_testing.devices import Account, AudioEntry
from parley_testing.log import Act, CallLog, Sound

_EARLY_S = 0.2
"""The agent may place speech so much before its first loud sample."""
_LATE_S = 1.5
"""Speech that it places later than this after an act is none of the caller's."""

SLACK_S = 0.1
TOLERANCE_MS = 30.0
"""Caller and server hear of a stop at different times: so far may their places in the answer differ."""
_ROUNDING_MS = 2.0
_COMPARED = 3
_LONGEST_FILLER = 8
_WORD = re.compile(r"[^\W_]+(?:['\u2019.:-][^\W_]+)*")


@dataclass
class CommittedTurn:
    """The agent took what it had heard for a whole turn of the caller."""

    at_s: float
    act: Act | None
    """What it had heard; None: nothing that the caller did."""
    heard_until_s: float | None
    """Where the speech ended that it heard last; None: it was no speech."""
    detected_s: float | None
    """When the silence after it was noticed."""
    text: str


@dataclass
class Answer:
    """A turn of the agent."""

    turn: int
    began_s: float
    """When its first event came."""
    commit: CommittedTurn | None
    """What it answers; None: it speaks by itself."""
    response_id: str = ""
    text: str = ""
    sounds: list[tuple[float, Sound]] = field(default_factory=list)
    first_text_s: float | None = None
    tools: list[tuple[float, protocol.ToolRequest | protocol.ToolRun]] = field(default_factory=list)
    interruption: tuple[float, protocol.Interrupted] | None = None
    pauses: list[tuple[float, float | None]] = field(default_factory=list)
    """From ``paused`` to ``resumed``; None: it ended otherwise."""
    decisions: dict[str, str] = field(default_factory=dict)
    """Answers to questions about the conversation, by name."""
    done: protocol.ResponseDone | None = None
    metrics: protocol.TurnMetrics | None = None

    @property
    def act(self) -> Act | None:
        """What it answers."""
        return self.commit.act if self.commit else None

    @property
    def first_sound_s(self) -> float | None:
        """When its first audio came."""
        return next((at for at, sound in self.sounds if sound.length_ms > 0), None)


@dataclass
class CallReading:
    """A call as it was understood."""

    log: CallLog
    commits: list[CommittedTurn]
    answers: list[Answer]

    def commits_of(self, act: Act) -> list[CommittedTurn]:
        """All that the agent took for (the end of) this turn."""
        return [commit for commit in self.commits if commit.act is act]

    def calls_for(self, act: Act) -> list[protocol.ToolRequest | protocol.ToolRun]:
        """All calls of tools in the answers to it."""
        return [call for answer in self.answers_to(act) for _, call in answer.tools]

    def heard_text(self, act: Act) -> str:
        """What it was understood as."""
        return " ".join(commit.text for commit in self.commits_of(act))

    def answers_to(self, act: Act) -> list[Answer]:
        """All answers to it."""
        return [answer for answer in self.answers if answer.act is act]


def read_turns(log: CallLog) -> CallReading:
    """Find the commits and answers of a call."""
    reader = _Reader(log)
    for at, event in log.events:
        reader.note(at, event)
    return CallReading(log, reader.commits, list(reader.answers.values()))


class _Reader:
    def __init__(self, log: CallLog) -> None:
        self._log = log
        # Where pauses are judged, the server says when a turn is committed; where they are not, every
        # final text with words is one, which shows when the agent begins to think or speak.
        self._judged = any(isinstance(event, protocol.TurnDecision) for _, event in log.events)
        self._typed = deque(act for act in log.acts if act.staged and act.exchange.kind in ("text", "dtmf"))
        self._stops: deque[protocol.SpeechStopped] = deque(maxlen=64)
        self._stop: protocol.SpeechStopped | None = None  # of the last final text
        self._texts: list[str] = []
        self._final_s: float | None = None
        self._open: CommittedTurn | None = None  # not answered yet
        self.commits: list[CommittedTurn] = []
        self.answers: dict[int, Answer] = {}

    def note(self, at: float, event: object) -> None:
        match event:
            case protocol.SpeechStopped():
                self._stops.append(event)
            case protocol.Transcript(is_final=True):
                self._stop = self._stops.popleft() if self._stops else self._stop
                if event.text:
                    self._texts.append(event.text)
                    self._final_s = at
            case protocol.TurnDecision(decision="commit"):
                if event.text:
                    self._commit(at, event.text)
            case protocol.AgentState(state="processing") if not self._judged:
                self._commit_final()
            case _ if isinstance(getattr(event, "turn", None), int):
                self._on_answer(at, event)
            case _:
                pass

    def _commit_final(self) -> None:
        if self._final_s is not None and self._texts:
            self._commit(self._final_s, " ".join(self._texts))

    def _commit(self, at: float, text: str) -> None:
        stop = self._stop
        until = None if stop is None else stop.at_ms / 1000
        act = self._spoken_at(until)
        detected = None if stop is None else stop.detected_at_ms / 1000
        if self._typed and self._typed[0].began_s <= at and text.casefold() == self._typed[0].exchange.words:
            act, until, detected = self._typed.popleft(), None, None
        self._open = CommittedTurn(at, act, until, detected, text)
        self.commits.append(self._open)
        self._texts, self._final_s = [], None

    def _spoken_at(self, until: float | None) -> Act | None:
        """What the caller did that ended, or paused, at ``until``."""
        if until is None:
            return None
        audible = [
            act
            for act in self._log.acts
            if act.staged and act.exchange.kind not in ("text", "dtmf", "quiet")
            if act.began_s - _EARLY_S <= until
        ]
        last = max(audible, key=lambda act: act.began_s, default=None)
        return last if last is not None and until <= last.ended_s + _LATE_S else None

    def _on_answer(self, at: float, event: object) -> None:
        turn: int = event.turn  # type: ignore[attr-defined]
        if turn not in self.answers:
            if not self._judged:
                self._commit_final()
            self._take_typed(at)
            self.answers[turn] = Answer(turn, at, self._open)
            self._open = None
        self._add(self.answers[turn], at, event)

    @staticmethod
    def _add(answer: Answer, at: float, event: object) -> None:
        answer.response_id = getattr(event, "response_id", answer.response_id)
        match event:
            case Sound():
                answer.sounds.append((at, event))
            case protocol.ResponseText():
                answer.first_text_s = at if answer.first_text_s is None else answer.first_text_s
                answer.text += event.text
            case protocol.ToolRequest() | protocol.ToolRun():
                answer.tools.append((at, event))
            case protocol.Interrupted():
                answer.interruption = (at, event)
            case protocol.Paused():
                answer.pauses.append((at, None))
            case protocol.Resumed() if answer.pauses:
                answer.pauses[-1] = (answer.pauses[-1][0], at)
            case protocol.Decision():
                answer.decisions[event.name] = event.value
            case protocol.ResponseDone():
                answer.done = event
            case protocol.TurnMetrics():
                answer.metrics = event
            case _:
                pass

    def _take_typed(self, at: float) -> None:
        """An answer that no speech explains is one to what was typed, if anything was."""
        if self._open is None and self._typed and self._typed[0].began_s <= at:
            act = self._typed.popleft()
            self._open = CommittedTurn(act.began_s, act, None, None, act.exchange.words)
            self.commits.append(self._open)


def cut_off(reading: CallReading, act: Act) -> str:
    """What was taken for the whole turn before the caller had finished; empty: nothing."""
    for commit in reading.commits_of(act):
        if is_early(commit, act):
            return f"{commit.text!r} was taken for the whole turn"
    return ""


def is_answered_early(reading: CallReading, act: Act) -> bool:
    """Whether an answer was heard before the caller had finished."""
    firsts = [answer.first_sound_s for answer in reading.answers_to(act)]
    return any(first is not None and first < act.ended_s for first in firsts)


def is_early(commit: CommittedTurn | None, act: Act) -> bool:
    """Whether a part of what was said was taken for all of it, before all of it had been said."""
    if commit is None or commit.heard_until_s is None:
        return False
    return commit.heard_until_s < act.ended_s - SLACK_S and commit.at_s < act.ended_s


def plain_text_words(text: str) -> list[str]:
    """The words of a text, without what is around them."""
    return _WORD.findall(text.casefold())


def check_history(reading: CallReading) -> dict[int, str]:
    """For each answer that was heard, by turn: what is wrong about the memory of it; empty: nothing."""
    ledger = reading.log.ledger
    return {
        answer.turn: _problem(answer, ledger[answer.response_id])
        for answer in reading.answers
        if answer.response_id in ledger and (answer.interruption or answer.done)
    }


def _problem(answer: Answer, account: Account) -> str:
    judge = _interrupted if answer.interruption else _whole
    return _gap(account.entries) or judge(answer, account)


def _gap(entries: list[AudioEntry]) -> str:
    at = 0.0
    for entry in entries:
        if abs(entry.offset_ms - at) > _ROUNDING_MS:
            return f"audio jumps from {at:.0f} to {entry.offset_ms:.0f} ms"
        at = entry.offset_ms + entry.length_ms
    return ""


def _whole(answer: Answer, account: Account) -> str:
    sent, written = _sent(account), plain_text_words(answer.text)
    sent = sent[filler_words(answer, sent) :]
    if sent != written:
        return f"remembers {' '.join(written)!r}, was sent {' '.join(sent)!r}"
    unheard = sum(entry.length_ms for entry in account.entries) - account.heard_ms
    return f"{unheard:.0f} ms of it were not heard" if unheard > _ROUNDING_MS else ""


def _interrupted(answer: Answer, account: Account) -> str:
    assert answer.interruption is not None
    known = plain_text_words(answer.interruption[1].spoken_text)
    sent = _sent(account)
    filler = filler_words(answer, sent)
    sent = sent[filler:]
    if known != sent[: len(known)]:
        return f"remembers {' '.join(known)!r}, was sent {' '.join(sent)!r}"
    played = account.heard_ms
    least = _words_begun(account.entries, played - TOLERANCE_MS, whole_pieces=True) - 1 - filler
    most = _words_begun(account.entries, played + TOLERANCE_MS, whole_pieces=False) - filler
    if len(known) > most:
        return f"remembers {' '.join(known[most:])!r}, which was not heard"
    if len(known) < least:
        return f"does not remember {' '.join(sent[len(known) : least])!r}, which was heard"
    return ""


def _sent(account: Account) -> list[str]:
    return plain_text_words(" ".join(entry.text for entry in account.entries))


def filler_words(answer: Answer, sent: list[str]) -> int:
    """How many words were spoken before the answer's own while a tool was at work: "one moment, please"."""
    written = plain_text_words(answer.text)[:_COMPARED]
    if not answer.tools or not written:
        return 0
    return next((at for at in range(_LONGEST_FILLER + 1) if sent[at : at + len(written)] == written), 0)


def _words_begun(entries: list[AudioEntry], until_ms: float, *, whole_pieces: bool) -> int:
    """Words of the pieces that had begun, or were over, when so much had been played."""
    at, count = 0.0, 0
    for entry in entries:
        if (at + entry.length_ms if whole_pieces else at) > until_ms:
            break
        count += len(plain_text_words(entry.text))
        at += entry.length_ms
    return count
