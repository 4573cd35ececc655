"""Recordings, as they are on the disk."""

from __future__ import annotations

import errno
import json
import shutil
import threading
import wave
from typing import NamedTuple

import numpy as np
import pytest
from call_infos import NOW, info

from parley.calls import writing
from parley.calls.database import CallInfo
from parley.calls.folder import CallFolder, make_call_id
from parley.calls.settings import RecordSettings
from parley.calls.writing import CallRecord, CallWriter
from parley.errors import InvalidToolCallError, OverloadedError
from parley.protocol import DataCollected, Dtmf, ErrorEvent, ToolRequest, ToolResponse, Transcript, Word

SECOND = np.full(16_000, 7, np.int16)


class Usage(NamedTuple):
    total: int = 1
    used: int = 1
    free: int = 0


class Disk:
    """A writer, and what it has reported."""

    def __init__(self, path) -> None:
        self.folder = CallFolder(path)
        self.outcomes: list[str] = []
        self.writer = CallWriter(self.folder, self.outcomes.append)

    def record(self, **settings):
        self.call = info()
        return CallRecord(self.writer, self.call, RecordSettings(**settings), 0.0)

    def wait(self) -> None:
        """Until all is written that was given so far."""
        done = threading.Event()
        self.writer.put(0, done.set)
        assert done.wait(30.0)

    def close(self) -> CallInfo:
        assert self.writer.close(30.0)
        (one,) = self.folder.entries.newest()
        return one

    @property
    def files(self):
        return self.folder.path / self.call.call

    @property
    def lines(self) -> list[dict]:
        return [json.loads(line) for line in (self.files / "events.jsonl").read_text().splitlines()]

    @property
    def seconds(self) -> float:
        with wave.open(str(self.files / "audio.wav")) as audio:
            assert (audio.getnchannels(), audio.getframerate(), audio.getsampwidth()) == (2, 16_000, 2)
            return audio.getnframes() / audio.getframerate()


@pytest.fixture
def disk(tmp_path):
    made = Disk(tmp_path / "calls")
    yield made
    made.writer.close(30.0)


def test_ended_call_has_audio_events_and_summary(disk):
    record = disk.record()
    for second in range(1, 11):
        record.add_user(SECOND, float(second))
    record.add("event", Transcript(utterance=1, text="Hello.", is_final=True, confidence=0.9), 10.0, more={})
    record.finish(info(call=disk.call.call, ended=True, reason="hangup"), 10.0)
    ended = disk.close()
    assert (ended.id, ended.reason, ended.incomplete) == (disk.call.call, "hangup", "")
    assert disk.seconds == 10.0
    assert [(line["at_ms"], line["event"]["text"]) for line in disk.lines] == [(10_000, "Hello.")]
    assert disk.outcomes == [""]
    assert {one.stat().st_mode & 0o777 for one in disk.files.iterdir()} == {0o600}


def test_call_that_goes_on_has_readable_files(disk):
    record = disk.record()
    for second in range(1, 13):
        record.add_user(SECOND, float(second))
    disk.wait()
    (open_call,) = disk.folder.entries.newest()
    assert not open_call.ended
    assert 5.0 <= disk.seconds <= 9.0
    assert not (disk.files / "call.json").exists()
    record.finish(disk.call, 12.0)


def test_words_have_their_place_in_the_recording(disk):
    record = disk.record()
    record.add_user(SECOND, 1.0)
    record.add_user(SECOND, 30.0)
    words = [Word(text="late", start_ms=1_500, end_ms=1_900, confidence=0.9)]
    event = Transcript(utterance=1, text="late", is_final=True, confidence=0.9, words=words)
    record.add("event", event, 30.2, more={})
    record.finish(disk.call, 31.0)
    disk.close()
    (word,) = disk.lines[0]["event"]["words"]
    assert (word["start_ms"], word["end_ms"]) == (29_500, 29_900)


