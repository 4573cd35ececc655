"""How a client connects, waits and buffers."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from dataclasses import dataclass

from parley.errors import InvalidMessageError
from parley.protocol import MAX_MESSAGE_BYTES, Start

_KEYS = frozenset("0123456789*#ABCD")
EXAGGERATION = (0.0, 2.0)
GUIDANCE = (0.0, 1.0)
TEMPERATURE = (0.0, 2.0)
_NOT_NEGATIVE = (0.0, math.inf)

# A network load balancer of AWS drops TCP connections that are silent for this long (seconds).
NLB_IDLE_S = 350.0


def check_start(start: Start) -> None:
    """Check the numbers and texts of a session's options; the server checks some of them further.

    Raises:
        InvalidMessageError: one is out of its range.
    """
    sampling, barge_in, silence = start.sampling, start.barge_in, start.silence
    ranges: tuple[tuple[str, float | None, tuple[float, float]], ...] = (
        ("exaggeration", start.exaggeration, EXAGGERATION),
        ("guidance_weight", start.guidance_weight, GUIDANCE),
        ("sampling.temperature", sampling.temperature, TEMPERATURE),
        ("sampling.top_p", sampling.top_p, (0, 1)),
        ("sampling.max_tokens", sampling.max_tokens, (1, math.inf)),
        ("barge_in.min_speech_ms", barge_in.min_speech_ms, _NOT_NEGATIVE),
        ("barge_in.min_words", barge_in.min_words, _NOT_NEGATIVE),
        ("silence.prompt_after_ms", silence.prompt_after_ms, _NOT_NEGATIVE),
        ("silence.hang_up_after_ms", silence.hang_up_after_ms, _NOT_NEGATIVE),
    )
    for name, value, (least, most) in ranges:
        if value is not None and not least <= value <= most:
            wanted = f"at least {least:g}" if most == math.inf else f"{least:g} to {most:g}"
            raise InvalidMessageError(f"{name} is {value}; it must be {wanted}")
    if sampling.top_p == 0:
        raise InvalidMessageError("sampling.top_p is 0; it must be above 0")
    for prompt in silence.prompts or ():
        check_text("a text of silence.prompts", prompt)


def check_text(name: str, text: str) -> None:
    """Raise ``InvalidMessageError`` for a text without words."""
    if not text.strip():
        raise InvalidMessageError(f"{name} is empty")


def check_keys(digits: str) -> None:
    """Raise ``InvalidMessageError`` for no keys, or characters that are not on a telephone."""
    if not digits:
        raise InvalidMessageError("no keys were given")
    wrong = sorted(set(digits) - _KEYS)
    if wrong:
        raise InvalidMessageError(f"{''.join(wrong)!r} in {digits!r}: keys are 0-9, *, # and A-D")


def check_size(message: bytes) -> None:
    """Raise ``InvalidMessageError`` for an encoded message that is too large for the server."""
    if len(message) > MAX_MESSAGE_BYTES:
        raise InvalidMessageError(f"message of {len(message)} bytes; at most {MAX_MESSAGE_BYTES} are allowed")


@dataclass(frozen=True)
class Backoff:
    """Waits between attempts to connect: exponential, with full jitter.

    It applies to *opening* a call. How a call that has lost its server goes on is
    :mod:`parley_client.reconnection`.
    """

    attempts: int = 5
    """How often to try in all. 1: no second attempt."""
    initial_s: float = 0.25
    """Longest wait before the second attempt (seconds)."""
    factor: float = 2.0
    """Growth of the longest wait from one attempt to the next."""
    max_s: float = 8.0
    """No wait is longer than this (seconds)."""

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for values that would wait forever or never try."""
        if self.attempts < 1 or self.initial_s < 0 or self.factor < 1 or self.max_s < self.initial_s:
            raise ValueError(f"not a usable backoff: {self}")

    def at_least(self, wait_s: float, retry_after_s: float | None) -> float:
        """A wait that is as long as a full server asks for, within :attr:`max_s`."""
        return max(wait_s, min(retry_after_s or 0.0, self.max_s))

    def waits(self, rng: random.Random) -> Iterator[float]:
        """Seconds to wait after each failed attempt but the last.

        Full jitter, so that clients which lost the same server do not return all at once.
        """
        longest = self.initial_s
        for _ in range(self.attempts - 1):
            yield rng.uniform(0, longest)
            longest = min(self.max_s, longest * self.factor)


NO_RETRY = Backoff(attempts=1)


@dataclass(frozen=True)
class Keepalive:
    """HTTP/2 pings on a connection on which nothing is sent, for example while muted.

    The default lies above the 300 s that Triton demands between pings without data (more
    frequent ones make it close the connection) and below the 350 s after which a load balancer
    forgets the connection.
    """

    time_s: float = 310.0
    timeout_s: float = 20.0

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for pings that come too late to be of use."""
        if not 0 < self.time_s < NLB_IDLE_S or self.timeout_s <= 0:
            raise ValueError(f"keepalive must be sent within {NLB_IDLE_S:.0f} s: {self}")

    def channel_options(self) -> list[tuple[str, int]]:
        """The options as arguments of a gRPC channel."""
        return [
            ("grpc.keepalive_time_ms", int(self.time_s * 1000)),
            ("grpc.keepalive_timeout_ms", int(self.timeout_s * 1000)),
            ("grpc.keepalive_permit_without_calls", 0),
            ("grpc.http2.max_pings_without_data", 0),
        ]


@dataclass(frozen=True)
class Deadlines:
    """Every wait of a call ends by one of these (seconds)."""

    connect_s: float = 10.0
    """TCP connection, and then the server's ``connected``; each attempt has its own."""
    send_s: float = 10.0
    """Room in the send queue, when the network or the server is slower than the audio. A call that may move
    leaves its server then."""
    acknowledge_s: float = 15.0
    """The server's acknowledgement of a request. A model process that died leaves the
    connection open and sends nothing; this is how it is noticed."""
    silence_s: float = 330.0
    """Anything at all from the server."""
    consumer_s: float = 30.0
    """Room in the event queue, when the application does not read its events."""
    close_s: float = 5.0
    """``closed``, after hanging up."""
    suspect_s: float = 1.0
    """The server's acknowledgement of a request, for a call that may move: then it goes on at another server,
    if there is one."""
    resume_s: float = 30.0
    """Another server, for a call that may move and has lost its own; then the call is lost."""


@dataclass(frozen=True)
class Bounds:
    """How much a call holds in its queues.

    Outgoing audio: ``await call.send_audio(...)`` waits for room; ``call.offer_audio(...)``
    (for microphones, which cannot wait) drops the oldest instead and counts it. Messages are
    never dropped: too many raise ``OverloadedError``. Incoming: when ``events`` are waiting the
    client stops reading, and gives the call up after ``Deadlines.consumer_s``.
    """

    audio_ms: int = 2_000
    messages: int = 64
    events: int = 512
    replay_ms: int = 10_000
    """Of a call that may move: how much of the user's audio is kept for another server (milliseconds)."""
    outage_ms: int = 5_000
    """And how much may wait while there is no server (milliseconds). A server takes 15 s at once."""
