"""Writes calls down as a whole, for :mod:`parley.replay.playing`."""

from __future__ import annotations

import asyncio
import errno
import logging
import secrets
import shutil
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from contextvars import copy_context
from datetime import UTC, datetime
from functools import partial
from gzip import GzipFile
from io import BufferedWriter
from pathlib import Path
from typing import Any

import msgspec

from parley.agent.config import AgentConfig
from parley.agent.ports import Engines, Outlet
from parley.agent.session import AgentSession
from parley.calls.folder import LEAST_FREE, make_call_id, open_private, to_iso
from parley.calls.writing import CallWriter
from parley.engines.base import RemoteChat
from parley.protocol import CANARY_PREFIX, Start
from parley.replay import call_log
from parley.replay.call_log import CANCELLED, AskOutcome, digest_of, failed, frame, pack
from parley.replay.course import CourseLoop
from parley.replay.ports import PARTS, CourseSession, Port
from parley.timeouts import loop_time
from parley.tools.base import ReportProgress

MAX_FOLDER = 8 * 1024 * 1024 * 1024
"""Bytes of all files together; beyond them the oldest are deleted when a call begins."""
SUFFIX = ".call"
_BLOCK = 32 * 1024
"""Bytes that are given to the writer together."""
_SALT = "recorded"
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
        self, name: str, start: Start, engines: Engines, outlet: Outlet, config: AgentConfig, **more: Any
    ) -> AgentSession:
        """A session that is recorded, if it may be; the arguments are those of ``AgentSession``."""
        if name.startswith(CANARY_PREFIX) or _hides(start, engines):
            return AgentSession(name, start, engines, outlet, config, **more)
        now = datetime.now(UTC)
        parts = {part: getattr(engines, part) for part in (*PARTS, "reads_turns")} | {
            "followed": more["followed"]
        }
        header = call_log.Header(
            session=name,
            seed=secrets.randbits(64),
            started=to_iso(now),
            start=msgspec.json.encode(_without_keys(start)),
            config=msgspec.json.encode(_shown(config)),
            has=frozenset(part for part, value in parts.items() if value not in (None, False)),
        )
        file = _File(self._folder / f"{make_call_id(now)}{SUFFIX}")
        _log.info("%s: is recorded in %s", name, file.path)

        def put(raw: bytes, *, is_last: bool) -> bool:
            return not file.failed and self._writer.put(len(raw), partial(file.write, raw), is_last=is_last)

        return CourseSession(Recorder(header, put), name, start, engines, outlet, config, **more)


def _hides(start: Start, engines: Engines) -> bool:
    if not start.agent or engines.agents is None:
        return False
    return bool(engines.agents.find(start.agent).file.definition.recording.hide)


def _without_keys(start: Start) -> Start:
    """The options without what else only the gateway knows."""
    salt = _SALT if start.cache_salt else ""  # a session without one draws one
    resume = start.resume
    if resume is not None:
        resume = msgspec.structs.replace(resume, state=msgspec.structs.replace(resume.state, call_seal=""))
    return msgspec.structs.replace(start, cache_salt=salt, owner="", resume=resume)


def _shown(config: AgentConfig) -> AgentConfig:
    """The settings without keys and without addresses, which may hold passwords."""
    hidden = dict.fromkeys(("llm_url", "llm_key_file", "calls_list", "calls_store", "knowledge_store"), "")
    return msgspec.structs.replace(config, remote_chat=RemoteChat(), **hidden)


