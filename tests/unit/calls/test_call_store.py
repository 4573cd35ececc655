"""Recordings that move to an object store, against a server that speaks its protocol."""

from __future__ import annotations

import errno
import shutil
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from call_infos import NOW, info
from fake_s3 import BUCKET, serving

from parley.calls import folder as folders
from parley.calls import writing
from parley.calls.folder import CallFolder
from parley.calls.settings import RecordSettings
from parley.calls.store import CallStore
from parley.calls.writing import CallRecord, CallWriter
from parley.errors import CallNotFoundError, ModelLoadingError

URL = f"s3://{BUCKET}/calls"


@pytest.fixture
def server(monkeypatch):
    for name in ("SECRET_ACCESS_KEY", "REGION"):
        monkeypatch.setenv(f"AWS_{name}", "eu-central-1")
    with serving() as made:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", made.access_key)
        monkeypatch.setenv("AWS_ENDPOINT_URL", made.endpoint)
        yield made


@pytest.fixture
def folder(server, tmp_path):
    return CallFolder(tmp_path / "calls", CallStore(URL))


def ended(folder: CallFolder, **fields) -> str:
    """A call that is over; its id."""
    begun = folder.begin(info(**fields))
    (folder.path / begun.id / "events.jsonl").write_text('{"at_ms": 1, "event": {"type": "error"}}\n')
    folder.finish(begun)
    return begun.id


def folders_in(folder: CallFolder) -> list[str]:
    return [path.name for path in folder.path.iterdir() if path.is_dir()]


def keys(entry: str) -> list[str]:
    return [f"calls/{entry}/{name}" for name in ("call.json", "events.jsonl")]


def test_finished_call_moves_and_can_be_read_and_deleted_there(folder, server):
    entry = ended(folder)
    folder.upload_finished()
    assert sorted(server.objects) == keys(entry)
    assert not (folder.path / entry).exists()
    assert folder.spool_bytes == 0
    with folder.open(entry) as (found, files):
        assert found.id == entry
        assert sorted(path.name for path in files.iterdir()) == ["call.json", "events.jsonl"]
    folder.delete(entry)
    assert not server.objects
    with pytest.raises(CallNotFoundError), folder.open(entry):
        pass


def test_part_that_goes_on_from_the_same_checkpoint_replaces_no_uploaded_one(folder, server):
    first = ended(folder)
    second = ended(folder, call=first, part=2)
    folder.upload_finished()
    for part in (1, 2):
        other = folder.begin(info(NOW, "another", call=first, part=part))
        assert other.id not in (first, second)
    assert sorted(path.name for path in folder.path.iterdir()) == [
        f"{first}.3",
        f"{first}.4",
        "calls.sqlite3",
    ]
    assert [folder.entries.newest("restaurant")[at].id for at in (0, 1)] == [second, first]


def test_call_that_goes_on_stays(folder, server):
    begun = folder.begin(info())
    (folder.path / begun.id / "events.jsonl").write_text("{}\n")
    folder.upload_finished()
    assert not server.objects
    assert folder.spool_bytes == 0
    assert (folder.path / begun.id).is_dir()


def test_call_that_is_deleted_during_its_upload_leaves_nothing(folder, server, monkeypatch):
    entry, upload = ended(folder), CallStore.upload

    def meet(store: CallStore, files: Path) -> None:
        """Another thread deletes the call when one file is stored."""
        folder.delete(entry)
        server.objects[keys(entry)[0]] = b"{}"
        upload(store, files)

    monkeypatch.setattr(CallStore, "upload", meet)
    folder.upload_finished()
    assert not server.objects
    assert folder.entries.newest() == []


@pytest.mark.parametrize("name", ["", "events.jsonl"])
def test_files_of_an_open_call_stay_readable_after_its_upload(folder, server, name):
    entry = ended(folder)
    with folder.open(entry, name=name) as (_, files):
        folder.upload_finished()
        assert '"error"' in (files / "events.jsonl").read_text()


@pytest.mark.parametrize(
    ("name", "found"), [("", ["call.json", "events.jsonl"]), ("events.jsonl", ["events.jsonl"])]
)
def test_call_that_is_uploaded_while_it_is_opened_is_read_in_the_store(
    folder, server, monkeypatch, name, found
):
    entry, copy = ended(folder), shutil.copy

    def meet(source: Path, to: str) -> None:
        """The uploader removes the folder first."""
        folder.upload_finished()
        copy(source, to)

    monkeypatch.setattr(shutil, "copy", meet)
    with folder.open(entry, name=name) as (_, files):
        assert sorted(path.name for path in files.iterdir()) == found