def test_hidden_parts_are_not_kept(disk):
    record = disk.record(audio=False, hide=["tools", "keys", "collected"])
    arguments = {"card": "4111"}
    record.add("event", ToolRequest(turn=1, call_id="c", name="pay", arguments=arguments), 1.0, more={})
    record.add("message", ToolResponse(call_id="c", output="4111"), 1.0, more={})
    record.add("message", Dtmf(digits="4111"), 1.0, more={})
    record.add("event", DataCollected(field="card", value="4111"), 1.0, more={})
    for error in (InvalidToolCallError("pay: '4111' is too long"), OverloadedError("too many sessions")):
        record.add("event", ErrorEvent.of(error), 1.0, more={})
    record.finish(info(call=disk.call.call, collected={"card": "4111"}), 2.0)
    disk.close()
    assert [one.name for one in sorted(disk.files.iterdir())] == ["call.json", "events.jsonl"]
    assert len(disk.lines) == 6
    assert disk.lines[4]["event"]["code"] == "invalid_tool_call"
    assert disk.lines[5]["event"]["message"] == "too many sessions"
    everything = b"".join(path.read_bytes() for path in disk.folder.path.rglob("*") if path.is_file())
    assert b"4111" not in everything


def test_collected_values_of_a_moved_call_are_hidden_while_it_goes_on(disk):
    moved = info(part=2, collected={"card": "4111"})
    record = CallRecord(disk.writer, moved, RecordSettings(hide=["collected"]), 0.0)
    disk.wait()
    assert [one.collected for one in disk.folder.entries.newest()] == [{}]
    record.finish(moved, 1.0)


def test_text_that_is_no_unicode_is_left_out_and_no_failure(disk):
    record = disk.record()
    record.add("message", ToolResponse(call_id="c", output="\ud800"), 1.0, more={})
    record.add("event", Dtmf(digits="1"), 1.0, more={"output": "\ud800"})
    record.add("message", Dtmf(digits="1"), 1.0, more={})
    record.finish(disk.call, 2.0)
    assert disk.close().incomplete == ""
    assert [line.get("message") or line["event"] for line in disk.lines] == [
        {"type": "tool_response", "omitted": True},
        {"type": "dtmf", "omitted": True},
        {"type": "dtmf", "digits": "1"},
    ]


def test_message_that_is_nested_too_deep_is_left_out_and_no_failure(disk):
    record = disk.record()
    output: list = []
    for _ in range(5_000):
        output = [output]
    record.add("message", ToolResponse(call_id="c", output=output), 1.0, more={})
    record.add("event", Dtmf(digits="1"), 1.0, more={"output": output})
    record.finish(disk.call, 2.0)
    disk.close()
    assert [line.get("message") or line["event"] for line in disk.lines] == [
        {"type": "tool_response", "omitted": True},
        {"type": "dtmf", "omitted": True},
    ]


def test_longer_call_is_kept_up_to_its_limit(disk):
    record = disk.record(max_minutes=1)
    for second in range(1, 70):
        record.add_user(SECOND, float(second))
    record.finish(info(call=disk.call.call, ended=True), 70.0)
    assert disk.close().incomplete == "limit"
    assert 60 <= disk.seconds <= 62
    assert disk.outcomes == ["limit"]


def test_events_are_kept_up_to_their_limit(disk, monkeypatch):
    monkeypatch.setattr(writing, "MAX_EVENTS", 1_000)
    record = disk.record()
    for _ in range(20):
        record.add("event", ErrorEvent(code="x", message="y" * 100, retryable=False), 1.0, more={})
    record.finish(info(call=disk.call.call), 1.0)
    assert disk.close().incomplete == "limit"
    assert (disk.files / "events.jsonl").stat().st_size <= 1_000


def test_full_disk_ends_the_recording_and_not_the_call(disk, monkeypatch):
    record = disk.record()
    record.add_user(SECOND, 1.0)
    disk.wait()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage())
    for second in range(2, 20):
        record.add_user(SECOND, float(second))
    record.finish(info(call=disk.call.call, ended=True), 20.0)
    assert disk.close().incomplete == "disk"
    assert disk.seconds < 12


def test_nearly_full_disk_takes_no_recording(disk, monkeypatch):
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage())
    record = disk.record()
    record.add_user(SECOND, 1.0)
    record.finish(disk.call, 2.0)
    assert disk.writer.close(30.0)
    assert disk.folder.entries.newest() == []
    assert disk.outcomes == ["disk"]


