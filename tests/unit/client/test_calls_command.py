"""``parley calls`` and ``parley test --from-call``, with recorded calls."""

from __future__ import annotations

import json
import shutil
import socket

import msgspec
import pytest
from fake_s3 import BUCKET, serving

from parley.calls import store
from parley.calls.database import CallInfo
from parley.calls.folder import CallFolder, open_calls
from parley_client.cli.commands import calls as calls_command
from parley_client.cli.program import main
from parley_testing.scenario import ExpectedCall
from parley_testing.scenario_file import load_scenarios

EVENTS = [
    {"at_ms": 0, "event": {"type": "response_done", "response_id": "r1", "text": "Good evening."}},
    {"at_ms": 900, "event": {"type": "transcript", "utterance": 1, "text": "A table"}},
    {"at_ms": 1_500, "event": {"type": "transcript", "utterance": 2, "text": "for [four], please."}},
    {
        "at_ms": 2_000,
        "event": {
            "type": "tool_run",
            "name": "find_table",
            "arguments": {"people": 4, "terrace": True, "note": None},
            "output": {"at": ["20:00", None]},
        },
    },
    {"at_ms": 2_100, "event": {"type": "tool_request", "name": "greet", "call_id": "c1", "arguments": {}}},
    {"at_ms": 2_200, "message": {"type": "tool_response", "call_id": "c1", "output": {"ok": True}}},
    {
        "at_ms": 4_000,
        "event": {"type": "response_done", "response_id": "r2", "text": "At eight, or at nine."},
    },
    {
        "at_ms": 3_500,
        "event": {"type": "interrupted", "response_id": "r2", "spoken_text": "At \x1b[31meight,"},
    },
    {"at_ms": 5_000, "message": {"type": "dtmf", "digits": "12#"}},
    {"at_ms": 6_000, "event": {"type": "closed", "reason": "agent_ended"}},
]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(calls_command, "CHECKOUT", tmp_path)
    return CallFolder(tmp_path / "calls")


def record(folder: CallFolder, events=EVENTS, number: int = 1) -> str:
    call = f"20260504-12000{number}-{'ab' * 8}"
    begun = folder.begin(
        CallInfo(call=call, agent="restaurant", session="s", started=f"2026-05-04T12:00:0{number}Z")
    )
    lines = "".join(f"{json.dumps(line)}\n" for line in events)
    (folder.path / begun.id / "events.jsonl").write_text(lines + '{"at_ms": 7000, "ev')
    ended = {"ended": True, "reason": "agent_ended", "duration_ms": 6_000, "turns": 2}
    folder.finish(msgspec.structs.replace(begun, **ended))
    return begun.id


def parley(capsys, *arguments: str) -> tuple[int, str, str]:
    status = main([*arguments])
    return status, *capsys.readouterr()


def test_calls_are_listed_newest_first(folder, capsys):
    first, second = record(folder, number=1), record(folder, number=2)
    status, out, _ = parley(capsys, "calls", "list", "--json")
    assert status == 0
    assert [json.loads(line)["id"] for line in out.splitlines()] == [second, first]
    assert "agent_ended" in parley(capsys, "calls", "list", "--agent", "restaurant")[1]
    assert parley(capsys, "calls", "list", "--agent", "clinic")[1] == "No calls are recorded here.\n"


@pytest.mark.parametrize("setting", [None, "calls", "{}/calls"])
def test_folder_of_the_servers_setting_is_the_default(folder, capsys, monkeypatch, tmp_path, setting):
    """Of both commands, in any working directory; a relative one is in the checkout."""
    call = record(folder)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    if setting is not None:
        monkeypatch.setenv("PARLEY_VOICE_AGENT_CALLS", setting.format(tmp_path))
    assert call in parley(capsys, "calls", "list", "--json")[1]
    assert "[[scenario]]" in parley(capsys, "test", "--from-call", call)[1]


def test_call_is_shown_by_time_without_what_terminals_obey(folder, capsys):
    status, out, _ = parley(capsys, "calls", "show", record(folder))
    assert status == 0
    lines = [line.partition("  ")[2] for line in out.splitlines() if line.startswith("00:")]
    assert lines == [
        "agent: Good evening.",
        "user: A table",
        "user: for [four], please.",
        'tool find_table{"people":4,"terrace":true,"note":null} → {"at":["20:00",null]}',
        'tool greet{} → {"ok":true}',
        "agent: At  [31meight, (interrupted)",
        "user pressed 12#",
        'closed {"reason":"agent_ended"}',
    ]
    assert "\x1b" not in out


def test_call_is_exported_and_deleted(folder, capsys, tmp_path):
    entry = record(folder)
    assert parley(capsys, "calls", "export", entry, "--out", "copy")[0] == 0
    assert sorted(path.name for path in (tmp_path / "copy").iterdir()) == ["call.json", "events.jsonl"]
    assert parley(capsys, "calls", "export", entry, "--out", "copy")[0] == 2
    assert parley(capsys, "calls", "delete", entry)[0] == 0
    assert folder.entries.newest() == []