class _File:
    """One file. But for ``failed`` it is used in the thread of the recordings of calls."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.failed = False
        """Whether the disk takes no more of it."""
        self._files = ExitStack()
        self._packed: GzipFile | None = None

    def write(self, raw: bytes) -> None:
        """Add a block to the file; an empty one ends it."""
        if self.failed:
            return
        try:
            packed = self._packed = self._packed or self._open()
            if shutil.disk_usage(self.path.parent).free < LEAST_FREE:
                raise OSError(errno.ENOSPC, "there is no room for it", str(self.path))  # noqa: TRY301
            packed.write(raw)
            packed.flush()  # a server that is killed leaves a file that can be read
            if not raw:
                self._files.close()
        except Exception as error:  # noqa: BLE001 - logged: the call goes on, and so do other recordings
            self.failed = True
            _log.error("a recording ends: %s", error)
            with suppress(OSError):
                self._files.close()

    def _open(self) -> GzipFile:
        folder = self.path.parent
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        left = MAX_FOLDER - call_log.MAX_BYTES
        for path in sorted(folder.glob(f"*{SUFFIX}"), reverse=True):  # the newest are kept
            with suppress(FileNotFoundError):  # another instance deletes them too
                left -= path.stat().st_size
                if left < 0:
                    path.unlink()
        file: BufferedWriter = self._files.enter_context(open_private(self.path))
        return self._files.enter_context(GzipFile("", "wb", 1, file))


class Recorder(Port):
    """Notes all that one call follows from.

    Args:
        header: what the file begins with.
        put: takes a block for the file, and whether it is of the last ones; returns whether there was room.
    """

    def __init__(self, header: call_log.Header, put: Callable[..., bool]) -> None:
        super().__init__(header.seed, datetime.fromisoformat(header.started))
        loop = asyncio.get_running_loop()
        assert isinstance(loop, CourseLoop), "recorded calls need a loop that counts their steps"
        self._loop = loop
        self._outside = copy_context()
        self._put = put
        self._open = True
        self._iteration = -1
        self._reads: dict[bytes, AskOutcome] = {}
        self._waiting = call_log.MAGIC + frame(header)
        self._size = len(self._waiting)

    # --- notes ----------------------------------------------------------------------------

    def _note(self, entry: call_log.AnyEntry) -> None:
        self._note_iteration()
        self._add(entry)

    def _note_iteration(self) -> None:
        if self._loop.iterations != self._iteration:
            self._iteration = self._loop.iterations
            self._add(call_log.Iteration(self.steps, self._loop.time()))

    def _add(self, entry: call_log.AnyEntry) -> None:
        if not self._open:
            return
        raw = frame(entry)
        self._size += len(raw) + call_log.RECORD_COST
        if self._size > call_log.MAX_BYTES or len(raw) > call_log.MAX_RECORD:
            self._end("limit")
            return
        self._waiting += raw
        if len(self._waiting) >= _BLOCK:
            block, self._waiting = self._waiting, b""
            if not self._put(block, is_last=False):
                self._end("late")

    def _end(self, why: str) -> None:
        if self._open:
            self._open = False
            self._put(self._waiting + frame(call_log.End(self.steps, why)), is_last=True)
            self._put(b"", is_last=True)

    def finish(self) -> None:
        """See the base."""
        self._end("")

    def step(self, callback: Callable[..., object], *args: Any) -> None:
        """See the base."""
        self._note_iteration()
        super().step(callback, *args)

    def stimulus(self, kind: str, data: bytes) -> None:
        """See the base."""
        self._note(call_log.Stimulus(self.steps, kind, data))

    # --- requests -------------------------------------------------------------------------

    def read(self, kind: str, question: Any, answers: Any, get: Callable[[], Any]) -> Any:  # noqa: ARG002
        """See the base."""
        key = digest_of([kind, question])
        try:
            value = self._outside.copy().run(get)
            outcome = AskOutcome(pack(value))
        except Exception as error:
            outcome = failed(error)
            raise
        finally:
            if outcome != self._reads.get(key):
                self._reads[key] = outcome
                self._note(call_log.Read(self.steps, key, outcome))
        return value

    def tell(self, kind: str, question: Any, answers: Any, do: Callable[[], Any]) -> None:  # noqa: ARG002
        """See the base."""
        self._outside.copy().run(do)

    def reporter(self, report: ReportProgress) -> ReportProgress:
        """See the base."""
        number, inside = self.asks, copy_context()

        def pass_on(value: Any) -> None:
            self.stimulus("progress", pack([number, value]))
            inside.copy().run(report, value)

        return pass_on

    def asked(self, number: int, kind: str, digest: bytes, content: bytes) -> None:
        """See the base."""
        self._note(call_log.Ask(self.steps, number, kind, digest, content))

    async def wait(self, number: int, answers: Any, make: Callable[[], Awaitable[Any]]) -> Any:  # noqa: ARG002
        """See the base; ``make`` runs as a task that is no part of the call."""
        began = loop_time()
        work = self._loop.create_task(_await(make), context=self._outside.copy())
        try:
            value = await work
            outcome = AskOutcome(pack(value))
        except asyncio.CancelledError:
            outcome = CANCELLED
            raise
        except Exception as error:
            outcome = failed(error)
            raise
        finally:
            # This step is the one that the answer has caused.
            self._note(call_log.AskAnswer(self.steps - 1, number, loop_time() - began, outcome))
        return value


async def _await(make: Callable[[], Awaitable[Any]]) -> Any:
    return await make()
