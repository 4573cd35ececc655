"""The list of calls of several servers: in a real PostgreSQL, with a store of files."""

from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from call_infos import NOW, info
from fake_s3 import BUCKET
from fake_s3 import serving as serving_files
from postgres_server import serving

from parley.calls import folder as folders
from parley.calls.database import CallScope
from parley.calls.folder import CallFilesMissingError, CallFolder, make_call_id, open_calls
from parley.calls.settings import RecordSettings
from parley.calls.store import CallStore
from parley.calls.writing import CallRecord, CallWriter
from parley.checkpoint import SessionState
from parley.errors import ModelLoadingError
from parley.runtime import postgres as databases

STORE = f"s3://{BUCKET}/calls"
AWAY = "postgresql://parley@127.0.0.1:1/none"


@pytest.fixture(scope="module")
def database():
    with serving() as made:
        yield made


@pytest.fixture
def bucket(monkeypatch):
    for name in ("SECRET_ACCESS_KEY", "REGION"):
        monkeypatch.setenv(f"AWS_{name}", "eu-central-1")
    with serving_files() as made:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", made.access_key)
        monkeypatch.setenv("AWS_ENDPOINT_URL", made.endpoint)
        yield made


@pytest.fixture
def server(database, bucket, tmp_path, monkeypatch):
    """Makes servers, each with a folder of its own. After a failure they try again at once."""
    monkeypatch.setattr(databases, "AWAY_S", 0.0)
    yield lambda name, url=database.url: open_calls(tmp_path / name, STORE, url)
    database.execute("DROP TABLE IF EXISTS parley_calls, parley_call_keys")


def record(folder: CallFolder, begun) -> str:
    (folder.path / begun.id / "events.jsonl").write_text("{}\n")
    folder.finish(msgspec.structs.replace(begun, ended=True))
    return begun.id


def folders_in(folder: CallFolder) -> list[str]:
    return [path.name for path in folder.path.iterdir() if path.is_dir()]


def test_calls_of_all_servers_are_seen_read_and_deleted_by_each(
    server, bucket, tmp_path, monkeypatch, database
):
    one, other = server("one"), server("other")
    first = record(one, one.begin(info(owner="anna")))
    second = record(other, other.begin(info(NOW + timedelta(hours=1), call=first, part=2)))
    for folder in (one, other):
        folder.upload_finished()
        assert folders_in(folder) == []
    monkeypatch.setenv("PARLEY_VOICE_AGENT_CALLS_STORE", STORE)
    monkeypatch.setenv("PARLEY_VOICE_AGENT_CALLS_LIST", database.url)
    gateway = open_calls(tmp_path / "gateway")
    assert [(call.id, call.call) for call in gateway.entries.newest()] == [(second, first), (first, first)]
    assert [call.id for call in gateway.entries.newest(scope=CallScope(owner="anna"))] == [first]
    for entry in (first, second):
        with gateway.open(entry) as (found, files):
            assert found.ended
            assert sorted(path.name for path in files.iterdir()) == ["call.json", "events.jsonl"]
        gateway.delete(entry)
    assert one.entries.newest() == []
    assert not bucket.objects
    assert not gateway.path.exists()


def test_part_that_two_servers_begin_from_one_checkpoint_has_two_entries(server):
    servers = [server(name) for name in "ab"]
    begun = [one.begin(info(call="20260504-120000-0123456789abcdef", part=2)) for one in servers]
    for one in servers:
        one.upload_finished()
    assert {call.id for call in servers[0].entries.newest()} == {one.id for one in begun}
    assert [one.part for one in begun] == [2, 2]


def test_call_that_moves_to_another_server_need_not_announce_the_recording_again(server):
    one, other = server("one"), server("other")
    for folder in (one, other):
        folder.delete_due(NOW)  # as each server does when it starts
    call = make_call_id(NOW)
    state = SessionState(version=1, call=call, call_seal=one.seal(call, "restaurant"))
    assert other.has_sealed(state, "restaurant")


def test_calls_that_are_due_are_deleted_once_by_servers_that_do_so_at_once(server, bucket):
    servers = [server(f"s{number}") for number in range(4)]
    for number in range(12):
        record(servers[number % 4], servers[number % 4].begin(info(days=1)))
    kept = servers[0].begin(info())
    for one in servers:
        one.upload_finished()
    together = threading.Barrier(len(servers))

    def delete(folder: CallFolder) -> int:
        together.wait(30.0)
        return folder.delete_due(NOW + timedelta(days=2))

    with ThreadPoolExecutor(len(servers)) as threads:
        assert sum(threads.map(delete, servers)) == 12
    assert servers[0].entries.newest() == [kept]
    assert not bucket.objects


