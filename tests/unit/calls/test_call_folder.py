"""The folder of recorded calls."""

from __future__ import annotations

import errno
import json
import shutil
import sqlite3
import stat
from contextlib import closing
from datetime import timedelta

import msgspec
import pytest
from call_infos import NOW, info
from postgres_server import serving

from parley.calls import database
from parley.calls.database import CallScope
from parley.calls.folder import CallFolder, is_call_id, make_call_id, open_calls
from parley.checkpoint import SessionState
from parley.errors import CallNotFoundError


@pytest.fixture(scope="module")
def server():
    with serving() as made:
        yield made


@pytest.fixture(params=["sqlite", "postgres"])
def make(request):
    """Makes folders of calls; in PostgreSQL they have one list."""
    if request.param == "sqlite":
        yield CallFolder
        return
    server = request.getfixturevalue("server")
    yield lambda path: CallFolder(path, None, open_calls(path, "s3://none/calls", server.url).entries)
    server.execute("DROP TABLE IF EXISTS parley_calls, parley_call_keys")


@pytest.fixture
def folder(make, tmp_path):
    return make(tmp_path / "calls")


@pytest.fixture
def own(tmp_path):
    """With its list in SQLite."""
    return CallFolder(tmp_path / "calls")


def folders_in(folder):
    return [path.name for path in folder.path.iterdir() if path.is_dir()]


def test_folder_is_made_with_the_first_call_only(folder):
    assert folder.entries.newest() == []
    assert folder.delete_due(NOW) == 0
    assert not folder.path.exists()
    folder.begin(info())
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700


def test_call_is_listed_while_it_goes_on_and_when_it_has_ended(folder):
    begun = folder.begin(info())
    assert not folder.entries.newest()[0].ended
    assert not (folder.path / begun.id / "call.json").exists()
    folder.finish(msgspec.structs.replace(begun, ended=True, reason="hangup", collected={"name": "Ann"}))
    with folder.open(begun.id) as (ended, files):
        assert (ended.ended, ended.reason, ended.collected) == (True, "hangup", {"name": "Ann"})
        assert json.loads((files / "call.json").read_text())["reason"] == "hangup"
        assert [one.name for one in files.iterdir()] == ["call.json"]


