"""What a call has sent and would send again to another server: audio and messages, in their order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from parley import protocol
from parley.checkpoint import HistoryState, SessionState
from parley_client.queues import BYTES_PER_MS, OutgoingMessage

MAX_UNCONFIRMED = 256
"""Messages without a proof that the state contains them; while there are so many, no message is sent."""
_SETTLED_S = 0.3
"""A server that lives for so long after it has handled a message has sent the checkpoint with its effect."""
_UPDATE_SETTLED_S = 5.0
"""An update may look up a voice first; settings behind its ``updated`` confirm it, unless it is refused."""
_COMMIT_SETTLED_S = 30.0
"""The end of a turn waits for the recogniser; ``audio_ms`` confirms it, unless the session is muted."""


class SentAudio:
    """The newest audio of the user, with its position in all audio that was ever sent.

    Args:
        limit_ms: How much is kept (milliseconds).
    """

    def __init__(self, limit_ms: int) -> None:
        self._limit = limit_ms * BYTES_PER_MS
        self._kept = bytearray()
        self._begin = 0

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
class _Unconfirmed:
    raw: bytes
    message: protocol.ClientMessage
    position: int
    """Audio that was sent before it (bytes)."""
    turns: int
    """Turns of the agent when it was sent."""
    said: int
    """How often the history contained it when it was sent."""
    number: int | None
    """Of its request on the stream; None: it was not sent on this stream."""
    handled_s: float | None = None
    """When its request was acknowledged."""
    is_answered: bool = False
    """Whether the ``updated`` of an update came."""


class UnconfirmedMessages:
    """Messages of which there is no proof that the newest checkpoint contains them.

    The server handles requests in their order and sends a checkpoint at every change. So a checkpoint
    contains a message if it covers audio that was sent behind it, or if the message was acknowledged before
    the checkpoint came. Acknowledgements and checkpoints do not have one order: a message whose
    acknowledgement comes behind its checkpoint is held for some moments, and a server that is lost in them
    may get it twice, unless the state itself shows its effect.

    Args:
        clock: Seconds of a monotonic clock.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._messages: deque[_Unconfirmed] = deque()
        self._answered_twice = 0  # updates that a server before has answered

    @property
    def is_full(self) -> bool:
        """Whether no message may be added."""
        return len(self._messages) >= MAX_UNCONFIRMED

    def on_sent(
        self,
        number: int,
        message: protocol.ClientMessage,
        position: int,
        state: SessionState,
        history: HistoryState,
    ) -> None:
        """A message is sent as request ``number``, behind ``position`` bytes of audio."""
        raw = protocol.encode(message)
        said = _count_said(state, history, message)
        self._messages.append(_Unconfirmed(raw, message, position, state.turns, said, number))

    def on_repeated(self, raw: bytes, number: int) -> None:
        """A message that :meth:`begin_stream` returned is sent as request ``number``."""
        for entry in self._messages:
            if entry.number is None and entry.raw == raw:
                entry.number = number
                return

    def on_handled(self, number: int) -> None:
        """The server has handled all requests up to ``number``."""
        now = self._clock()
        for entry in self._messages:
            if entry.number is not None and entry.number <= number and entry.handled_s is None:
                entry.handled_s = now

    def on_reply(self) -> None:
        """The server lives: what it handled a moment ago is contained in what it has sent since."""
        now = self._clock()
        self._keep(lambda entry: entry.handled_s is None or now - entry.handled_s < _settled_s(entry.message))

    def on_checkpoint(self, state: SessionState, *, has_settings: bool) -> None:
        """Drop what this checkpoint contains."""

        def is_open(entry: _Unconfirmed) -> bool:
            if isinstance(entry.message, protocol.Update):
                return not (has_settings and entry.is_answered)
            if isinstance(entry.message, protocol.Commit | protocol.Discard):
                return entry.handled_s is None or state.audio_ms < entry.position // BYTES_PER_MS
            return entry.handled_s is None and state.audio_ms * BYTES_PER_MS <= entry.position

        self._keep(is_open)

    def on_updated(self) -> bool:
        """The oldest update without an answer has taken effect; returns whether that is new."""
        if self._answered_twice:
            self._answered_twice -= 1
            return False
        for entry in self._messages:
            if isinstance(entry.message, protocol.Update) and not entry.is_answered:
                entry.is_answered = True
                break
        return True

    def begin_stream(self, state: SessionState, history: HistoryState) -> list[tuple[int, bytes]]:
        """A new server goes on from this state: what it gets again.

        Returns:
            Position and JSON of each message, in their order. They are sent before all others.
        """
        self._keep(lambda entry: not _shows(state, history, entry))
        for entry in self._messages:
            entry.number = entry.handled_s = None
        self._answered_twice = sum(entry.is_answered for entry in self._messages)
        return [(entry.position, entry.raw) for entry in self._messages]

    def _keep(self, is_kept: Callable[[_Unconfirmed], bool]) -> None:
        if self._messages:
            self._messages = deque(entry for entry in self._messages if is_kept(entry))


def _settled_s(message: protocol.ClientMessage) -> float:
    match message:
        case protocol.Update():
            return _UPDATE_SETTLED_S
        case protocol.Commit() | protocol.Discard():
            return _COMMIT_SETTLED_S
        case _:
            return _SETTLED_S


def _shows(state: SessionState, history: HistoryState, entry: _Unconfirmed) -> bool:
    """Whether the state shows the effect of a message that no checkpoint is known to contain."""
    began = state.turns > entry.turns
    is_said = _count_said(state, history, entry.message) > entry.said
    agent = state.agent
    match entry.message:
        case protocol.Text() | protocol.Remember():
            return is_said
        case protocol.Say(text=text):
            waits = any(queued.kind == "say" and queued.text == text for queued in state.queued)
            speaks = agent is not None and agent.kind == "say" and agent.text == text
            return waits or (began and (speaks or is_said))
        case protocol.Respond():
            return began or any(queued.kind == "respond" for queued in state.queued)
        case protocol.Dtmf(digits=digits):
            return began or state.user.digits.endswith(digits)
        case protocol.Interrupt(response_id=response_id):
            return agent is None or (response_id is not None and agent.response_id != response_id)
        case _:
            return False


def _count_said(state: SessionState, history: HistoryState, message: protocol.ClientMessage) -> int:
    """How often the text of a message is in the history, or waits for its place there."""
    waiting = ""
    messages = history.messages
    match message:
        case protocol.Text(text=text):
            role, waiting = "user", state.user.text
        case protocol.Say(text=text):
            role = "assistant"
        case protocol.Remember(role=role, text=text):
            messages = [*messages, *state.messages]
        case _:
            return 0
    text = text.strip()
    return sum(one.role == role and text in one.content for one in messages) + waiting.count(text)


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