def test_servers_that_start_at_once_make_the_tables_once_and_have_one_key(server):
    servers = [server(f"s{number}") for number in range(6)]
    with ThreadPoolExecutor(len(servers)) as threads:
        assert [*threads.map(lambda one: one.delete_due(NOW), servers)] == [0] * 6
    assert len({one.entries.key for one in servers}) == 1


def test_calls_are_recorded_while_the_database_is_away_and_listed_when_it_is_back(server, database):
    folder = server("one")
    goes_on = folder.begin(info(NOW + timedelta(hours=1)))
    folder.upload_finished()
    database.stop()
    try:
        new = record(folder, folder.begin(info()))
        part = folder.begin(info(call=new, part=2))
        record(folder, part)
        record(folder, goes_on)
        with pytest.raises(OSError, match="calls_list: "):
            folder.upload_finished()
        assert folder.spool_bytes > 0
    finally:
        database.start()
    # Meanwhile another server may have made a part of the name that this one would have had.
    other = server("other")
    taken = other.begin(info(call=new, part=2, session="s2"))
    for one in (other, folder):
        one.upload_finished()
    listed = {call.id: call for call in folder.entries.newest()}
    assert {name: call.ended for name, call in listed.items()} == {
        goes_on.id: True,
        new: True,
        part.id: True,
        taken.id: False,
    }
    assert (listed[part.id].call, listed[part.id].part) == (new, 2)
    assert folders_in(folder) == []
    assert folder.spool_bytes == 0
    with folder.open(part.id) as (_, files):
        assert sorted(path.name for path in files.iterdir()) == ["call.json", "events.jsonl"]


def test_writer_goes_on_while_the_database_is_away(server):
    outcomes: list[str] = []
    folder = server("one", AWAY)
    writer = CallWriter(folder, outcomes.append)
    call = info(at=datetime.now(UTC))
    CallRecord(writer, call, RecordSettings(), 0.0).finish(call, 1.0)
    assert writer.close(30.0)
    assert outcomes == [""]
    assert folders_in(folder) == [call.call]


def test_database_that_has_failed_is_left_alone_for_a_while(server, database, monkeypatch):
    monkeypatch.setattr(databases, "AWAY_S", 3_600.0)
    folder = server("one", AWAY)
    with pytest.raises(OSError, match="refused"):
        folder.entries.newest()
    with pytest.raises(OSError, match="has failed less than 3600 s ago"):
        folder.entries.newest()


def test_database_that_accepts_a_connection_and_hangs_is_given_up(server, monkeypatch):
    folder = server("one")
    folder.entries.newest()
    monkeypatch.setattr(databases, "_WAIT_S", 0.1)
    with pytest.raises(OSError, match="calls_list: "):
        folder.entries._run("SELECT pg_sleep(60)")


def test_call_that_was_deleted_before_its_files_were_moved_does_not_come_back(server, bucket):
    folder = server("one")
    begun = folder.begin(info())
    folder.upload_finished()
    record(folder, begun)
    server("other").delete(begun.id)
    folder.upload_finished()
    assert folder.entries.newest() == []
    assert not bucket.objects
    assert folders_in(folder) == []


@pytest.mark.parametrize("was_listed", [True, False])
def test_call_that_its_server_never_ended_moves_after_a_day(server, bucket, was_listed):
    begun = server("one", AWAY).begin(info(days=1))
    folder = server("one")
    if was_listed:
        folder.upload_finished()
    events = folder.path / begun.id / "events.jsonl"
    events.write_text("{}\n")
    foreign = folder.path / "backup"
    foreign.mkdir()
    day_before = (time.time() - 100_000,) * 2
    os.utime(events.parent, day_before)
    folder.upload_finished()
    assert not bucket.objects  # the call goes on: something was written
    for path in (events.parent / ".list", events, events.parent, foreign):
        os.utime(path, day_before)
    folder.upload_finished()
    assert [*bucket.objects] == [f"calls/{begun.id}/events.jsonl"]
    assert [call.ended for call in folder.entries.newest()] == [False]
    assert folders_in(folder) == ["backup"]
    assert server("other").delete_due(NOW + timedelta(days=2)) == 1
    assert not bucket.objects


