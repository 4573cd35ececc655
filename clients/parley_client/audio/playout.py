"""A clock of playback without a device: when each piece of the agent's audio is heard.

The server sends audio as fast as it is made; a listener hears it in real time, until it is paused or
interrupted. Every method takes the time as an argument.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from parley_client.audio.files import Pcm
from parley_client.events import AgentAudio

_REMEMBERED = 32

_REMEMBERED_RESPONSES = 32


class Gate:
    """The server's orders about playing: wait, resume, or drop a response for good.

    A response that may be interrupted holds up the whole loudspeaker, whatever is queued behind it, until
    the server has decided about that response.
    """

    def __init__(self) -> None:
        self._paused: dict[str, None] = {}
        self._dropped: deque[str] = deque(maxlen=_REMEMBERED)

    @property
    def is_open(self) -> bool:
        """Whether the loudspeaker may play."""
        return not self._paused

    def accepts(self, response_id: str) -> bool:
        """Whether audio of this response is still wanted."""
        return response_id not in self._dropped

    def pause(self, response_id: str) -> None:
        """Stop all playing until the server has decided whether this response is interrupted."""
        if self.accepts(response_id):
            self._paused[response_id] = None
        if len(self._paused) > _REMEMBERED:
            del self._paused[next(iter(self._paused))]

    def resume(self, response_id: str) -> None:
        """The response was not interrupted."""
        self._paused.pop(response_id, None)

    def interrupt(self, response_id: str) -> None:
        """Drop this response; what is queued behind it goes on."""
        self._paused.pop(response_id, None)
        if self.accepts(response_id):
            self._dropped.append(response_id)


@dataclass(frozen=True, slots=True)
class Heard:
    """A stretch of audio that has left the loudspeaker."""

    response_id: str
    at_s: float
    """When its first sample was heard (seconds on the caller's clock)."""
    samples: Pcm
    sample_rate: int


@dataclass(slots=True)
class _Piece:
    response_id: str
    start_s: float
    samples: Pcm
    sample_rate: int

    @property
    def end_s(self) -> float:
        return self.start_s + len(self.samples) / self.sample_rate

    def cut(self, first: int, last: int) -> _Piece:
        start_s = self.start_s + first / self.sample_rate
        return _Piece(self.response_id, start_s, self.samples[first:last], self.sample_rate)


class PlayoutClock:
    """Plays pieces one after the other in real time.

    Args:
        on_heard: Called with every stretch that was heard, in order.
        limit_s: Room for audio that is not yet heard (seconds); what does not fit is dropped.
    """

    def __init__(self, on_heard: Callable[[Heard], None] | None = None, limit_s: float = 300.0) -> None:
        self._on_heard = on_heard
        self._limit_s = limit_s
        self._pieces: deque[_Piece] = deque()
        self._heard_s: dict[str, float] = {}
        self._gate = Gate()
        self._stopped_s: float | None = None  # when the loudspeaker was paused
        self._gap_is_known = False
        self.underruns = 0
        """How often a response's audio came too late to follow without a gap."""
        self.last_heard_s: float | None = None
        """When the last sample so far was heard."""

    def push(self, audio: AgentAudio, now: float) -> None:
        """A piece arrives at ``now`` and is queued behind the others."""
        self.advance(now)
        if not self._gate.accepts(audio.response_id) or not len(audio.samples):
            return
        if self.queued_s(now) + len(audio.samples) / audio.sample_rate > self._limit_s:
            return
        if self._stopped_s is None:
            self._count_gap(audio.response_id)
        start = self._pieces[-1].end_s if self._pieces else self._frozen(now)
        self._pieces.append(_Piece(audio.response_id, start, audio.samples, audio.sample_rate))

    def _count_gap(self, response_id: str) -> None:
        if not self._pieces and response_id in self._heard_s and not self._gap_is_known:
            self.underruns += 1
        self._gap_is_known = False

    def pause(self, response_id: str, now: float) -> None:
        """Fall silent at ``now``, because of this response, and keep what has not been heard."""
        self.advance(now)
        self._gate.pause(response_id)
        if not self._gate.is_open and self._stopped_s is None:
            self._stopped_s = now

    def resume(self, response_id: str, now: float) -> None:
        """Play on from ``now``, if no other response is paused."""
        self.advance(now)
        self._gate.resume(response_id)
        self._reopen(now)

    def interrupt(self, response_id: str, now: float) -> float:
        """Stop a response at ``now`` and take no more of it.

        Returns:
            How much of it was queued and will not be heard (seconds).
        """
        self.advance(now)
        self._gate.interrupt(response_id)
        dropped = sum(p.end_s - p.start_s for p in self._pieces if p.response_id == response_id)
        kept = [piece for piece in self._pieces if piece.response_id != response_id]
        self._pieces = deque(kept)
        if kept:
            self._follow_each_other(min(self._frozen(now), kept[0].start_s))
        self._reopen(now)
        return dropped

    def _frozen(self, now: float) -> float:
        """The loudspeaker's own time, which stands still while it is paused."""
        return now if self._stopped_s is None else self._stopped_s

    def _reopen(self, now: float) -> None:
        if self._stopped_s is not None and self._gate.is_open:
            self._stopped_s = None
            self._gap_is_known = not self._pieces
            self._follow_each_other(now)

    def _follow_each_other(self, start_s: float) -> None:
        """Schedule what is queued from ``start_s`` on, one piece behind the other."""
        for piece in self._pieces:
            piece.start_s = start_s
            start_s = piece.end_s

    def advance(self, now: float) -> None:
        """Report everything that was heard up to ``now``."""
        while self._stopped_s is None and self._pieces and self._pieces[0].start_s < now:
            piece = self._pieces[0]
            # A sample is heard when it has ended; the small sum forgives rounding of the times.
            samples = min(len(piece.samples), int((now - piece.start_s) * piece.sample_rate + 1e-3))
            if not samples:
                return
            self._pieces.popleft()
            if samples < len(piece.samples):
                self._pieces.appendleft(piece.cut(samples, len(piece.samples)))
            self._report(piece.cut(0, samples))

    def _report(self, piece: _Piece) -> None:
        duration = len(piece.samples) / piece.sample_rate
        heard = self._heard_s.pop(piece.response_id, 0.0)
        self._heard_s[piece.response_id] = heard + duration
        while len(self._heard_s) > _REMEMBERED_RESPONSES:
            del self._heard_s[next(iter(self._heard_s))]
        self.last_heard_s = piece.end_s
        if self._on_heard is not None:
            self._on_heard(Heard(piece.response_id, piece.start_s, piece.samples, piece.sample_rate))

    def queued_s(self, now: float) -> float:
        """Audio that is still to be heard (seconds), as far as it has arrived."""
        return max(0.0, self._pieces[-1].end_s - self._frozen(now)) if self._pieces else 0.0

    @property
    def paused(self) -> bool:
        """Whether the loudspeaker waits for the server to decide."""
        return self._stopped_s is not None

    def playing(self, now: float) -> str | None:
        """The response that is being heard at ``now``; None: nothing is, or the loudspeaker is paused."""
        self.advance(now)
        return self._pieces[0].response_id if self._pieces and self._stopped_s is None else None

    def played_ms(self, response_id: str) -> float:
        """How much of a response has been heard, as of the last ``advance`` (milliseconds)."""
        return 1000 * self._heard_s.get(response_id, 0.0)