def test_folder_that_cannot_be_made_is_no_failure_of_the_call(tmp_path):
    (tmp_path / "calls").write_text("a file")
    disk = Disk(tmp_path / "calls")
    record = disk.record()
    record.add_user(SECOND, 1.0)
    record.finish(disk.call, 2.0)
    assert disk.writer.close(30.0)
    assert disk.outcomes == ["disk"]


@pytest.mark.parametrize("name", ["writeframes", "close"])
def test_call_whose_last_write_fails_has_ended_and_is_incomplete(disk, monkeypatch, name):
    record = disk.record()
    record.add_user(SECOND, 1.0)
    disk.wait()

    method, failures = getattr(wave.Wave_write, name), [OSError(errno.EIO, "Input/output error")]

    def fail(*args):
        method(*args)
        if failures:
            raise failures.pop()

    monkeypatch.setattr(wave.Wave_write, name, fail)
    record.finish(info(call=disk.call.call, ended=True, reason="hangup"), 2.0)
    ended = disk.close()
    assert (ended.ended, ended.reason, ended.incomplete) == (True, "hangup", "disk")
    assert (disk.files / "call.json").exists()
    assert disk.outcomes == ["disk"]


def test_slow_disk_ends_the_recording_when_too_much_waits(disk, monkeypatch):
    monkeypatch.setattr(writing, "MAX_WAITING", -1)
    record = disk.record()
    monkeypatch.setattr(writing, "MAX_WAITING", 1 << 20)
    record.add_user(SECOND, 1.0)
    record.finish(disk.call, 2.0)
    assert disk.writer.close(30.0)
    assert disk.outcomes == ["late"]


def test_what_waits_for_the_disk_is_counted_or_needed(disk, monkeypatch):
    record, begun, goes_on = disk.record(), threading.Event(), threading.Event()
    disk.writer.put(0, lambda: begun.set() or goes_on.wait(30.0))
    assert begun.wait(30.0)
    record.add("event", ErrorEvent(code="x", message="", retryable=False), 1.0)  # without line and audio
    assert disk.writer._jobs.empty()
    monkeypatch.setattr(writing, "MAX_WAITING", 1 << 16)
    for chunk in range(1_000):
        record.add_user(320, chunk / 50)
    assert 0 < disk.writer._jobs.qsize() < 200
    goes_on.set()
    record.finish(disk.call, 20.0)
    assert disk.writer.close(30.0)
    assert disk.outcomes == ["late"]


def test_writer_deletes_again_when_it_is_time_only(disk, monkeypatch):
    disk.writer.close(30.0)
    deletions: list[object] = []
    monkeypatch.setattr(CallFolder, "delete_due", lambda _, now: deletions.append(now))
    disk.writer._delete_due()
    assert deletions == []
    disk.writer._delete_at = 0.0
    disk.writer._delete_due()
    assert len(deletions) == 1


def test_writer_deletes_what_is_due_when_it_starts(tmp_path):
    folder = CallFolder(tmp_path / "calls")
    folder.begin(info(NOW, days=1, call=make_call_id(NOW)))
    CallWriter(folder, lambda _: None).close(30.0)
    assert folder.entries.newest() == []


def test_recordings_do_not_wait_for_the_deletion_of_others(tmp_path, monkeypatch):
    goes_on = threading.Event()
    monkeypatch.setattr(CallFolder, "delete_due", lambda *_: goes_on.wait(30.0))
    disk = Disk(tmp_path / "calls")
    record = disk.record()
    record.finish(info(call=disk.call.call, ended=True), 1.0)
    disk.wait()
    assert [one.ended for one in disk.folder.entries.newest()] == [True]
    goes_on.set()
    disk.close()


def test_upkeep_goes_on_after_an_unexpected_failure(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(writing, "_RETRY_S", 0.001)
    failures, again = [UnicodeDecodeError("utf-8", b"\xff", 0, 1, "invalid")], threading.Event()

    def delete(*_):
        if failures:
            raise failures.pop()
        again.set()

    monkeypatch.setattr(CallFolder, "delete_due", delete)
    writer = CallWriter(CallFolder(tmp_path / "calls"), lambda _: None)
    assert again.wait(30.0)
    assert writer.close(30.0)
    assert "wait to be deleted" in caplog.text
    assert "UnicodeDecodeError" in caplog.text