@pytest.fixture
def others_url(database):
    """Of another list at the same server."""
    database.execute("CREATE SCHEMA others")
    yield f"{database.url}?options=-csearch_path%3Dothers"
    database.execute("DROP SCHEMA others CASCADE")


def test_servers_with_a_folder_and_two_lists_leave_each_other_their_calls(server, bucket, others_url):
    one, other = server("shared"), server("shared", others_url)
    own = CallFolder(one.path, CallStore(STORE))
    for folder in (one, other):
        folder.upload_finished()
    calls = {folder: record(folder, folder.begin(info())) for folder in (one, other)}
    assert len(set(calls.values())) == 2
    own.upload_finished()
    one.upload_finished()
    assert folders_in(one) == [calls[other]]
    other.upload_finished()
    for folder, entry in calls.items():
        assert [(call.id, call.ended) for call in folder.entries.newest()] == [(entry, True)]
    assert sorted(bucket.objects) == sorted(
        f"calls/{entry}/{name}" for entry in calls.values() for name in ("call.json", "events.jsonl")
    )


@pytest.mark.parametrize("content", [b"{", b'{"call": "\xff"}'])
@pytest.mark.parametrize("damage", ["call.json", "unlisted", ".list"])
def test_call_whose_files_are_damaged_holds_up_no_other(server, bucket, damage, content):
    folder = server("one")
    damaged = record(folder, folder.begin(info()))
    (folder.path / damaged / damage).write_bytes(content)
    whole = record(folder, folder.begin(info(NOW + timedelta(hours=1))))
    folder.upload_finished()
    if damage == ".list":
        assert folders_in(folder) == [damaged]
    elif damage == "call.json":
        assert folders_in(folder) == [*folder.refused] == [damaged]
    else:
        assert folder.entries.find(damaged) is not None
    assert f"calls/{whole}/call.json" in bucket.objects


def test_calls_that_the_list_refuses_hold_up_no_other(server, bucket):
    folder = server("one")
    refused = [record(folder, folder.begin(info(owner="a\0b"))) for _ in range(2)]
    whole = record(folder, folder.begin(info(NOW + timedelta(hours=1))))
    folder.upload_finished()
    assert [call.id for call in folder.entries.newest()] == [whole]
    assert sorted(folders_in(folder)) == sorted(folder.refused) == sorted(refused)


def test_call_that_was_deleted_before_its_listing_is_repeated_does_not_come_back(
    server, bucket, database, monkeypatch
):
    folder = server("one")
    begun = folder.begin(info())
    run = folder.entries._run

    def lose(statement, *values):
        rows = run(statement, *values)
        if statement.startswith("INSERT INTO parley_calls "):
            raise OSError("the answer was lost")
        return rows

    with monkeypatch.context() as patched:
        patched.setattr(folder.entries, "_run", lose)
        with pytest.raises(OSError, match="lost"):
            folder.upload_finished()
    server("other").delete(begun.id)
    record(folder, begun)
    folder.upload_finished()
    assert folder.entries.newest() == []
    assert not bucket.objects
    assert folders_in(folder) == []
    count = "SELECT count(*) FROM parley_calls"
    assert database.rows(f"{count} WHERE agent = '' AND owner IS NULL AND info = ''") == [(1,)]
    assert folder.delete_due(NOW + timedelta(days=40_000)) == 0
    assert database.rows(count) == [(0,)]


def test_list_from_before_gets_the_indexes_that_it_lacks(server, database):
    server("one").entries.newest()
    database.execute("DROP INDEX parley_calls_by_due")
    server("other").entries.newest()
    found = "SELECT indexname FROM pg_indexes WHERE indexname = 'parley_calls_by_due'"
    assert len(database.rows(found)) == 1


def test_call_that_cannot_begin_leaves_no_folder(server, monkeypatch):
    folder = server("one")

    def fail(_: object) -> bytes:
        raise UnicodeEncodeError("utf-8", "x", 0, 1, "no text")

    with monkeypatch.context() as patched:
        patched.setattr(msgspec.json, "encode", fail)
        with pytest.raises(UnicodeEncodeError):
            folder.begin(info())
    assert folders_in(folder) == []


