"""Calls of fake engines that are recorded as a whole."""

from __future__ import annotations

from agent_fakes import FakeCall
from virtual_loop import VirtualLoop

from parley.replay.course import CourseLoop
from parley.replay.recording import CallLogs


class RecordingLoop(VirtualLoop, CourseLoop):
    """Virtual time, and steps that are counted."""


class DirectWriter:
    """Does at once what the thread of recordings does."""

    room = 10**9

    def put(self, size, job, *, is_last=False):
        self.room -= size
        if self.room < 0 and not is_last:
            return False
        job()
        return True


class RecordedCall(FakeCall):
    """Its file is the only one of its folder."""

    folder = None
    writer = DirectWriter()

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.host._open_session = CallLogs(self.folder, self.writer).open_session

    @property
    def file(self):
        (file,) = self.folder.glob("*.call")
        return file
