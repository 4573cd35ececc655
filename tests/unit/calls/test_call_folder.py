"""The folder of recorded calls."""

from __future__ import annotations

import json
import shutil
import sqlite3
import stat
from contextlib import closing
from datetime import timedelta

import msgspec
import pytest
from call_infos import NOW, info

from parley.calls import folder as folders
from parley.calls.folder import CallFolder, is_call_id, make_call_id
from parley.checkpoint import SessionState
from parley.errors import CallNotFoundError


@pytest.fixture
def folder(tmp_path):
    return CallFolder(tmp_path / "calls")


def test_folder_is_made_with_the_first_call_only(folder):
    assert folder.list() == []
    assert folder.delete_due(NOW) == 0
    assert not folder.path.exists()
    folder.begin(info())
    assert stat.S_IMODE(folder.path.stat().st_mode) == 0o700


def test_call_is_listed_while_it_goes_on_and_when_it_has_ended(folder):
    begun = folder.begin(info())
    assert not folder.list()[0].ended
    assert not (folder.path / begun.id / "call.json").exists()
    folder.finish(msgspec.structs.replace(begun, ended=True, reason="hangup", collected={"name": "Ann"}))
    ended, files = folder.find(begun.id)
    assert (ended.ended, ended.reason, ended.collected) == (True, "hangup", {"name": "Ann"})
    assert json.loads((files / "call.json").read_text())["reason"] == "hangup"
    assert [one.name for one in files.iterdir()] == ["call.json"]


def test_files_are_readable_by_their_owner_only(folder):
    begun = folder.begin(info())
    folder.finish(begun)
    for path in (folder.path / "calls.sqlite3", folder.path / begun.id / "call.json"):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE((folder.path / begun.id).stat().st_mode) == 0o700


def test_list_is_of_an_agent_newest_first(folder):
    for hours, agent in enumerate(("clinic", "restaurant", "clinic")):
        folder.begin(info(NOW + timedelta(hours=hours), agent))
    assert [one.agent for one in folder.list()] == ["clinic", "restaurant", "clinic"]
    assert [one.started[11:13] for one in folder.list("clinic")] == ["14", "12"]
    assert len(folder.list(limit=2)) == 2


def test_parts_of_a_moved_call_are_entries_of_one_call(folder):
    first = folder.begin(info())
    second = folder.begin(info(call=first.call, part=2))
    again = folder.begin(info(call=first.call, part=2))
    assert [second.id, again.id, again.part] == [f"{first.call}.2", f"{first.call}.3", 3]


def test_last_part_can_be_found_and_deleted_and_no_other_follows(folder):
    last = folder.begin(info(part=9_999, days=1))
    assert folder.find(last.id)[0] == last
    for part in (9_999, 10_000):
        with pytest.raises(FileExistsError):
            folder.begin(info(call=last.call, part=part))
    assert folder.delete_due(NOW + timedelta(days=2)) == 1
    assert [one.name for one in folder.path.iterdir()] == ["calls.sqlite3"]


def test_due_calls_are_deleted_and_others_stay(folder):
    old, young = folder.begin(info(days=7)), folder.begin(info(days=8))
    assert folder.delete_due(NOW + timedelta(days=7)) == 1
    assert [one.id for one in folder.list()] == [young.id]
    assert not (folder.path / old.id).exists()


def test_entry_whose_files_are_gone_already_is_deleted_too(folder):
    begun = folder.begin(info(days=1))
    (folder.path / begun.id).rmdir()
    assert folder.delete_due(NOW + timedelta(days=2)) == 1
    assert folder.list() == []


def test_call_that_cannot_be_deleted_keeps_its_entry_and_no_other(folder, monkeypatch):
    stuck, other = folder.begin(info(days=1)), folder.begin(info(days=1))
    remove = shutil.rmtree

    def fail(path):
        if path.name == stuck.id:
            raise PermissionError(path)
        remove(path)

    monkeypatch.setattr(shutil, "rmtree", fail)
    assert folder.delete_due(NOW + timedelta(days=2)) == 1
    assert [one.id for one in folder.list()] == [stuck.id]
    assert not (folder.path / other.id).exists()


def test_delete_removes_files_and_entry(folder):
    begun = folder.begin(info())
    folder.delete(begun.id)
    assert folder.list() == []
    assert not (folder.path / begun.id).exists()


def test_call_whose_line_was_deleted_meanwhile_does_not_come_back(folder):
    begun = folder.begin(info())
    folder._query("DELETE FROM calls WHERE id = ?", begun.id)
    folder.finish(begun)
    assert folder.list() == []


@pytest.mark.parametrize("entry", ["", ".", "..", "../calls", "/etc", "calls.sqlite3", "20260504-120000-x"])
def test_ids_that_are_none_lead_nowhere(folder, entry):
    folder.begin(info())
    for use in (folder.find, folder.delete):
        with pytest.raises(CallNotFoundError):
            use(entry)
    assert len(folder.list()) == 1


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


def test_call_that_cannot_be_listed_leaves_no_folder(folder, monkeypatch):
    folder.begin(info())
    monkeypatch.setattr(folders, "_BUSY_S", 0.0)
    with closing(sqlite3.connect(folder.path / "calls.sqlite3")) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(sqlite3.OperationalError):
            folder.begin(info())
    assert len([path for path in folder.path.iterdir() if path.is_dir()]) == 1


def test_seal_is_of_one_call_of_one_agent_and_of_the_servers_of_its_folder(folder, tmp_path):
    begun = folder.begin(info())
    state = SessionState(version=1, call=begun.call, call_seal=folder.seal(begun.call, "restaurant"))
    again, other = CallFolder(folder.path), CallFolder(tmp_path / "other")
    again.delete_due(NOW)
    assert folder.has_sealed(state, "restaurant")
    assert again.has_sealed(state, "restaurant")
    assert not other.has_sealed(state, "restaurant")
    assert not folder.has_sealed(state, "clinic")
    assert not folder.has_sealed(msgspec.structs.replace(state, call=make_call_id(NOW)), "restaurant")
    assert not folder.has_sealed(SessionState(version=1, call=begun.call), "restaurant")
