"""Whether the agent remembers exactly what was heard of its answers.

What it remembers is what it says of that: the whole text of a finished answer, and ``spoken_text`` of an
interrupted one. What was heard is the loudspeaker's ledger. It knows words by the piece of audio in which
they begin, so that a cut is known to a piece: words that begin in the piece that was being played when the
answer stopped, and the word before them, may be in or out. What is said to fill the time that a tool takes is
not meant to be remembered.
"""

from __future__ import annotations

import re

from simulate.commits import Answer, Reading
from simulate.loudspeaker import Account, Entry

TOLERANCE_MS = 30.0
"""Caller and server hear of a stop at different times: so far may their places in the answer differ."""
_ROUNDING_MS = 2.0
_COMPARED = 3
_LONGEST_FILLER = 8
_WORD = re.compile(r"[^\W_]+(?:['\u2019.:-][^\W_]+)*")


def words(text: str) -> list[str]:
    """The words of a text, without what is around them."""
    return _WORD.findall(text.casefold())


def check(reading: Reading) -> dict[int, str]:
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


def _gap(entries: list[Entry]) -> str:
    at = 0.0
    for entry in entries:
        if abs(entry.offset_ms - at) > _ROUNDING_MS:
            return f"audio jumps from {at:.0f} to {entry.offset_ms:.0f} ms"
        at = entry.offset_ms + entry.length_ms
    return ""


def _whole(answer: Answer, account: Account) -> str:
    sent, written = _sent(account), words(answer.text)
    sent = sent[_filler_words(answer, sent) :]
    if sent != written:
        return f"remembers {' '.join(written)!r}, was sent {' '.join(sent)!r}"
    unheard = sum(entry.length_ms for entry in account.entries) - account.heard_ms
    return f"{unheard:.0f} ms of it were not heard" if unheard > _ROUNDING_MS else ""


def _interrupted(answer: Answer, account: Account) -> str:
    assert answer.interruption is not None
    known = words(answer.interruption[1].spoken_text)
    sent = _sent(account)
    filler = _filler_words(answer, sent)
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
    return words(" ".join(entry.text for entry in account.entries))


def _filler_words(answer: Answer, sent: list[str]) -> int:
    """How many words were spoken before the answer's own while a tool was at work: "one moment, please"."""
    written = words(answer.text)[:_COMPARED]
    if not answer.tools or not written:
        return 0
    return next((at for at in range(_LONGEST_FILLER + 1) if sent[at : at + len(written)] == written), 0)


def _words_begun(entries: list[Entry], until_ms: float, *, whole_pieces: bool) -> int:
    """Words of the pieces that had begun, or were over, when so much had been played."""
    at, count = 0.0, 0
    for entry in entries:
        if (at + entry.length_ms if whole_pieces else at) > until_ms:
            break
        count += len(words(entry.text))
        at += entry.length_ms
    return count