def test_file_that_is_uploaded_while_it_is_opened_is_read_in_the_store(folder, server, monkeypatch):
    entry, open_path, uploads = ended(folder), Path.open, [folder.upload_finished]

    def meet(path: Path, *args: str, **more: str) -> object:
        """The uploader removes the folder first."""
        while uploads:
            uploads.pop()()
        return open_path(path, *args, **more)

    monkeypatch.setattr(Path, "open", meet)
    file, size = folder.open_file(entry, "events.jsonl")
    assert len(bytes(file.read(size + 1))) == size > 0


def test_call_that_is_uploaded_during_its_deletion_leaves_nothing(folder, server, monkeypatch):
    entry, delete, late = ended(folder), CallStore.delete, [b"{}"]

    def meet(store: CallStore, name: str) -> None:
        """An upload finds the call in the list for the last time."""
        delete(store, name)
        server.objects.update({keys(name)[0]: late.pop()} if late else {})

    monkeypatch.setattr(CallStore, "delete", meet)
    folder.delete(entry)
    assert not server.objects


def test_bucket_that_does_not_exist_is_a_failure(folder, server):
    folder.store = CallStore("s3://another-bucket/calls")
    entry = ended(folder)
    with pytest.raises(OSError, match="NoSuchBucket"):
        folder.upload_finished()
    assert (folder.path / entry / "call.json").exists()


def test_due_call_is_deleted_in_the_store(folder, server):
    ended(folder, days=1)
    folder.upload_finished()
    assert folder.delete_due(NOW + timedelta(days=2)) == 1
    assert not server.objects
    assert folder.entries.newest() == []


def test_call_that_cannot_be_deleted_in_the_store_stays_listed(folder, server):
    entries = {ended(folder, days=1) for _ in range(3)}
    folder.upload_finished()
    server.access_key = "another"
    server.requests.clear()
    with pytest.raises(OSError, match=URL):
        folder.delete_due(NOW + timedelta(days=2))
    assert {one.id for one in folder.entries.newest()} == entries
    assert len(server.requests) == 2


def test_call_that_cannot_be_deleted_here_holds_up_no_other(folder, server, monkeypatch):
    stuck, remove = ended(folder, days=1), shutil.rmtree
    ended(folder, days=2)

    def fail(path: Path) -> None:
        if path.name == stuck:
            raise PermissionError(errno.EACCES, "not allowed", str(path))
        remove(path)

    monkeypatch.setattr(shutil, "rmtree", fail)
    with pytest.raises(PermissionError):
        folder.delete_due(NOW + timedelta(days=3))
    assert [one.id for one in folder.entries.newest()] == [stuck]


def test_call_that_the_store_does_not_take_holds_up_no_other(folder, server, monkeypatch):
    days = [NOW + timedelta(days=day) for day in range(5)]
    first, moved, second, third, last = (ended(folder, at=day) for day in days)
    folder.begin(info(days[2] + timedelta(hours=1)))  # a call that goes on does not count
    upload = CallStore.upload

    def refuse(store: CallStore, files: Path) -> None:
        if files.name in (first, second, third):
            raise OSError("the store has failed")
        upload(store, files)

    monkeypatch.setattr(CallStore, "upload", refuse)
    with pytest.raises(OSError, match="has failed"):
        folder.upload_finished()
    assert sorted(server.objects) == keys(moved)
    assert (folder.path / last).exists()  # behind two in a row: it is the store


def test_calls_that_the_store_refuses_are_set_aside_for_an_hour(folder, server, caplog):
    refused = [ended(folder, at=NOW + timedelta(days=day)) for day in range(3)]
    last = ended(folder, at=NOW + timedelta(days=3))
    server.failures = [400, 400, 413]
    folder.upload_finished()
    assert sorted(server.objects) == keys(last)
    assert sorted(folder.refused) == refused
    for entry in refused:
        assert f"the recorded call {entry} cannot be listed, moved or deleted now: [Errno 22]" in caplog.text
    server.requests.clear()
    folder.upload_finished()
    assert server.requests == []
    folder.refused = dict.fromkeys(refused, 0.0)  # the hour is over
    folder.upload_finished()
    assert folders_in(folder) == []
    assert folder.refused == {}


