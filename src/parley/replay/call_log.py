"""The file of a recorded call: all that the agent's doings in it follow from, and what it did.

The file is compressed (gzip): the line :data:`MAGIC`, then one :class:`Header`, entries, and :class:`End`,
each as MessagePack behind its length of four bytes.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np

from parley.errors import ParleyError, Stage, error_of_code

MAGIC = b"parley call 1\n"
"""With the version of the format."""
MAX_BYTES = 256 * 1024 * 1024
"""Of one call, before they are compressed. What follows is not recorded."""
_LENGTH = 4


class CallLogError(ValueError):
    """A file is no recorded call, is damaged, or has another version."""


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
    """Those of :data:`parley.replay.recording.OPTIONAL` that the agent has."""
    mark: bytes = b""
    """JSON of an empty :class:`parley.checkpoint.SessionState` that names the call. Empty: none does."""


class Failure(msgspec.Struct, frozen=True, array_like=True):
    """An exception of a model or a tool."""

    code: str
    """Empty: it was no :class:`parley.errors.ParleyError`."""
    text: str
    stage: Stage
    retry_after_s: float | None


class Outcome(msgspec.Struct, frozen=True, array_like=True):
    """What a model has returned."""

    value: bytes | None = None
    """MessagePack. None with no failure: the request was cancelled."""
    failure: Failure | None = None


CANCELLED = Outcome()


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """Base class of entries. ``at``: how many steps of the call came before it."""

    at: int


class Iteration(Entry, frozen=True, array_like=True, tag=0):
    """The event loop begins an iteration with steps of this call."""

    now: float
    """Seconds of the loop's clock."""


class Stimulus(Entry, frozen=True, array_like=True, tag=1):
    """The client or the server has done something: ``message``, ``audio``, ``end``, ..."""

    kind: str
    data: bytes


class Ask(Entry, frozen=True, array_like=True, tag=2):
    """The agent has begun a request to a model, a tool, or the client's stream."""

    number: int
    kind: str
    digest: bytes
    """Of the request without ids that are random."""
    content: bytes
    """The request in MessagePack, without audio. Empty: an earlier one has this digest."""


class Answer(Entry, frozen=True, array_like=True, tag=3):
    """The outcome of a request, or the next one of its stream, has reached the agent."""

    number: int
    waited_s: float
    outcome: Outcome


class Read(Entry, frozen=True, array_like=True, tag=4):
    """From this reading on, a property of a model has this value."""

    key: bytes
    number: int
    outcome: Outcome


class Sent(Entry, frozen=True, array_like=True, tag=5):
    """The client was sent an event."""

    event: bytes
    """JSON."""
    audio: bytes
    """Digest of its samples; empty: it has none."""


class End(Entry, frozen=True, array_like=True, tag=6):
    """Nothing follows."""

    why: str
    """Empty, or what has ended the recording before the call: ``limit`` or ``late``."""


AnyEntry: TypeAlias = Iteration | Stimulus | Ask | Answer | Read | Sent | End


def _encode_array(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.astype("<i2", copy=False).tobytes()
    raise NotImplementedError(type(value))


def _decode_array(kind: type, value: Any) -> Any:
    if issubclass(kind, np.ndarray):
        return np.frombuffer(value, "<i2").astype(np.int16)
    raise NotImplementedError(kind)


def pack(value: Any) -> bytes:
    """A value as MessagePack; of arrays the samples."""
    return msgspec.msgpack.encode(value, enc_hook=_encode_array)


def unpack(raw: bytes, kind: Any) -> Any:
    """The value of a type that :func:`pack` has written."""
    return msgspec.msgpack.decode(raw, type=kind, dec_hook=_decode_array)


def digest_of(raw: bytes) -> bytes:
    """A short text that other contents do not have."""
    return blake2b(raw, digest_size=12).digest()


def failed(error: BaseException) -> Outcome:
    """The outcome of a request that has failed so."""
    if isinstance(error, ParleyError):
        return Outcome(None, Failure(error.code, str(error), error.stage, error.retry_after_s))
    return Outcome(None, Failure("", type(error).__name__, "connection", None))


def result_of(outcome: Outcome, kind: Any) -> Any:
    """What an outcome stands for.

    Raises:
        ParleyError: it is a failure.
        RuntimeError: it was a failure without a code.
    """
    failure = outcome.failure
    if failure is None:
        return unpack(outcome.value or b"", kind)
    if not failure.code:
        raise RuntimeError(failure.text)
    error = error_of_code(failure.code)(failure.text, retry_after_s=failure.retry_after_s)
    error.stage = failure.stage
    raise error


def frame(record: msgspec.Struct) -> bytes:
    """A record as it stands in the file."""
    raw = msgspec.msgpack.encode(record)
    return len(raw).to_bytes(_LENGTH) + raw


def read_log(path: Path) -> tuple[Header, list[AnyEntry]]:
    """A recorded call; its last entry is an :class:`End` unless its server was killed.

    Raises:
        CallLogError: the file cannot be used.
        OSError: it cannot be read.
    """
    with gzip.open(path) as file:
        try:
            if (magic := file.read(len(MAGIC))) != MAGIC:
                is_other = magic.startswith(MAGIC.split(b"1")[0])
                raise CallLogError(
                    "another version of Parley has written it" if is_other else "it is no call"
                )
            records = _split(file)
            header = msgspec.msgpack.decode(next(records), type=Header)
            entries = msgspec.msgpack.Decoder(AnyEntry)
            return header, [entries.decode(raw) for raw in records]
        except (msgspec.MsgspecError, StopIteration, EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise CallLogError(f"it is damaged, or no call: {error}") from error


def _split(file: gzip.GzipFile) -> Iterator[bytes]:
    left = MAX_BYTES
    while True:
        try:
            length = int.from_bytes(file.read(_LENGTH))
            raw = file.read(length) if length <= left else b""
        except EOFError:  # its server was killed
            return
        if not length:
            return
        left -= length + _LENGTH
        if left < 0:
            raise CallLogError("it is too large")
        if len(raw) < length:
            return
        yield raw
