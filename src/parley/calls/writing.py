"""Writes recordings of calls in a thread of its own, while the calls go on."""

from __future__ import annotations

import logging
import queue
import shutil
import sqlite3
import struct
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from functools import partial
from io import BufferedWriter
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from parley.calls.folder import AUDIO, EVENTS, CallFolder, CallInfo, open_private
from parley.calls.mixing import RATE, CallMixer
from parley.calls.settings import RecordSettings
from parley.protocol import Audio
from parley.tools.base import is_deep

MAX_WAITING = 64 * 1024 * 1024
"""Bytes of all calls that wait for the disk; beyond them a call's recording ends."""
MAX_EVENTS = 64 * 1024 * 1024
"""Bytes of one call's events."""
LEAST_FREE = 512 * 1024 * 1024
"""Bytes that recordings leave free on their disk."""
_FRAME = 4
_HEADER_EVERY = 5 * RATE
"""Frames after which the header is correct again: a process that dies leaves audio up to there."""
_DELETE_EVERY_S = 3600.0
_TOOLS = frozenset({"tool_request", "tool_run", "tool_progress", "tool_response"})
_IN_USERS_AUDIO = ("at_ms", "detected_at_ms", "start_ms", "end_ms")
"""Fields with a position in the audio that the user has sent."""
_log = logging.getLogger(__name__)