@pytest.mark.parametrize("action", ["show", "delete"])
def test_unknown_call_is_an_error(folder, capsys, action):
    record(folder)
    status, _, err = parley(capsys, "calls", action, "../calls")
    assert status == 1
    assert "there is no call '../calls'" in err


@pytest.fixture
def closed_port():
    """Where nothing listens."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


@pytest.fixture
def stored(monkeypatch, closed_port):
    """A store, which is away, for calls."""
    monkeypatch.setenv("PARLEY_VOICE_AGENT_CALLS_STORE", f"s3://{BUCKET}/calls")
    for name in ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "REGION"):
        monkeypatch.setenv(f"AWS_{name}", "voice-keeper")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{closed_port}")
    monkeypatch.setattr(store, "_RETRIES", 0)


@pytest.mark.parametrize("command", [["show"], ["export", "--out", "copy"]])
def test_call_that_is_not_uploaded_is_read_here_and_nowhere_else(
    stored, folder, capsys, monkeypatch, command
):
    entry = record(folder)
    action, *options = command
    with pytest.raises(OSError, match="s3://"):
        open_calls(folder.path).upload_finished()
    assert parley(capsys, "calls", action, entry, *options)[0] == 0
    shutil.rmtree(folder.path / entry)  # so it is for a call of another server
    status, _, err = parley(capsys, "calls", action, entry, *options)
    assert (status, f"s3://{BUCKET}/calls: " in err) == (2, True)
    with serving() as reachable:
        monkeypatch.setenv("AWS_ENDPOINT_URL", reachable.endpoint)
        status, _, err = parley(capsys, "calls", action, entry, *options)
    assert (status, f"do not have the files of {entry}, or not yet" in err) == (1, True)


def test_file_that_is_no_list_is_an_error(folder, capsys):
    record(folder)
    (folder.path / "calls.sqlite3").write_text("no database")
    status, _, err = parley(capsys, "calls", "list")
    assert status == 2
    assert "calls.sqlite3 cannot be used: file is not a database" in err


def test_call_becomes_a_scenario(folder, capsys, tmp_path):
    status, out, _ = parley(capsys, "test", "--from-call", record(folder))
    assert status == 0
    assert "# answered: At  [31meight," in out
    (tmp_path / "restaurant.tests.toml").write_text(out)
    (scenario,) = load_scenarios([tmp_path / "restaurant.tests.toml"], own_agent=True)
    booking, keys = scenario.exchanges
    assert (booking.kind, booking.words) == ("say", "a table for (four), please.")
    assert [one.name for one in booking.tools] == ["find_table", "greet"]
    assert booking.tools[0].arguments == {"people": 4, "terrace": True, "note": None}
    assert (keys.kind, keys.content, keys.tools) == ("dtmf", "12#", ())
    outputs = {tool.name: tool.output for tool in scenario.tools}
    assert outputs == {"find_table": '{"at":["20:00",null]}', "greet": {"ok": True}}
    assert scenario.expect.ended_by == "agent"


@pytest.mark.parametrize(
    ("tool", "arguments", "expected"),
    [
        ("book", {"from": "Rome"}, (ExpectedCall("book", {}, is_partial=True),)),
        ("book", {"for people": 4}, (ExpectedCall("book", {}, is_partial=True),)),
        ("class", {"a": 1}, None),
        ("3d", {"a": 1}, None),
        ("find-table", {"a": 1}, None),
    ],
)
def test_call_of_a_tool_that_python_cannot_write_becomes_a_scenario_that_loads(
    folder, capsys, tool, arguments, expected
):
    events = [
        EVENTS[1],
        {"at_ms": 2_000, "event": {"type": "tool_run", "name": tool, "arguments": arguments}},
    ]
    _, out, _ = parley(capsys, "test", "--from-call", record(folder, events))
    file = folder.path / "it.tests.toml"
    file.write_text(out)
    (scenario,) = load_scenarios([file], own_agent=True)
    assert scenario.exchanges[0].tools == expected


def test_exported_folder_becomes_a_scenario(folder, capsys):
    parley(capsys, "calls", "export", record(folder), "--out", "copy")
    assert "[[scenario.exchange]]" in parley(capsys, "test", "--from-call", "copy")[1]


def test_call_of_a_caller_who_said_nothing_becomes_no_scenario(folder, capsys):
    status, _, err = parley(capsys, "test", "--from-call", record(folder, EVENTS[:1]))
    assert status == 2
    assert "the caller said nothing" in err


def test_command_without_agent_and_call_is_wrong_usage(capsys):
    assert parley(capsys, "test")[0] == 2
