"""Writes recordings of calls in a thread of its own, while the calls go on."""

from __future__ import annotations

import logging
import queue
import threading
import time
import wave
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from functools import partial
from io import BufferedWriter
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from parley import protocol
from parley.calls.database import CallInfo
from parley.calls.folder import AUDIO, EVENTS, CallFolder, open_private
from parley.calls.mixing import RATE, CallMixer
from parley.calls.settings import RecordSettings
from parley.errors import InvalidToolCallError
from parley.tools.base import is_deep

MAX_WAITING = 64 * 1024 * 1024
"""Bytes of all calls that wait for the disk; beyond them a call's recording ends."""
_JOB = 512
"""Bytes of a job that waits, beside its content."""
MAX_EVENTS = 64 * 1024 * 1024
"""Bytes of one call's events."""
_DELETE_EVERY_S = 3600.0
_RETRY_S, _RETRY_AT_MOST_S = 1.0, 60.0
"""Between attempts to upload; a recording that ends begins the next one at once."""
_TOOLS = frozenset({"tool_request", "tool_run", "tool_progress", "tool_response"})
_IN_USERS_AUDIO = ("at_ms", "detected_at_ms", "start_ms", "end_ms")
"""Fields with a position in the audio that the user has sent."""
_log = logging.getLogger(__name__)