def test_calls_are_uploaded_before_others_are_deleted(folder, server, monkeypatch):
    done: list[str] = []
    for name in ("upload_finished", "delete_due"):
        monkeypatch.setattr(CallFolder, name, lambda *_, name=name: done.append(name))
    CallWriter(folder, lambda _: None).close(30.0)
    assert done[:2] == ["upload_finished", "delete_due"]


def test_folder_keeps_what_the_store_does_not_take_and_another_server_goes_on(folder, server):
    entry = ended(folder)
    server.access_key, right = "another", server.access_key
    with pytest.raises(OSError, match=URL):
        folder.upload_finished()
    assert (folder.path / entry / "call.json").exists()
    assert folder.spool_bytes > 0
    server.access_key = right
    CallFolder(folder.path, CallStore(URL)).upload_finished()
    assert sorted(server.objects) == keys(entry)


def test_full_spool_takes_no_recording(folder, server, monkeypatch):
    ended(folder)
    server.access_key = "another"
    with pytest.raises(OSError, match=URL):
        folder.upload_finished()
    monkeypatch.setattr(folders, "MAX_SPOOL", 1)
    with pytest.raises(OSError, match="no room"):
        folder.begin(info())


def test_writer_moves_a_call_when_it_has_ended_and_tries_again(folder, server, monkeypatch):
    monkeypatch.setattr(writing, "_RETRY_S", 0.01)
    server.access_key, right = "another", server.access_key
    outcomes: list[str] = []
    writer = CallWriter(folder, outcomes.append)
    upload = CallFolder.upload_finished

    def repair(calls: CallFolder) -> None:
        """The second attempt succeeds."""
        try:
            upload(calls)
        finally:
            server.access_key = right if calls.spool_bytes else server.access_key

    monkeypatch.setattr(CallFolder, "upload_finished", repair)
    call = info(at=datetime.now(UTC))
    CallRecord(writer, call, RecordSettings(), 0.0).finish(call, 1.0)
    while f"calls/{call.call}/call.json" not in server.objects or (folder.path / call.call).exists():
        writer._wake.wait(0.01)
    assert writer.close(30.0)
    assert outcomes == [""]
    assert f"calls/{call.call}/audio.wav" in server.objects


def test_writer_that_ends_moves_the_calls_that_end_with_it(folder, server, monkeypatch):
    writer, goes_on = CallWriter(folder, lambda _: None), threading.Event()
    call = info(at=datetime.now(UTC))
    record = CallRecord(writer, call, RecordSettings(), 0.0)
    writer.put(0, lambda: goes_on.wait(30.0))
    record.finish(call, 1.0)
    join = threading.Thread.join

    def let_go(thread: threading.Thread, timeout: float | None = None) -> None:
        """The writer is closing, and still has to write."""
        goes_on.set()
        join(thread, timeout)

    monkeypatch.setattr(threading.Thread, "join", let_go)
    assert writer.close(30.0)
    assert f"calls/{call.call}/call.json" in server.objects


def test_only_what_is_needed_is_fetched(folder, server):
    entry = ended(folder)
    server.objects[f"calls/{entry}/audio.wav"] = sound = bytes(range(256)) * 8_192
    folder.upload_finished()
    server.requests.clear()
    with folder.open(entry, name="events.jsonl") as (_, files):
        assert [path.name for path in files.iterdir()] == ["events.jsonl"]
    file, size = folder.open_file(entry, "audio.wav")
    file.seek(1_000)
    assert (bytes(file.read(500)), size) == (sound[1_000:1_500], len(sound))
    asked = [one.rpartition("/")[2] for one in server.requests]
    assert asked == ["events.jsonl", "audio.wav", "audio.wav"]
    server.access_key = "another"
    file.read(len(sound))  # the rest of what was fetched
    with pytest.raises(OSError, match="403"):
        file.read(len(sound))
    with pytest.raises(OSError, match=URL):
        folder.open_file(entry, "audio.wav")


@pytest.mark.parametrize("url", ["bucket", "http://host/bucket", "s3://", "s3://UPPER/x", "s3://bucket/a b"])
def test_address_that_is_none_is_refused(url):
    with pytest.raises(ModelLoadingError, match="BUCKET/PREFIX"):
        CallStore(url)
