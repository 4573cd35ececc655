"""Writes calls down as a whole, for :mod:`parley.replay.playing`."""

from __future__ import annotations

import asyncio
import errno
import logging
import secrets
import shutil
import zlib
from collections.abc import Awaitable, Callable
from contextlib import suppress
from contextvars import copy_context
from datetime import UTC, datetime
from functools import partial
from io import BufferedWriter
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from parley.agent.config import AgentConfig
from parley.agent.metrics import AgentMetrics
from parley.agent.ports import Engines, Outlet
from parley.agent.session import AgentSession
from parley.calls.folder import LEAST_FREE, make_call_id, open_private, to_iso
from parley.calls.following import FollowedCall
from parley.calls.writing import CallWriter
from parley.checkpoint import CHECKPOINT_VERSION, SessionState
from parley.engines.base import RemoteChat
from parley.protocol import CANARY_PREFIX, Start
from parley.replay.call_log import (
    MAGIC,
    MAX_BYTES,
    Answer,
    AnyEntry,
    Ask,
    End,
    Header,
    Iteration,
    Outcome,
    Read,
    Sent,
    Stimulus,
    digest_of,
    failed,
    frame,
    pack,
)
from parley.replay.course import CourseLoop
from parley.replay.session import CallCourse, CourseSession
from parley.timeouts import loop_time
from parley.tools.base import ReportProgress

MAX_FOLDER = 4 * 1024 * 1024 * 1024
"""Bytes of all files together; beyond them the oldest are deleted when a call begins."""
SUFFIX = ".call"
_GZIP = 31  # of zlib: with the header of gzip
_BLOCK = 32 * 1024
"""Bytes that are given to the writer together."""
T = TypeVar("T")
_log = logging.getLogger(__name__)


class CallLogs:
    """Records every call in a file of its own, but for calls of agents that hide something in recordings.

    Args:
        folder: of the files, which only their owner can read.
        writer: has the thread that writes.
    """

    def __init__(self, folder: Path, writer: CallWriter) -> None:
        self._folder = folder
        self._writer = writer

    def open_session(
        self,
        session_id: str,
        start: Start,
        engines: Engines,
        outlet: Outlet,
        config: AgentConfig,
        *,
        metrics: AgentMetrics,
        followed: FollowedCall | None = None,
    ) -> AgentSession:
        """A session that is recorded, if it may be; the arguments are those of ``AgentSession``."""
        parts: dict[str, Any] = {"metrics": metrics, "followed": followed}
        if session_id.startswith(CANARY_PREFIX) or _hides(start, engines):
            return AgentSession(session_id, start, engines, outlet, config, **parts)
        mark = SessionState(version=CHECKPOINT_VERSION)
        now = datetime.now(UTC)
        header = Header(
            session=session_id,
            seed=secrets.randbits(64),
            started=to_iso(now),
            start=msgspec.json.encode(start),
            config=msgspec.json.encode(_shown(config)),
            has=frozenset(name for name in OPTIONAL if getattr(engines, name) not in (None, False)),
            mark=b"" if followed is None else msgspec.json.encode(followed.mark(mark)),
        )
        file = _LogFile(self._folder, f"{make_call_id(now)}{SUFFIX}")
        put = lambda raw, last: self._writer.put(len(raw), partial(file.write, raw), is_last=last)  # noqa: E731
        recorder = Recorder(header, put)
        return CourseSession(recorder, session_id, start, engines, outlet, config, **parts)


OPTIONAL = ("turn", "reads_turns", "server_tools", "knowledge", "agents")
"""Parts of :class:`parley.agent.ports.Engines` that are noted to be there."""


def _hides(start: Start, engines: Engines) -> bool:
    if not start.agent or engines.agents is None:
        return False
    return bool(engines.agents.find(start.agent).file.definition.recording.hide)


def _shown(config: AgentConfig) -> AgentConfig:
    """The settings without keys and without addresses, which may hold passwords."""
    hidden = dict.fromkeys(("llm_url", "calls_list", "calls_store", "knowledge_store"), "")
    return msgspec.structs.replace(config, remote_chat=RemoteChat(), **hidden)


class _LogFile:
    """One file, written in the thread of the recordings of calls."""

    def __init__(self, folder: Path, name: str) -> None:
        self._path = folder / name
        self._file: BufferedWriter | None = None
        self._packer = zlib.compressobj(1, wbits=_GZIP)
        self._failed = False

    def write(self, raw: bytes) -> None:
        """Add a block to the file; an empty one ends it."""
        if self._failed:
            return
        try:
            file = self._file = self._file or self._open()
            # Whole blocks, so that a server that is killed leaves a file that can be read.
            file.write(self._packer.compress(raw) + self._packer.flush(zlib.Z_SYNC_FLUSH))
            file.flush()
            if not raw:
                file.write(self._packer.flush())
        except OSError as error:
            self._failed = True
            _log.error("a call is not written down any more: %s", error)
        if self._file is not None and (self._failed or not raw):
            with suppress(OSError):
                self._file.close()

    def _open(self) -> BufferedWriter:
        folder = self._path.parent
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        files = sorted((path.name, path, path.stat().st_size) for path in folder.glob(f"*{SUFFIX}"))
        left = MAX_FOLDER - sum(size for _, _, size in files)
        for _, path, size in files:
            if left < MAX_BYTES:
                path.unlink(missing_ok=True)
                left += size
        if shutil.disk_usage(folder).free < LEAST_FREE:
            raise OSError(errno.ENOSPC, "there is no room for it", str(folder))
        return open_private(self._path)


