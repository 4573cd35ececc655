"""Checkpoints of one session: when they are sent, and what they contain."""

from __future__ import annotations

import asyncio
from bisect import insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec

from parley.checkpoint import HistoryState, SessionState
from parley.protocol import (
    Answer,
    Audio,
    Checkpoint,
    Interrupted,
    ResponseText,
    ServerEvent,
    Start,
    ToolRequest,
    Truncated,
    Updated,
)

AUDIO_ADVANCE_MS = 2_000
"""Audio after which a checkpoint is sent although nothing else has changed."""
_LOOK_EVERY_MS = 100
_AFTER_CHECKPOINT = (Audio, Interrupted, ResponseText, ToolRequest, Truncated, Updated)
"""Events that show the client a change. It is lost with the server unless the checkpoint comes first: a tool
would be run twice, an interrupted answer would go on."""


@dataclass(frozen=True)
class Snapshot:
    """A session at one moment."""

    settings: Start
    """Without ``resume``."""
    history: HistoryState
    state: SessionState
    settled: bool


class HandledMessages:
    """Counts the messages of the client, and knows those whose effect is still to come.

    ``count``: those that another session has handled.
    """

    def __init__(self, count: int = 0) -> None:
        self.count = count
        """Number of the newest message."""
        self._unfinished: list[int] = []

    @property
    def unfinished(self) -> list[int]:
        """Numbers of messages whose effect is still to come, in order."""
        return list(self._unfinished)

    def begin(self) -> int:
        """A message is handled now; returns its number."""
        self.count += 1
        return self.count

    def postpone(self, number: int) -> None:
        """The effect of a message is still to come."""
        insort(self._unfinished, number)

    def finish(self, number: int) -> None:
        """The effect of a message is there; a message that was not postponed changes nothing."""
        if number in self._unfinished:
            self._unfinished.remove(number)


class Checkpoints:
    """Sends the changes of a session, at most once in each iteration of the event loop."""

    def __init__(self, take: Callable[[], Snapshot], emit: Callable[[Checkpoint], None]) -> None:
        self._take = take
        self._emit = emit
        self._last: Snapshot | None = None
        self._due: asyncio.Handle | None = None
        self._looked_ms = 0
        self._open = False

    def open(self) -> None:
        """Send the first one; before, and after :meth:`close`, nothing is sent."""
        self._open = True
        self.on_change()

    def close(self) -> None:
        """Send no more."""
        self._open = False
        if self._due is not None:
            self._due.cancel()
            self._due = None

    def on_change(self) -> None:
        """Something may have changed."""
        if self._open and self._due is None:
            self._due = asyncio.get_running_loop().call_soon(self._send)

    def on_audio(self, processed_ms: int) -> None:
        """The recogniser has processed the client's audio before this position."""
        last = self._last
        if last is None or processed_ms - last.state.audio_ms <= AUDIO_ADVANCE_MS:
            return
        # While the user speaks the position stays, and every chunk would be a reason to look.
        if processed_ms - self._looked_ms >= _LOOK_EVERY_MS:
            self._looked_ms = processed_ms
            self.on_change()

    def before(self, event: ServerEvent) -> None:
        """An event is about to be sent: a change that it shows is sent first."""
        if self._due is not None and isinstance(event, _AFTER_CHECKPOINT):
            self._due.cancel()
            self._send()

    def send(self, answers: Sequence[Answer]) -> None:
        """Send what has changed at once, before ``answers``, which the caller sends."""
        if self._due is not None:
            self._due.cancel()
        if self._open:
            self._send(answers)

    def _send(self, answers: Sequence[Answer] = ()) -> None:
        self._due = None
        now, last = self._take(), self._last
        if last is not None and not _differs(now, last):
            return
        self._last = now
        self._emit(
            Checkpoint(
                state=now.state,
                settings=now.settings if last is None or now.settings != last.settings else None,
                history=now.history if last is None or now.history != last.history else None,
                settled=now.settled,
                answers=list(answers),
            )
        )


def _differs(now: Snapshot, last: Snapshot) -> bool:
    advance_ms = now.state.audio_ms - last.state.audio_ms
    there = msgspec.structs.replace(now.state, audio_ms=last.state.audio_ms)
    return advance_ms > AUDIO_ADVANCE_MS or replace(now, state=there) != last