def test_files_are_readable_by_their_owner_only(own):
    begun = own.begin(info())
    own.finish(begun)
    for path in (own.path / "calls.sqlite3", own.path / begun.id / "call.json"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((own.path / begun.id).stat().st_mode) == 0o700


def test_list_is_of_an_agent_newest_first(folder):
    for hours, agent in enumerate(("clinic", "restaurant", "clinic")):
        folder.begin(info(NOW + timedelta(hours=hours), agent))
    assert [one.agent for one in folder.entries.newest()] == ["clinic", "restaurant", "clinic"]
    assert [one.started[11:13] for one in folder.entries.newest("clinic")] == ["14", "12"]
    assert len(folder.entries.newest(limit=2)) == 2


def test_parts_of_a_moved_call_are_entries_of_one_call(folder):
    first = folder.begin(info())
    second = folder.begin(info(call=first.call, part=2))
    again = folder.begin(info(call=first.call, part=2))
    assert [second.id, again.id, again.part] == [f"{first.call}.2", f"{first.call}.3", 3]


def test_last_part_can_be_found_and_deleted_and_no_other_follows(folder):
    last = folder.begin(info(part=9_999, days=1))
    assert folder.entries.find(last.id) == last
    for part in (9_999, 10_000):
        with pytest.raises(FileExistsError):
            folder.begin(info(call=last.call, part=part))
    assert folder.delete_due(NOW + timedelta(days=2)) == 1
    assert folders_in(folder) == []


def test_due_calls_are_deleted_and_others_stay(folder):
    old, young = folder.begin(info(days=7)), folder.begin(info(days=8))
    assert folder.delete_due(NOW + timedelta(days=7)) == 1
    assert [one.id for one in folder.entries.newest()] == [young.id]
    assert not (folder.path / old.id).exists()


def test_entry_whose_files_are_gone_already_is_deleted_too(folder):
    begun = folder.begin(info(days=1))
    (folder.path / begun.id).rmdir()
    assert folder.delete_due(NOW + timedelta(days=2)) == 1
    assert folder.entries.newest() == []


def test_call_that_cannot_be_deleted_keeps_its_entry_and_no_other(folder, monkeypatch):
    stuck, other = folder.begin(info(days=1)), folder.begin(info(days=1))
    remove = shutil.rmtree

    def fail(path):
        if path.name == stuck.id:
            raise PermissionError(errno.EACCES, path)
        remove(path)

    monkeypatch.setattr(shutil, "rmtree", fail)
    with pytest.raises(PermissionError):
        folder.delete_due(NOW + timedelta(days=2))
    assert [one.id for one in folder.entries.newest()] == [stuck.id]
    assert not (folder.path / other.id).exists()


def test_delete_removes_files_and_entry(folder):
    begun = folder.begin(info())
    folder.delete(begun.id)
    assert folder.entries.newest() == []
    assert not (folder.path / begun.id).exists()


def test_call_whose_line_was_deleted_meanwhile_does_not_come_back(folder):
    begun = folder.begin(info())
    assert folder.entries.remove(begun.id)
    folder.finish(begun)
    assert folder.entries.newest() == []


@pytest.mark.parametrize("entry", ["", ".", "..", "../calls", "/etc", "calls.sqlite3", "20260504-120000-x"])
def test_ids_that_are_none_lead_nowhere(folder, entry):
    folder.begin(info())
    with pytest.raises(CallNotFoundError), folder.open(entry):
        pass
    with pytest.raises(CallNotFoundError):
        folder.delete(entry)
    assert len(folder.entries.newest()) == 1


def test_call_ids_are_checked_before_they_become_names():
    assert is_call_id(make_call_id(NOW))
    for text in (
        "",
        "../../etc",
        f"{make_call_id(NOW)}/x",
        f"{make_call_id(NOW)}.2",
        f"{make_call_id(NOW)}\n",
    ):
        assert not is_call_id(text)


def test_call_that_cannot_be_listed_leaves_no_folder(own, monkeypatch):
    own.begin(info())
    monkeypatch.setattr(database, "_BUSY_S", 0.0)
    with closing(sqlite3.connect(own.path / "calls.sqlite3")) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(OSError, match="locked"):
            own.begin(info())
    assert len(folders_in(own)) == 1


def test_owner_and_agents_limit_what_is_seen(folder):
    anna = folder.begin(info(owner="anna"))
    folder.begin(info(owner="ben"))
    folder.begin(info())
    seen = folder.entries.newest
    assert seen(scope=CallScope(owner="anna")) == [anna]
    assert seen(scope=CallScope(owner="")) == []
    assert seen(scope=CallScope(owner="anna", agents=frozenset({"restaurant", "clinic"}))) == [anna]
    assert seen(scope=CallScope(agents=frozenset())) == []
    assert folder.entries.find(anna.id, CallScope(owner="ben")) is None


@pytest.mark.parametrize(
    ("given", "index"),
    [({"limit": 3, "scope": CallScope(owner="a")}, "owner"), ({"limit": 3}, "start"), ({"due": "a"}, "due")],
)
def test_calls_are_found_by_an_index(own, server, monkeypatch, given, index):
    own.begin(info())
    with closing(sqlite3.connect(own.path / "calls.sqlite3")) as db:
        db.execute("DROP INDEX parley_calls_by_due")  # as in a list from before that
    options = "options=-cenable_seqscan%3Doff%20-cenable_bitmapscan%3Doff"
    shared = open_calls(own.path, "s3://none/calls", f"{server.url}?{options}").entries
    for entries, explain in ((own.entries, "EXPLAIN QUERY PLAN "), (shared, "EXPLAIN ")):
        entries.newest()
        run, asked = entries._run, []
        monkeypatch.setattr(entries, "_run", lambda *args, asked=asked: asked.extend(args) or [])
        entries.newest(**given)
        plan = str(run(explain + asked[0], *asked[1:]))
        assert f"parley_calls_by_{index}" in plan
        assert "TEMP B-TREE" not in plan
        assert "Sort" not in plan
    server.execute("DROP TABLE parley_calls, parley_call_keys")


def test_seal_is_of_one_call_of_one_agent_and_of_the_servers_of_its_list(folder, make, tmp_path):
    begun = folder.begin(info())
    state = SessionState(version=1, call=begun.call, call_seal=folder.seal(begun.call, "restaurant"))
    again, other = make(folder.path), CallFolder(tmp_path / "other")
    again.delete_due(NOW)
    assert folder.has_sealed(state, "restaurant")
    assert again.has_sealed(state, "restaurant")
    assert not other.has_sealed(state, "restaurant")
    assert not folder.has_sealed(state, "clinic")
    assert not folder.has_sealed(msgspec.structs.replace(state, call=make_call_id(NOW)), "restaurant")
    assert not folder.has_sealed(SessionState(version=1, call=begun.call), "restaurant")
