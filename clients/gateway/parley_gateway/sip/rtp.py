"""The audio of a telephone call: RTP (RFC 3550), SRTP, keys (RFC 4733), and what the network does to them."""

from __future__ import annotations

import asyncio
import random
import secrets
import socket
from collections.abc import Callable
from typing import Any, Protocol, TypeAlias, cast

import numpy as np
import pylibsrtp
from aiortc.codecs.opus import OpusDecoder, OpusEncoder
from aiortc.jitterbuffer import JitterFrame
from aiortc.rtp import RtpPacket
from av import AudioFrame
from av.error import FFmpegError
from numpy.typing import NDArray

from parley.protocol import INPUT_SAMPLE_RATE
from parley.timeouts import loop_time
from parley_gateway.audio.codecs import AudioFormat, AudioStreamDecoder, Encoder, Encoding
from parley_gateway.audio.polyphase import LiveResampler
from parley_gateway.errors import TooManyCallsError
from parley_gateway.sip.session_description import FRAME_MS, CodecName, RtpMedia

_Pcm: TypeAlias = NDArray[np.int16]
_FRAME = INPUT_SAMPLE_RATE * FRAME_MS // 1000
_MOST_BYTES = 1_500
_KEYS = "0123456789*#ABCD"
_SEQUENCE = 1 << 16
_DEPTH = 2
"""Packets that wait before playing begins: 40 ms of jitter are not heard."""
_MOST_WAITING = 10
"""More come of a burst, or of a faster clock: the oldest are dropped, or the caller would be heard late."""
_FARTHEST = 500
"""A sequence number further away is that of another stream."""


