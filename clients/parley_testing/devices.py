"""The devices of a caller: what the microphone records, what the loudspeaker plays, and its echo."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from parley_client.audio.microphone import DEFAULT_CHUNK_MS
from parley_client.audio.playout import Heard, PlayoutClock
from parley_client.events import AgentAudio
from parley_testing.rendering import Clip
from parley_testing.scenario import Echo
from parley_testing.voices import RATE

_CHUNK = DEFAULT_CHUNK_MS * RATE // 1000
_ROOM_RMS = 8.0
"""Even a quiet room is not silent: -72 dB of full scale."""
_ECHO_SECONDS = 12
_FADE = RATE // 20

_TAIL_S = 0.06
_DECAY_S = 0.015


@dataclass(frozen=True)
class Placed:
    """A clip in time. Seconds of the call: since the microphone's first sample."""

    began_s: float
    """Its first loud sample."""
    ended_s: float
    """Its last one."""
    pauses: tuple[tuple[float, float], ...]


class Mixer:
    """What the microphone records, chunk by chunk, without any clock."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self._clips: list[tuple[int, NDArray[np.int16]]] = []
        self._loop: NDArray[np.float64] | None = None
        self._loop_since = 0
        self._echo = np.zeros(_ECHO_SECONDS * RATE)
        self.sent = 0
        """Samples taken so far."""

    def place(self, clip: Clip) -> Placed:
        """A clip begins with the chunk that is being recorded now, over whatever sounds already."""
        start = self.sent
        self._clips.append((start, clip.samples))
        return Placed(
            began_s=(start + clip.first) / RATE,
            ended_s=(start + clip.last) / RATE,
            pauses=tuple(((start + a) / RATE, (start + b) / RATE) for a, b in clip.pauses),
        )

    def set_background(self, loop: NDArray[np.float64] | None) -> None:
        """This goes on from now on (scale of 16-bit samples), repeated; None: nothing."""
        self._loop, self._loop_since = loop, self.sent

    def add_echo(self, at: int, samples: NDArray[np.float64]) -> None:
        """Something from the loudspeaker arrives at sample ``at``; what is in the past already is lost."""
        first = max(at, self.sent)
        rest = samples[first - at :]
        room = len(self._echo) - (first - self.sent)
        rest = rest[: max(0, room)]
        places = (first + np.arange(len(rest))) % len(self._echo)
        self._echo[places] += rest

    def next_chunk(self) -> NDArray[np.int16]:
        """The next chunk."""
        start, stop = self.sent, self.sent + _CHUNK
        mixed = self._rng.normal(0.0, _ROOM_RMS, _CHUNK)
        if self._loop is not None:
            places = np.arange(start, stop) - self._loop_since
            mixed += self._loop[places % len(self._loop)] * np.minimum(1.0, places / _FADE)
        places = np.arange(start, stop) % len(self._echo)
        mixed += self._echo[places]
        self._echo[places] = 0.0
        for at, samples in self._clips:
            first, last = max(at, start), min(at + len(samples), stop)
            if first < last:
                mixed[first - start : last - start] += samples[first - at : last - at]
        self._clips = [(at, samples) for at, samples in self._clips if at + len(samples) > stop]
        self.sent = stop
        return np.asarray(np.clip(np.rint(mixed), -32_768, 32_767), np.int16)


@dataclass(frozen=True)
class AudioEntry:
    """A piece of the agent's speech."""

    offset_ms: float
    """Where it begins in its response, as the server says."""
    length_ms: float
    text: str
    """The words that begin in it."""


@dataclass
class Account:
    """The received audio of a response, and how much of it was heard."""

    entries: list[AudioEntry] = field(default_factory=list)
    heard_ms: float = 0.0


class Loudspeaker:
    """Plays pieces one after the other, halts and drops as the server says."""

    def __init__(self, on_heard: Callable[[Heard], None] | None = None) -> None:
        self._on_heard = on_heard
        self._clock = PlayoutClock(self._note)
        self._dropped: set[str] = set()
        self.ledger: dict[str, Account] = {}
        """By response."""
        self.late: list[AudioEntry] = []
        """Pieces that came after their response had been interrupted."""

    def push(self, audio: AgentAudio, now: float) -> None:
        """A piece arrives and is queued behind the others."""
        entry = AudioEntry(audio.offset_ms, audio.duration_ms, audio.text)
        if audio.response_id in self._dropped:
            self.late.append(entry)
        else:
            self.ledger.setdefault(audio.response_id, Account()).entries.append(entry)
            self._clock.push(audio, now)

    def pause(self, response_id: str, now: float) -> None:
        """Halt and keep what is queued."""
        self._clock.pause(response_id, now)

    def resume(self, response_id: str, now: float) -> None:
        """Go on where it halted."""
        self._clock.resume(response_id, now)

    def interrupt(self, response_id: str, now: float) -> None:
        """Drop what is queued of a response, and all of it that is still to come."""
        self._dropped.add(response_id)
        self._clock.interrupt(response_id, now)

    def advance(self, now: float) -> None:
        """Let time pass."""
        self._clock.advance(now)

    def _note(self, heard: Heard) -> None:
        self.ledger[heard.response_id].heard_ms += 1000 * len(heard.samples) / heard.sample_rate
        if self._on_heard is not None:
            self._on_heard(heard)

    @property
    def halted(self) -> bool:
        """Whether it waits for the server to decide."""
        return self._clock.paused

    def playing(self, now: float) -> str | None:
        """The response that is being heard."""
        return self._clock.playing(now)

    def played_ms(self, response_id: str) -> float:
        """How much of a response has been heard, as of the last call with a time."""
        account = self.ledger.get(response_id)
        return account.heard_ms if account else 0.0

    def queued_ms(self, now: float) -> float:
        """How much waits to be heard."""
        self._clock.advance(now)
        return 1000 * self._clock.queued_s(now)


class EchoPath:
    """Delays what is heard, makes it softer and lets a small room answer."""

    def __init__(self, echo: Echo, mixer: Mixer) -> None:
        self._delay = round(echo.delay_ms * RATE / 1000)
        self._mixer = mixer
        rng = np.random.default_rng(7)
        tail = rng.standard_normal(round(_TAIL_S * RATE)) * np.exp(
            -np.arange(round(_TAIL_S * RATE)) / (_DECAY_S * RATE)
        )
        room = np.concatenate([[1.0], 0.08 * tail])
        self._room = room / np.sqrt(np.sum(room**2)) * 10 ** (-echo.attenuation_db / 20)
        self._at = 0

    def heard(self, heard: Heard) -> None:
        """Something left the loudspeaker, at the microphone's own rate."""
        at = round(heard.at_s * RATE)
        if abs(at - self._at) <= 2:  # it goes on; rounding must not open gaps
            at = self._at
        self._at = at + len(heard.samples)
        self._mixer.add_echo(at + self._delay, np.convolve(heard.samples.astype(np.float64), self._room))
