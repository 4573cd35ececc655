"""How a client connects, waits and buffers."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass

# A network load balancer of AWS drops TCP connections that are silent for this long (seconds).
NLB_IDLE_S = 350.0


@dataclass(frozen=True)
class Backoff:
    """Waits between attempts to connect: exponential, with full jitter.

    It applies to *opening* a call only. A call that breaks is reported as
    :class:`~parley_client.CallLostError`; its conversation lived on the server, so connecting
    again starts a new one.
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
        """Refuse values that would wait forever or never try.

        Raises:
            ValueError: a value out of range.
        """
        if self.attempts < 1 or self.initial_s < 0 or self.factor < 1 or self.max_s < self.initial_s:
            raise ValueError(f"not a usable backoff: {self}")

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
        """Refuse pings that come too late to be of use.

        Raises:
            ValueError: a value out of range.
        """
        if not 0 < self.time_s < NLB_IDLE_S or self.timeout_s <= 0:
            raise ValueError(f"keepalive must be sent within {NLB_IDLE_S:.0f} s: {self}")

    def channel_options(self) -> list[tuple[str, int]]:
        """As arguments of a gRPC channel."""
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
    """Room in the send queue, when the network or the server is slower than the audio."""
    acknowledge_s: float = 15.0
    """The server's acknowledgement of a request. A model process that died leaves the
    connection open and says nothing; this is how it is noticed."""
    silence_s: float = 330.0
    """Anything at all from the server."""
    consumer_s: float = 30.0
    """Room in the event queue, when the application does not read its events."""
    close_s: float = 5.0
    """``closed``, after hanging up."""


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
