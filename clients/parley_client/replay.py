"""What a call has sent and would send again to another server: audio and messages, in their order."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from parley import protocol
from parley.checkpoint import SessionState
from parley_client.queues import BYTES_PER_MS, OutgoingMessage

MAX_MESSAGES = 256
"""Messages that no checkpoint contains yet; while there are so many, no message is sent."""


class SentAudio:
    """The newest audio of the user, with its position in all audio that was ever sent.

    Args:
        limit_ms: How much is kept (milliseconds).
        begin_ms: Audio of the session that another client has sent (milliseconds).
    """

    def __init__(self, limit_ms: int, begin_ms: int = 0) -> None:
        self._limit = limit_ms * BYTES_PER_MS
        self._kept = bytearray()
        self._begin = begin_ms * BYTES_PER_MS

    @property
    def begin_ms(self) -> int:
        """Position of the oldest audio that is kept (milliseconds)."""
        return self._begin // BYTES_PER_MS

    @property
    def end(self) -> int:
        """All audio that was ever sent (bytes)."""
        return self._begin + len(self._kept)

    def add(self, audio: bytes) -> None:
        """Audio is sent; what no longer fits is forgotten from the oldest on."""
        self._kept += audio
        if len(self._kept) > self._limit:
            self._drop(-(-(len(self._kept) - self._limit) // BYTES_PER_MS) * BYTES_PER_MS)

    def begin_anew(self) -> int:
        """A new session gets what is kept: its first position is 0 now. Returns what it was (bytes)."""
        begin, self._begin = self._begin, 0
        return begin

    def forget(self, before_ms: int) -> None:
        """Audio before this position is not needed any more."""
        self._drop(before_ms * BYTES_PER_MS - self._begin)

    def between(self, begin: int, end: int) -> bytes:
        """Audio between two positions (bytes), as far as it is kept."""
        return bytes(self._kept[max(0, begin - self._begin) : max(0, end - self._begin)])

    def _drop(self, count: int) -> None:
        # A position is a whole number of milliseconds, also where less has been sent so far.
        count = min(count, len(self._kept) // BYTES_PER_MS * BYTES_PER_MS)
        if count > 0:
            del self._kept[:count]
            self._begin += count


@dataclass
class _SentMessage:
    raw: bytes
    message: protocol.ClientMessage
    position: int
    """Audio that was sent before it (bytes)."""
    number: int
    index: int


class SentMessages:
    """The client's messages that the newest checkpoint does not contain, in their order.

    Messages are numbered as the server counts them: :attr:`parley.checkpoint.SessionState.handled`.

    Args:
        number: Messages of the session that another client has sent.
    """

    def __init__(self, number: int = 0) -> None:
        self._messages: deque[_SentMessage] = deque()
        self._number = number
        self.count = 0
        """Messages that were added."""

    @property
    def missing(self) -> frozenset[int]:
        """Which of the messages that were added are here, counted from 1."""
        return frozenset(one.index for one in self._messages)

    @property
    def changes(self) -> list[protocol.Remember | protocol.Update]:
        """Those that change the history or the settings."""
        kinds = protocol.Remember | protocol.Update
        return [one.message for one in self._messages if isinstance(one.message, kinds)]

    @property
    def is_full(self) -> bool:
        """Whether no message may be added."""
        return len(self._messages) >= MAX_MESSAGES

    def add(self, raw: bytes, message: protocol.ClientMessage, position: int) -> None:
        """A message is sent behind ``position`` bytes of audio."""
        self._number += 1
        self.count += 1
        self._messages.append(_SentMessage(raw, message, position, self._number, self.count))

    def on_checkpoint(self, state: SessionState) -> None:
        """Drop what this state contains."""
        handled, unfinished = state.handled, state.unfinished
        if handled is None:  # an older server: it does not count, and gets nothing twice
            self._messages.clear()
        elif self._messages:
            self._messages = deque(
                one for one in self._messages if one.number > handled or one.number in unfinished
            )

    def answers(self, call_id: str) -> bool:
        """Whether a result of this tool call is among them."""
        messages = (one.message for one in self._messages)
        return any(
            isinstance(one, protocol.ToolResponse) and one.final and one.call_id == call_id
            for one in messages
        )

    def begin_stream(self, state: SessionState, shift: int = 0) -> list[tuple[int, bytes]]:
        """A new server goes on from this state: what it gets before all else.

        Args:
            state: The newest.
            shift: By how much the positions of audio are smaller on that server (bytes).

        Returns:
            Position and JSON of each message, in their order.
        """
        self._number = state.handled or 0
        for one in self._messages:
            self._number += 1
            one.number = self._number
            one.position = max(0, one.position - shift)
        return [(one.position, one.raw) for one in self._messages]


def interleave(
    audio: SentAudio, begin_ms: int, messages: list[tuple[int, bytes]], max_chunk_bytes: int
) -> list[OutgoingMessage]:
    """The requests that bring a server up to date: audio from ``begin_ms`` on, each message at its place."""
    contents: list[OutgoingMessage] = []
    at = begin_ms * BYTES_PER_MS
    for position, raw in [*messages, (audio.end, b"")]:
        piece = audio.between(at, max(at, position))
        at = max(at, position)
        contents.extend(
            OutgoingMessage(audio=piece[begin : begin + max_chunk_bytes])
            for begin in range(0, len(piece), max_chunk_bytes)
        )
        if raw:
            contents.append(OutgoingMessage(message=raw))
    return contents