class JitterBuffer:
    """Puts packets in order, one for each that is asked for."""

    def __init__(self) -> None:
        self._waiting: dict[int, bytes] = {}
        self._next: int | None = None
        """Sequence number that is due; None: playing has not begun, or ran dry."""
        self._newest = 0
        self.lost = 0
        """Packets that had not come when they were due."""

    def push(self, sequence: int, payload: bytes) -> None:
        """A packet; without a payload it is one that has no audio. One that is too late is dropped."""
        if self._next is not None:
            ahead = self._distance(sequence, self._next)
            if abs(ahead) > _FARTHEST:
                self.reset()
            elif ahead < 0:
                return
        if self._waiting and abs(self._distance(sequence, self._newest)) > _FARTHEST:
            self._waiting.clear()
        if not self._waiting or self._distance(sequence, self._newest) > 0:
            self._newest = sequence
        self._waiting[sequence] = payload
        if len(self._waiting) > _MOST_WAITING:
            for late in self._in_order()[:-_DEPTH]:
                del self._waiting[late]
            self._next = self._in_order()[0]

    def pop(self) -> bytes | None:
        """The packet that is due; None: it is lost, or nothing came."""
        if self._next is None:
            if len(self._waiting) < _DEPTH:
                return None
            self._next = self._in_order()[0]
        if not self._waiting:
            self._next = None
            return None
        payload = self._waiting.pop(self._next, None)
        self._next = (self._next + 1) % _SEQUENCE
        self.lost += payload is None
        return payload

    def reset(self) -> None:
        """Another stream begins."""
        self._waiting.clear()
        self._next = None

    def _in_order(self) -> list[int]:
        return sorted(self._waiting, key=lambda one: self._distance(one, self._newest))

    @staticmethod
    def _distance(one: int, other: int) -> int:
        """How much later a sequence number is than another, across their wrap-around."""
        return (one - other + _SEQUENCE // 2) % _SEQUENCE - _SEQUENCE // 2


class Codec(Protocol):
    """Audio as the network carries it."""

    sample_rate: int
    """Of what is encoded (Hz)."""

    def decode(self, payload: bytes) -> _Pcm:
        """What the agent hears: int16 [n], 16 kHz; empty: it cannot be read."""

    def encode(self, samples: _Pcm) -> bytes:
        """20 ms as a payload."""


class G711Codec:
    """µ-law and A-law."""

    sample_rate = 8_000

    def __init__(self, encoding: Encoding) -> None:
        form = AudioFormat(encoding, self.sample_rate)
        self._decoder = AudioStreamDecoder(form)
        self._encoder = Encoder(form, self.sample_rate)

    def decode(self, payload: bytes) -> _Pcm:
        """See :class:`Codec`."""
        return self._decoder.decode(payload)

    def encode(self, samples: _Pcm) -> bytes:
        """See :class:`Codec`."""
        return self._encoder.encode(samples)


class OpusCodec:
    """Opus."""

    sample_rate = 48_000

    def __init__(self) -> None:
        self._decoder, self._encoder = OpusDecoder(), OpusEncoder()
        self._encoder.codec.bit_rate = 32_000  # of speech, for which that is transparent
        self._resampler = LiveResampler(self.sample_rate, INPUT_SAMPLE_RATE)
        self._sent = 0

    def decode(self, payload: bytes) -> _Pcm:
        """See :class:`Codec`."""
        try:
            frames = self._decoder.decode(JitterFrame(data=payload, timestamp=0))
        except (FFmpegError, ValueError):
            return np.zeros(0, np.int16)
        stereo = [cast("AudioFrame", frame).to_ndarray().reshape(-1, 2) for frame in frames]
        if not stereo:
            return np.zeros(0, np.int16)
        return self._resampler.push(np.concatenate(stereo).astype(np.int32).mean(axis=1).astype(np.int16))

    def encode(self, samples: _Pcm) -> bytes:
        """See :class:`Codec`."""
        frame = AudioFrame.from_ndarray(samples.reshape(1, -1), format="s16", layout="mono")
        frame.sample_rate, frame.pts = self.sample_rate, self._sent
        self._sent += len(samples)
        payloads, _ = self._encoder.encode(frame)
        return payloads[0] if payloads else b""


_CODECS: dict[CodecName, Callable[[], Codec]] = {
    "opus": OpusCodec,
    "PCMU": lambda: G711Codec("ulaw"),
    "PCMA": lambda: G711Codec("alaw"),
}


def sample_rate_of(codec: CodecName) -> int:
    """What :meth:`RtpStream.send` takes with a codec (Hz)."""
    return OpusCodec.sample_rate if codec == "opus" else G711Codec.sample_rate


class RtpStream(asyncio.DatagramProtocol):
    """One call's audio in both directions, 20 ms at a time.

    Args:
        on_key: Called with every key of the caller's telephone.
    """

    def __init__(self, on_key: Callable[[str], None]) -> None:
        self._on_key = on_key
        self._transport: asyncio.DatagramTransport | None = None
        self._jitter = JitterBuffer()
        self._heard = np.zeros(0, np.int16)
        self._last = np.zeros(0, np.int16)
        self._remote: RtpMedia | None = None
        self._hosts: frozenset[str] = frozenset()
        self._to: tuple[str, int] | None = None
        self._is_found = False
        """Whether the peer's port is known from its packets, and not only from its description."""
        self._codec: Codec | None = None
        self._decrypt: pylibsrtp.Session | None = None
        self._encrypt: pylibsrtp.Session | None = None
        self._ssrc = secrets.randbits(32)
        self._their_ssrc: int | None = None
        self._sequence = secrets.randbits(16)
        self._timestamp = secrets.randbits(32)
        self._is_first = True
        self._key_at: int | None = None
        self.port = 0
        self.received_s = 0.0
        """When the last packet came (seconds of the event loop's clock)."""

    async def open(self, host: str, ports: range) -> None:
        """Listen on a free port.

        Raises:
            TooManyCallsError: all ports are taken.
        """
        loop = asyncio.get_running_loop()
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        for port in random.sample(ports, len(ports)):
            with_port = socket.socket(family, socket.SOCK_DGRAM)
            try:
                with_port.bind((host, port))
            except OSError:
                with_port.close()
                continue
            await loop.create_datagram_endpoint(lambda: self, sock=with_port)
            self.port = with_port.getsockname()[1]
            self.received_s = loop_time()
            return
        raise TooManyCallsError(f"all ports of {ports.start}-{ports.stop - 1} are taken", retry_after_s=5.0)

    def connect(self, remote: RtpMedia, signalled_from: str, key: bytes) -> None:
        """Exchange audio with a peer, or with another one, or otherwise, from now on.

        Args:
            remote: What the peer has described.
            signalled_from: Address of its signalling: behind NAT its audio comes from there. Empty: unknown.
            key: Of SRTP, for what is sent.
        """
        previous, self._remote = self._remote, remote
        if previous is None or previous.codec != remote.codec:
            self._codec = _CODECS[remote.codec]()
        if previous is None or (previous.host, previous.port) != (remote.host, remote.port):
            self._to, self._is_found = (remote.host, remote.port), False
        self._hosts = frozenset({remote.host, signalled_from} - {""})
        if previous is None or previous.key != remote.key:
            self._decrypt = self._encrypt = None
            if remote.key:
                policy = pylibsrtp.Policy
                self._decrypt = pylibsrtp.Session(policy(remote.key, policy.SSRC_ANY_INBOUND))
                self._encrypt = pylibsrtp.Session(policy(key, policy.SSRC_ANY_OUTBOUND))

    @property
    def sample_rate(self) -> int:
        """Of what :meth:`send` takes (Hz)."""
        assert self._codec is not None
        return self._codec.sample_rate

    def close(self) -> None:
        """Give the port back."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: Any) -> None:
        """See :class:`asyncio.BaseProtocol`."""
        self._transport = transport

    def error_received(self, exc: Exception) -> None:
        """The peer's port is closed, for now: its signalling says whether the call is over."""

    def datagram_received(self, data: bytes, addr: tuple[Any, ...]) -> None:
        """A packet of anybody: what is not the peer's is dropped."""
        remote = self._remote
        if remote is None or addr[0] not in self._hosts or len(data) > _MOST_BYTES:
            return
        if self._is_found and addr[:2] != self._to:
            return
        try:
            packet = RtpPacket.parse(self._decrypt.unprotect(data) if self._decrypt else data)
        except (ValueError, pylibsrtp.Error):
            return
        if packet.payload_type not in (remote.payload_type, remote.event_type):
            return
        self._to, self._is_found = (addr[0], addr[1]), True
        self.received_s = loop_time()
        if packet.ssrc != self._their_ssrc:
            self._their_ssrc = packet.ssrc
            self._jitter.reset()
        if packet.payload_type == remote.event_type:
            self._read_key(packet)
            self._jitter.push(packet.sequence_number, b"")
        else:
            self._jitter.push(packet.sequence_number, packet.payload)

    def _read_key(self, packet: RtpPacket) -> None:
        """A key is sent in many packets of one timestamp."""
        if len(packet.payload) < 4 or packet.timestamp == self._key_at:
            return
        self._key_at = packet.timestamp
        if packet.payload[0] < len(_KEYS):
            self._on_key(_KEYS[packet.payload[0]])

    def receive(self) -> _Pcm:
        """The next 20 ms of the caller, int16 [320], 16 kHz; silence where nothing came."""
        assert self._codec is not None
        while len(self._heard) < _FRAME:
            payload = self._jitter.pop()
            decoded = self._codec.decode(payload) if payload else np.zeros(0, np.int16)
            if not len(decoded):
                # The first lost packet is hidden behind the one before it, as ITU-T G.711 appendix I begins.
                hides = payload is None and len(self._last) > 0
                decoded = self._last // 2 if hides else np.zeros(_FRAME, np.int16)
                self._last = np.zeros(0, np.int16)
            else:
                self._last = decoded
            self._heard = np.concatenate([self._heard, decoded])
        taken, self._heard = self._heard[:_FRAME], self._heard[_FRAME:]
        return taken

    def send(self, samples: _Pcm) -> None:
        """Send 20 ms of :attr:`sample_rate`, also silence: it keeps the ways of NAT open."""
        remote, codec = self._remote, self._codec
        if remote is None or codec is None or self._transport is None or self._to is None:
            return
        payload = codec.encode(samples)
        packet = RtpPacket(
            payload_type=remote.payload_type,
            marker=int(self._is_first),
            sequence_number=self._sequence,
            timestamp=self._timestamp,
            ssrc=self._ssrc,
            payload=payload,
        )
        self._timestamp = (self._timestamp + remote.clock_hz * FRAME_MS // 1000) % (1 << 32)
        if not payload or not remote.receives:
            return
        self._is_first = False
        self._sequence = (self._sequence + 1) % _SEQUENCE
        data = packet.serialize()
        self._transport.sendto(self._encrypt.protect(data) if self._encrypt else data, self._to)
