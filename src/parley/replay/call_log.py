"""The file of a recorded call: all that the agent's doings in it follow from, and what it did.

The file is compressed (gzip): the line :data:`MAGIC`, then one :class:`Header`, entries, and :class:`End`,
each as MessagePack behind its length of four bytes. It may come from anyone: reading it makes nothing but
the values below, and takes a bounded time and memory.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Collection, Iterator
from hashlib import blake2b
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np

from parley.errors import ParleyError, Stage, from_wire

MAGIC = b"parley call 1\n"
"""With the version of the format."""
MAX_BYTES = 256 * 1024 * 1024
"""Of one call, before they are compressed. What follows is not recorded."""
MAX_RECORD = 8 * 1024 * 1024
"""Bytes of one record."""
RECORD_COST = 64
"""Bytes that each record counts besides its own: it takes that memory."""
_MAX_S = 86_400.0
"""Length of a call, and of a wait."""
_LENGTH = 4


class CallLogError(ParleyError):
    """A file is no recorded call."""

    code = "call_log"


class CallLogVersionError(CallLogError):
    """Another version of Parley has recorded the call."""

    code = "call_log_version"


class CallLogDamagedError(CallLogError):
    """A file has parts that no recording has."""

    code = "call_log_damaged"


class Header(msgspec.Struct, frozen=True, kw_only=True):
    """What a call begins with."""

    session: str
    seed: int
    started: str
    """UTC, ISO 8601."""
    start: bytes
    """JSON of :class:`parley.protocol.Start`, with the options of the agent that it names."""
    config: bytes
    """JSON of :class:`parley.agent.config.AgentConfig`, without keys and addresses."""
    has: frozenset[str]
    """Names of the optional parts that the session has, such as those of its engines."""


class AskOutcome(msgspec.Struct, frozen=True, array_like=True):
    """How a request has ended."""

    value: bytes | None = None
    """The answer in MessagePack. None without an error: the request was cancelled."""
    error: str = ""
    """:meth:`parley.errors.ParleyError.to_wire`, or the name of another exception."""
    stage: Stage = "connection"
    retry_after_s: float | None = None


CANCELLED = AskOutcome()


class LogEntry(msgspec.Struct, frozen=True, array_like=True):
    """Base class of entries. ``at``: how many steps of the call came before it."""

    at: int


class Iteration(LogEntry, frozen=True, array_like=True, tag=0):
    """The event loop begins an iteration with steps of this call; ``now``: seconds of its clock."""

    now: float


class Stimulus(LogEntry, frozen=True, array_like=True, tag=1):
    """From outside a method of the session was called, or a tool has reported its ``progress``."""

    kind: str
    data: bytes
    """The argument in MessagePack."""


class Ask(LogEntry, frozen=True, array_like=True, tag=2):
    """The agent has begun a request to a model or a tool, or has sent something to the client."""

    number: int
    kind: str
    digest: bytes
    """Of the request without ids that are random."""
    content: bytes
    """The arguments as :func:`pack` writes them; in the place of audio its length."""


class AskAnswer(LogEntry, frozen=True, array_like=True, tag=3):
    """The outcome of a request, or the next one of its stream, has reached the agent."""

    number: int
    waited_s: Annotated[float, msgspec.Meta(ge=0.0, le=_MAX_S)]
    outcome: AskOutcome


class Read(LogEntry, frozen=True, array_like=True, tag=4):
    """From now on a property of a model has this value; ``key``: digest of what it is."""

    key: bytes
    outcome: AskOutcome


class End(LogEntry, frozen=True, array_like=True, tag=5):
    """Nothing follows."""

    why: str
    """Empty, or what has ended the recording before the call: ``limit`` or ``late``."""


AnyEntry: TypeAlias = Iteration | Stimulus | Ask | AskAnswer | Read | End


def _encode_other(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.astype("<i2", copy=False).tobytes()
    if isinstance(value, ParleyError):
        return value.to_wire()
    if isinstance(value, Collection):
        return list(value)
    raise TypeError(type(value))


def leave_audio_out(value: Any) -> Any:
    """For :func:`pack`: of arrays the length."""
    return len(value) if isinstance(value, np.ndarray) else _encode_other(value)


def _decode_array(kind: type, value: Any) -> Any:
    if issubclass(kind, np.ndarray):
        return np.frombuffer(value, "<i2").astype(np.int16)
    raise NotImplementedError(kind)


def pack(value: Any, encode_other: Callable[[Any], Any] = _encode_other) -> bytes:
    """A value as MessagePack; of arrays the samples.

    Empty: that cannot be written, such as half a surrogate pair, a deep value or a large number of a tool.
    """
    try:
        return msgspec.msgpack.encode(value, enc_hook=encode_other)
    except (UnicodeEncodeError, RecursionError, OverflowError, TypeError):
        return b""


def unpack(raw: bytes, kind: Any = Any) -> Any:
    """The value of a type that :func:`pack` has written."""
    return msgspec.msgpack.decode(raw, type=kind, dec_hook=_decode_array)


def digest_of(value: Any) -> bytes:
    """A hash of a value."""
    return blake2b(pack(value), digest_size=12).digest()


def event_of(ask: Ask) -> dict[str, Any]:
    """The event that a request sends to the client; empty: it sends none."""
    if ask.kind not in {"outlet.send", "outlet.finish"} or not ask.content:
        return {}
    _, event, *_ = unpack(ask.content, list[Any])
    return event or {}


def failed(error: BaseException) -> AskOutcome:
    """The outcome of a request that has failed so."""
    if isinstance(error, ParleyError):
        return AskOutcome(None, error.to_wire(), error.stage, error.retry_after_s)
    return AskOutcome(None, type(error).__name__)


def result_of(outcome: AskOutcome, kind: Any) -> Any:
    """What an outcome stands for.

    Raises:
        ParleyError: it is a failure.
        RuntimeError: it was another exception.
    """
    if not outcome.error:
        return unpack(outcome.value or b"", kind)
    if ":" not in outcome.error:
        raise RuntimeError(outcome.error)
    error = from_wire(outcome.error)
    error.stage, error.retry_after_s = outcome.stage, outcome.retry_after_s
    raise error


def frame(record: msgspec.Struct) -> bytes:
    """A record as it stands in the file."""
    raw = msgspec.msgpack.encode(record)
    return len(raw).to_bytes(_LENGTH) + raw


def read_log(path: Path) -> tuple[Header, list[AnyEntry]]:
    """A recorded call; its last entry is an :class:`End` unless the file was cut.

    Raises:
        CallLogError: the file cannot be used.
        OSError: it cannot be read.
    """
    magic = b""
    try:
        with gzip.open(path) as file:
            if (magic := file.read(len(MAGIC))) != MAGIC:
                if magic.startswith(MAGIC.split(b"1")[0]):
                    raise CallLogVersionError(f"{path}: another version of Parley has recorded it")
                raise CallLogError(f"{path} is no recorded call")
            records = _split(file)
            header = msgspec.msgpack.decode(next(records, b""), type=Header)
            decoder = msgspec.msgpack.Decoder(AnyEntry)
            entries = [decoder.decode(raw) for raw in records]
    except (gzip.BadGzipFile, EOFError, zlib.error, msgspec.MsgspecError, RecursionError) as error:
        if magic != MAGIC:
            raise CallLogError(f"{path} is no recorded call") from error
        raise CallLogDamagedError(f"{path} is damaged: {error}") from error
    times = [entry.now for entry in entries if isinstance(entry, Iteration)] or [0.0]
    # Written so that NaN fails.
    if not (all(one <= other for one, other in pairwise(times)) and times[-1] - times[0] <= _MAX_S):
        raise CallLogDamagedError(f"{path} is damaged: its times are not those of a call")
    return header, entries


def _split(file: gzip.GzipFile) -> Iterator[bytes]:
    """The records, as far as the file goes."""
    left = MAX_BYTES
    while True:
        try:
            length = int.from_bytes(file.read(_LENGTH))
            left -= length + RECORD_COST
            if left < 0 or length > MAX_RECORD:
                raise CallLogDamagedError(f"{file.name} is too large")
            raw = file.read(length)
        except EOFError:
            return
        if not length or len(raw) < length:
            return
        yield raw