class CallWriter:
    """Owns its threads. The folder is made with the first recording; calls that are due are deleted.

    Args:
        folder: of the calls.
        on_written: called in the thread with the outcome of each recording: empty, or why it is incomplete.
    """

    def __init__(self, folder: CallFolder, on_written: Callable[[str], None]) -> None:
        self.folder = folder
        self._on_written = on_written
        self._jobs: queue.SimpleQueue[tuple[int, Callable[[], None]] | None] = queue.SimpleQueue()
        self._put, self._done = 0, 0  # bytes; each is changed by one thread only
        self._closing = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, name="recordings of calls", daemon=True),
            # Apart: a folder of a long call is not deleted at once, and recordings do not wait for it.
            threading.Thread(target=self._delete_due, name="retention of calls", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def open(self, info: CallInfo, settings: RecordSettings, now: float, sent_ms: int = 0) -> CallRecord:
        """Begin to record a call; never waits. ``sent_ms``: as :class:`parley.calls.mixing.CallMixer`."""
        return CallRecord(self, info, settings, CallMixer(now, sent_ms))

    def put(self, size: int, job: Callable[[], None], *, is_last: bool = False) -> bool:
        """Have a job done; returns whether there was room for its ``size`` bytes (always for a last one)."""
        if not is_last and self._put - self._done + size > MAX_WAITING:
            return False
        self._put += size
        self._jobs.put((size, job))
        return True

    def written(self, outcome: str) -> None:
        """A recording is over."""
        self._on_written(outcome)

    def close(self, limit_s: float) -> bool:
        """Write what waits, and end the threads; returns whether that was done in time."""
        end = time.monotonic() + limit_s
        self._closing.set()
        self._jobs.put(None)
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
        if late := self._threads[0].is_alive():
            _log.error("%d bytes of recordings were not written", self._put - self._done)
        return not late

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            job[1]()
            self._done += job[0]

    def _delete_due(self) -> None:
        while True:
            try:
                if count := self.folder.delete_due(datetime.now(UTC)):
                    _log.info("%d recorded calls were deleted: their time was over", count)
            except (OSError, sqlite3.Error):
                _log.exception("calls in %s whose time is over could not be deleted", self.folder.path)
            if self._closing.wait(_DELETE_EVERY_S):
                return


class CallRecord:
    """The recording of one call, on the side of its session. No method waits or fails."""

    def __init__(
        self, writer: CallWriter, info: CallInfo, settings: RecordSettings, mixer: CallMixer
    ) -> None:
        self._writer = writer
        self._file = _CallFile(writer.folder, settings, mixer)
        self._full = False
        self._do(0, partial(self._file.begin, info))

    def add_user(self, audio: NDArray[np.int16] | int, now: float) -> None:
        """A chunk of the user's audio; a number: so many samples that are left out."""
        self._do(0 if isinstance(audio, int) else audio.nbytes, partial(self._file.add_user, audio, now))

    def add_agent(self, event: Audio, audio: NDArray[np.int16], now: float) -> None:
        """A piece of the agent's audio was sent."""
        self._do(audio.nbytes, partial(self._file.add_agent, event, audio, now))

    def change(self, change: Callable[[CallMixer], None], now: float) -> None:
        """Something happens to the agent's audio."""
        self._do(0, partial(self._file.change, change, now))

    def add_line(self, kind: str, content: msgspec.Struct, now: float, **more: Any) -> None:
        """Something has happened: ``event`` or ``message``, with further fields."""
        line, size = _to_builtins(content, more)
        self._do(size, partial(self._file.add_line, kind, line, now))

    def finish(self, info: CallInfo, now: float) -> None:
        """The call is over."""
        full = self._full
        self._writer.put(0, partial(self._finish, info, full, now), is_last=True)

    def _finish(self, info: CallInfo, full: bool, now: float) -> None:
        if full:
            self._file.incomplete = self._file.incomplete or "late"
        self._guard(partial(self._file.finish, info, now))
        self._writer.written(self._file.incomplete)

    def _do(self, size: int, job: Callable[[], None]) -> None:
        if not self._full:
            self._full = not self._writer.put(size, partial(self._guard, job))

    def _guard(self, job: Callable[[], None]) -> None:
        try:
            job()
        except Exception:  # noqa: BLE001 - logged: the call goes on, and so do other recordings
            self._file.give_up("disk")
            _log.exception("the recording of a call ends: it cannot be written")


class _CallFile:
    """The files of one call, in the thread of the writer."""

    def __init__(self, folder: CallFolder, settings: RecordSettings, mixer: CallMixer) -> None:
        self._folder = folder
        self._settings = settings
        self._mixer = mixer
        self._info: CallInfo | None = None
        self._events: BufferedWriter | None = None
        self._audio: BufferedWriter | None = None
        self._frames = 0
        self._taken = 0
        self._right_at = 0
        self._size = 0
        self.incomplete = ""

    def begin(self, info: CallInfo) -> None:
        self._folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not self._has_room():
            _log.error("a call is not recorded: %s is nearly full", self._folder.path)
            self.give_up("disk")
            return
        self._info = self._folder.begin(self._shown(info))
        folder = self._folder.path / self._info.id
        self._events = open_private(folder / EVENTS)
        if self._settings.audio:
            self._audio = open_private(folder / AUDIO)
            self._audio.write(_header(0))

    def add_user(self, audio: NDArray[np.int16] | int, now: float) -> None:
        self._write(self._mixer.add_user(audio, now))

    def add_agent(self, event: Audio, audio: NDArray[np.int16], now: float) -> None:
        self._write(self._mixer.take(now))
        self._mixer.add_agent(event, audio)

    def change(self, change: Callable[[CallMixer], None], now: float) -> None:
        self._write(self._mixer.take(now))
        change(self._mixer)

    def add_line(self, kind: str, content: dict[str, Any], now: float) -> None:
        self._write(self._mixer.take(now))
        self._write_line(self._mixer.ms(now), kind, self._cleaned(content))

    def finish(self, info: CallInfo, now: float) -> None:
        self._write(self._mixer.finish(now))
        self._close_files()
        if self._info is not None:
            kept = {"id": self._info.id, "part": self._info.part, "incomplete": self.incomplete}
            self._folder.finish(msgspec.structs.replace(self._shown(info), **kept))

    def _shown(self, info: CallInfo) -> CallInfo:
        return msgspec.structs.replace(info, collected={}) if "collected" in self._settings.hide else info

    def give_up(self, why: str) -> None:
        """Write no more, but for the end."""
        self.incomplete = self.incomplete or why
        with suppress(OSError):
            self._close_files()

    def _close_files(self) -> None:
        try:
            with ExitStack() as files:
                for file in (self._audio, self._events):
                    if file is not None:
                        files.enter_context(file)
                self._set_header()
        finally:
            self._audio = self._events = None

    def _write(self, pieces: Iterable[bytes]) -> None:
        for piece in pieces:
            self._taken += len(piece) // _FRAME
            if self._audio is not None and piece:
                self._audio.write(piece)
                self._frames += len(piece) // _FRAME
                if self._frames - self._right_at >= _HEADER_EVERY:
                    self._check_disk()
        for words in self._mixer.texts():
            content = {"type": "words", "response_id": words.response_id, "text": words.text}
            self._write_line(words.at_ms, "event", content)
        if self._events is not None and self._taken > self._settings.max_minutes * 60 * RATE:
            self.give_up("limit")

    def _write_line(self, at_ms: int, kind: str, content: dict[str, Any]) -> None:
        if self._events is None:
            return
        line = msgspec.json.encode({"at_ms": at_ms, kind: content}) + b"\n"
        self._size += len(line)
        if self._size > MAX_EVENTS:
            self.give_up("limit")
        else:
            self._events.write(line)
            self._events.flush()

    def _set_header(self) -> None:
        """Make the files complete as they are."""
        if self._audio is None:
            return
        self._audio.seek(0)
        self._audio.write(_header(self._frames))
        self._audio.seek(0, 2)
        self._audio.flush()
        self._right_at = self._frames

    def _check_disk(self) -> None:
        self._set_header()
        if not self._has_room():
            _log.error("recordings end: %s is nearly full", self._folder.path)
            self.give_up("disk")

    def _has_room(self) -> bool:
        return shutil.disk_usage(self._folder.path).free >= LEAST_FREE

    def _cleaned(self, content: dict[str, Any]) -> dict[str, Any]:
        """Without what is hidden, and with positions in the recording."""
        kind, hide = content.get("type"), self._settings.hide
        hidden = {"arguments", "output"} if kind in _TOOLS and "tools" in hide else set()
        if (kind == "dtmf" and "keys" in hide) or (kind == "collected" and "collected" in hide):
            hidden = {"digits", "value"}
        content = {name: value for name, value in content.items() if name not in hidden}
        for part in (content, *content.get("words", ())):
            for name in _IN_USERS_AUDIO:
                if name in part:
                    part[name] = self._mixer.place(part[name])
        return content


def _to_builtins(content: msgspec.Struct, more: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """A line and its bytes, without what cannot be written: deep values, and half a surrogate pair."""
    try:
        line: dict[str, Any] = msgspec.to_builtins(content) | more
        if not is_deep(line):
            return line, len(msgspec.json.encode(line))
    except (RecursionError, UnicodeEncodeError):
        pass
    line = {"type": content.__struct_config__.tag, "omitted": True}
    return line, len(msgspec.json.encode(line))


def _header(frames: int) -> bytes:
    """Of a WAV file with both channels."""
    size = frames * _FRAME
    form = struct.pack("<HHIIHH", 1, 2, RATE, RATE * _FRAME, _FRAME, 16)
    return struct.pack("<4sI4s4sI16s4sI", b"RIFF", 36 + size, b"WAVE", b"fmt ", 16, form, b"data", size)