def test_call_whose_files_are_with_another_server_is_not_read(server, tmp_path):
    one, other = server("one"), server("other")
    begun = one.begin(info())
    one.upload_finished()
    for name in ("", "events.jsonl"):
        with (
            pytest.raises(CallFilesMissingError, match="do not have the files of"),
            other.open(begun.id, name=name),
        ):
            pass
    with pytest.raises(CallFilesMissingError):
        other.open_file(begun.id, "audio.wav")
    record(one, begun)
    one.upload_finished()
    with pytest.raises(FileNotFoundError):
        other.open_file(begun.id, "audio.wav")


def test_begin_and_end_of_a_call_ask_nothing_of_the_database(server, monkeypatch):
    folder = server("one")
    monkeypatch.setattr(folder.entries, "_run", lambda *_: pytest.fail("it was asked"))
    record(folder, folder.begin(info()))


def test_list_in_the_folder_is_joined_to_that_which_servers_share(server, tmp_path):
    before = CallFolder(tmp_path / "one", CallStore(STORE))
    entry = record(before, before.begin(info(days=1)))
    before.upload_finished()
    folder = server("one")
    folder.upload_finished()
    assert [call.id for call in folder.entries.newest()] == [entry]
    assert [*folder.path.iterdir()] == []


def test_list_in_the_folder_is_joined_many_calls_at_a_time(server, tmp_path, monkeypatch):
    monkeypatch.setattr(folders, "_JOINED_AT_ONCE", 3)
    before = CallFolder(tmp_path / "one", CallStore(STORE))
    calls = [before.begin(info(NOW + timedelta(hours=number % 2))).id for number in range(7)]
    folder, asked = server("one"), []
    run = folder.entries._run
    monkeypatch.setattr(folder.entries, "_run", lambda *args: asked.append(args[0]) or run(*args))
    folder.upload_finished()
    assert sum(statement.startswith("INSERT INTO parley_calls ") for statement in asked) == 3
    assert {call.id for call in folder.entries.newest()} == {*calls}
    assert folder.entries.add(*folder.entries.newest()) == 0


@pytest.mark.parametrize("is_shared", [True, False])
def test_call_that_was_taken_for_lost_has_its_end_nevertheless(server, bucket, tmp_path, is_shared):
    folder = server("one") if is_shared else CallFolder(tmp_path / "one", CallStore(STORE))
    begun = folder.begin(info())
    folder.upload_finished()
    events = folder.path / begun.id / "events.jsonl"
    events.write_text("{}\n")  # nothing follows: the recording ended at its limit, the call goes on
    for path in (*events.parent.iterdir(), events.parent):
        os.utime(path, (time.time() - 100_000,) * 2)
    folder.upload_finished()
    assert folders_in(folder) == []
    folder.finish(msgspec.structs.replace(begun, ended=True, reason="hangup", duration_ms=100_000_000))
    folder.upload_finished()
    assert [(call.ended, call.reason) for call in folder.entries.newest()] == [(True, "hangup")]
    assert sorted(bucket.objects) == [f"calls/{begun.id}/{name}" for name in ("call.json", "events.jsonl")]
    assert folders_in(folder) == []


def test_user_who_may_not_create_tables_reads_and_deletes(server, database):
    folder = server("one")
    begun = folder.begin(info())
    folder.upload_finished()
    database.execute("DROP ROLE IF EXISTS reader")
    database.execute("CREATE ROLE reader LOGIN")
    database.execute("GRANT SELECT, UPDATE ON parley_calls, parley_call_keys TO reader")
    reader = server("gateway", database.url.replace("parley@", "reader@"))
    assert reader.entries.newest() == [begun]
    reader.delete(begun.id)
    assert folder.entries.newest() == []
    with pytest.raises(OSError, match="permission denied"):
        reader.entries.add(begun)


@pytest.mark.parametrize(
    ("store", "url", "reason"),
    [
        ("", "postgresql://parley@db/x", "calls_list needs calls_store"),
        (STORE, "mysql://db/x", "calls_list must be postgresql://user@host/name"),
        (STORE, "postgresql://parley:secret@db/x", "without a password: set PGPASSFILE"),
    ],
)
def test_list_that_cannot_be_shared_is_refused_without_its_text(tmp_path, store, url, reason):
    with pytest.raises(ModelLoadingError, match=reason) as refused:
        open_calls(tmp_path, store, url)
    assert "secret" not in str(refused.value)