class CallWriter:
    """Owns its threads. The folder is made with the first recording; calls that are due are deleted.

    Finished calls are moved to the store of the folder, if it has one.

    Args:
        on_written: called in the thread with the outcome of each recording: empty, or why it is incomplete.
    """

    def __init__(self, folder: CallFolder, on_written: Callable[[str], None]) -> None:
        self.folder = folder
        self.on_written = on_written
        self._jobs: queue.SimpleQueue[tuple[int, Callable[[], None]] | None] = queue.SimpleQueue()
        self._put, self._done = 0, 0  # bytes; each is changed by one thread only
        self._is_closing = False
        self._delete_at = 0.0
        self._wake = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, name="recordings of calls", daemon=True),
            # Apart: deleting and uploading take their time, and recordings do not wait for that.
            threading.Thread(target=self._keep_up, name="upkeep of calls", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def put(self, size: int, job: Callable[[], None], *, is_last: bool = False) -> bool:
        """Have a job done; returns whether there was room for its ``size`` bytes (always for a last one)."""
        size += _JOB
        if not is_last and self._put - self._done + size > MAX_WAITING:
            return False
        self._put += size
        self._jobs.put((size, job))
        return True

    def close(self, limit_s: float) -> bool:
        """Write what waits, upload it, and end the threads; returns whether all was written in time."""
        end = time.monotonic() + limit_s
        self._jobs.put(None)
        writing, upkeep = self._threads
        writing.join(limit_s)
        self._is_closing = True
        self._wake.set()
        upkeep.join(max(0.0, end - time.monotonic()))
        if late := writing.is_alive():
            _log.error("%d bytes of recordings were not written", self._put - self._done)
        if upkeep.is_alive():
            waiting = self.folder.spool_bytes
            _log.error("upkeep of calls was not done in time: %d bytes or more are not uploaded", waiting)
        return not late

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job[1]()
            self._done += job[0]

    def wake(self) -> None:
        """Have the list say what was written, and upload what has ended."""
        self._wake.set()

    def _keep_up(self) -> None:
        folder, wait_s = self.folder, _RETRY_S
        while True:
            self._wake.clear()
            is_last = self._is_closing
            failed = False
            for what, work in (("uploaded", folder.upload_finished), ("deleted", self._delete_due)):
                try:
                    work()
                except Exception as error:  # noqa: BLE001 - logged and tried again
                    expected = isinstance(error, (OSError, msgspec.MsgspecError))
                    text = "recorded calls in %s wait to be %s: %s"
                    _log.error(text, folder.path, what, error, exc_info=not expected)
                    failed = True
            if is_last:
                return
            wait_s = min(2 * wait_s, _RETRY_AT_MOST_S) if failed else _RETRY_S
            self._wake.wait(wait_s if failed else max(0.0, self._delete_at - time.monotonic()))

    def _delete_due(self) -> None:
        """Not whenever a call begins or ends: the list may be long, and that of many servers."""
        if time.monotonic() >= self._delete_at:
            self.folder.delete_due(datetime.now(UTC))
            self._delete_at = time.monotonic() + _DELETE_EVERY_S


class CallRecord:
    """The recording of one call: the work of its methods is done in the writer's thread.

    They never wait or fail. ``sent_ms``: as :class:`parley.calls.mixing.CallMixer`.
    """

    def __init__(
        self, writer: CallWriter, info: CallInfo, settings: RecordSettings, now: float, sent_ms: int = 0
    ) -> None:
        self._writer = writer
        self._settings = settings
        self._full = False
        # What follows is used in the writer's thread only.
        self._mixer = CallMixer(now, sent_ms)
        self._info: CallInfo | None = None
        self._files = ExitStack()
        self._events: BufferedWriter | None = None
        self._audio: wave.Wave_write | None = None
        self._frames = 0
        self._size = 0
        self._incomplete = ""
        self._do(0, self._begin, info)

    def add_user(self, audio: NDArray[np.int16] | int, now: float) -> None:
        """A chunk of the user's audio; a number: so many samples that are left out."""
        self._do(0 if isinstance(audio, int) else audio.nbytes, self._add_user, audio, now)

    def add(
        self,
        kind: Literal["event", "message"],
        content: protocol.ServerEvent | protocol.ClientMessage,
        now: float,
        audio: NDArray[np.int16] | None = None,
        more: dict[str, Any] | None = None,
    ) -> None:
        """An event was sent, with audio, or a message has come; None as ``more``: no line is written."""
        if more is None and audio is None:
            return
        line = b"" if more is None else _encode(content, more)
        size = len(line) if audio is None else audio.nbytes
        self._do(size, self._add, kind, content, audio, line, now)

    def finish(self, info: CallInfo, now: float) -> None:
        """The call is over."""
        self._writer.put(0, partial(self._finish, info, self._full, now), is_last=True)

    def _do(self, size: int, job: Callable[..., None], *args: Any) -> None:
        if not self._full:
            self._full = not self._writer.put(size, partial(self._guard, job, *args))

    # --- in the writer's thread -----------------------------------------------------------------

    def _guard(self, job: Callable[..., None], *args: Any) -> None:
        try:
            job(*args)
        except Exception:  # noqa: BLE001 - logged: the call goes on, and so do other recordings
            self._give_up("disk")
            _log.exception("the recording of a call ends: it cannot be written")

    def _begin(self, info: CallInfo) -> None:
        folder = self._writer.folder
        self._info = folder.begin(self._shown(info))
        path = folder.path / self._info.id
        self._events = self._files.enter_context(open_private(path / EVENTS))
        if self._settings.audio:
            file = self._files.enter_context(open_private(path / AUDIO))
            self._audio = self._files.enter_context(wave.open(file, "wb"))  # noqa: SIM115 - it is closed with the others
            self._audio.setparams((2, 2, RATE, 0, "NONE", ""))
            self._audio.writeframes(b"")
        self._writer.wake()

    def _add_user(self, audio: NDArray[np.int16] | int, now: float) -> None:
        self._write(self._mixer.add_user(audio, now))

    def _add(
        self, kind: str, content: msgspec.Struct, audio: NDArray[np.int16] | None, line: bytes, now: float
    ) -> None:
        self._write(self._mixer.take(now))
        match content:
            case protocol.Audio() if audio is not None:
                self._mixer.add_agent(content, audio)
            case protocol.ResponseDone():
                self._mixer.end_response()
            case protocol.Interrupted():
                self._mixer.interrupt(content.response_id, content.played_ms)
            case protocol.Paused() | protocol.Resumed():
                self._mixer.pause(paused=isinstance(content, protocol.Paused))
            case _:
                pass
        if line:
            self._write_line(self._mixer.ms(now), kind, self._cleaned(msgspec.json.decode(line)))

    def _finish(self, info: CallInfo, full: bool, now: float) -> None:
        if full:
            self._incomplete = self._incomplete or "late"
        # Each for itself: a call whose last write has failed is over, too.
        self._guard(lambda: self._write(self._mixer.finish(now)))
        self._guard(self._close_files)
        self._guard(self._end, info)
        self._writer.on_written(self._incomplete)
        self._writer.wake()

    def _end(self, info: CallInfo) -> None:
        if self._info is not None:
            kept = {"id": self._info.id, "part": self._info.part, "incomplete": self._incomplete}
            self._writer.folder.finish(msgspec.structs.replace(self._shown(info), **kept))

    def _shown(self, info: CallInfo) -> CallInfo:
        return msgspec.structs.replace(info, collected={}) if "collected" in self._settings.hide else info

    def _give_up(self, why: str) -> None:
        """Write no more, but for the end."""
        self._incomplete = self._incomplete or why
        with suppress(OSError):
            self._close_files()

    def _close_files(self) -> None:
        self._audio = self._events = None
        self._files.close()

    def _write(self, pieces: Iterable[bytes]) -> None:
        for piece in pieces:
            self._frames += len(piece) // 4
            if self._audio is not None:
                self._audio.writeframes(piece)  # the header is right again
            if self._events is not None and not self._writer.folder.has_room():
                _log.error("recordings end: %s has no room", self._writer.folder.path)
                self._give_up("disk")
        for at_ms, response_id, text in self._mixer.words():
            self._write_line(at_ms, "event", {"type": "words", "response_id": response_id, "text": text})
        if self._events is not None and self._frames > self._settings.max_minutes * 60 * RATE:
            self._give_up("limit")

    def _write_line(self, at_ms: int, kind: str, content: dict[str, Any]) -> None:
        if self._events is None:
            return
        line = msgspec.json.encode({"at_ms": at_ms, kind: content}) + b"\n"
        self._size += len(line)
        if self._size > MAX_EVENTS:
            self._give_up("limit")
        else:
            self._events.write(line)
            self._events.flush()

    def _cleaned(self, content: dict[str, Any]) -> dict[str, Any]:
        """Without what is hidden, and with positions in the recording."""
        kind, hide = content.get("type"), self._settings.hide
        is_of_tool = kind in _TOOLS or (kind == "error" and content.get("code") == InvalidToolCallError.code)
        hidden = {"arguments", "output", "message"} if is_of_tool and "tools" in hide else set()
        if (kind == "dtmf" and "keys" in hide) or (kind == "collected" and "collected" in hide):
            hidden = {"digits", "value"}
        content = {name: value for name, value in content.items() if name not in hidden}
        for part in (content, *content.get("words", ())):
            for name in _IN_USERS_AUDIO:
                if name in part:
                    part[name] = self._mixer.place(part[name])
        return content


def _encode(content: msgspec.Struct, more: dict[str, Any]) -> bytes:
    """A line, without what cannot be written: deep values, and half a surrogate pair."""
    try:
        line: dict[str, Any] = msgspec.to_builtins(content) | more
        if not is_deep(line):
            return msgspec.json.encode(line)
    except (RecursionError, UnicodeEncodeError):
        pass
    return msgspec.json.encode({"type": content.__struct_config__.tag, "omitted": True})