class Recorder(CallCourse):
    """Notes all that one call follows from.

    Args:
        header: what the file begins with.
        put: takes a block for the file, and whether it is the last one; returns whether there was room.
    """

    def __init__(self, header: Header, put: Callable[[bytes, bool], bool]) -> None:
        super().__init__(header.seed, datetime.fromisoformat(header.started))
        loop = asyncio.get_running_loop()
        assert isinstance(loop, CourseLoop), "recorded calls need a loop that counts their steps"
        self._loop = loop
        self._outside = copy_context()
        self._put = put
        self._open = True
        self._iteration = -1
        self._digests: set[bytes] = set()
        self._reads: dict[bytes, tuple[int, Outcome]] = {}
        self._waiting = bytearray(MAGIC + frame(header))
        self._size = len(self._waiting)
        self._write_waiting()

    # --- notes ----------------------------------------------------------------------------

    def _note(self, entry: AnyEntry) -> None:
        if not self._open:
            return
        if self._loop.iterations != self._iteration:
            self._iteration = self._loop.iterations
            self._add(Iteration(self.steps, self._loop.time()))
        self._add(entry)
        if self._size > MAX_BYTES:
            self._end("limit")
        elif len(self._waiting) >= _BLOCK and not self._write_waiting():
            self._end("late")

    def _add(self, entry: AnyEntry) -> None:
        raw = frame(entry)
        self._size += len(raw)
        self._waiting += raw

    def _write_waiting(self, *, is_last: bool = False) -> bool:
        block, self._waiting = bytes(self._waiting), bytearray()
        return self._put(block, is_last)

    def _end(self, why: str) -> None:
        self._open = False
        self._add(End(self.steps, why))
        self._write_waiting(is_last=True)
        self._put(b"", True)

    def finish(self) -> None:
        """The session has ended."""
        if self._open:
            self._end("")

    def step(self, callback: Callable[..., object], *args: Any) -> None:
        """See the base."""
        if self._open and self._loop.iterations != self._iteration:
            self._iteration = self._loop.iterations
            self._add(Iteration(self.steps, self._loop.time()))
        super().step(callback, *args)

    def stimulus(self, kind: str, data: bytes = b"") -> None:
        """See the base."""
        self._note(Stimulus(self.steps, kind, data))

    def sent_as(self, event: bytes, audio: bytes) -> None:
        """See the base."""
        self._note(Sent(self.steps, event, audio))

    # --- requests -------------------------------------------------------------------------

    def read(self, kind: str, question: Any, answers: Any, get: Callable[[], T]) -> T:  # noqa: ARG002 - of the protocol
        """See :class:`parley.replay.ports.Port`."""
        key = digest_of(pack([kind, question]))
        count, before = self._reads.get(key, (0, None))
        try:
            value = get()
            outcome = Outcome(pack(value))
        except Exception as error:
            outcome = failed(error)
            raise
        finally:
            self._reads[key] = count + 1, outcome
            if outcome != before:
                self._note(Read(self.steps, key, count, outcome))
        return value

    def tell(self, do: Callable[[], object]) -> None:
        """See :class:`parley.replay.ports.Port`."""
        self._outside.copy().run(do)

    def reporter(self, report: ReportProgress) -> ReportProgress:
        """See :class:`parley.replay.ports.Port`."""
        number, inside = self.asks, copy_context()

        def pass_on(value: Any) -> None:
            self._note(Stimulus(self.steps, "progress", pack([number, value])))
            inside.copy().run(report, value)

        return pass_on

    def asked(self, number: int, kind: str, digest: bytes, content: bytes) -> None:
        """See the base."""
        self._note(Ask(self.steps, number, kind, digest, b"" if digest in self._digests else content))
        self._digests.add(digest)

    async def wait(
        self,
        number: int,
        answers: Any,  # noqa: ARG002 - of the base
        make: Callable[[], Awaitable[T]],
    ) -> T:
        """See the base; ``make`` runs as a task that is no part of the call."""
        if not self._open:
            return await make()
        began = loop_time()
        work = self._loop.create_task(_await(make), context=self._outside)
        try:
            value = await work
            outcome = Outcome(pack(value))
        except asyncio.CancelledError:
            outcome = Outcome()
            raise
        except Exception as error:
            outcome = failed(error)
            raise
        finally:
            # This step is the one that the answer has caused.
            self._note(Answer(self.steps - 1, number, loop_time() - began, outcome))
        return value


async def _await(make: Callable[[], Awaitable[T]]) -> T:
    return await make()
