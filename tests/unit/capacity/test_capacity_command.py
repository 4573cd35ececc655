"""``parley capacity`` from its arguments to its file, with levels that are not held for real."""

from __future__ import annotations

import asyncio
import json
from contextlib import asynccontextmanager

import pytest

from parley_client.cli.capacity.callers import LevelResult
from parley_client.cli.commands import capacity
from parley_client.cli.program import main


@pytest.fixture
def levels(monkeypatch):
    """Says what each level measures: waits in milliseconds, or an exception."""

    def say(measured):
        async def hold(plan, calls, turns, limit_ms, usage=None):
            del plan, turns, usage
            await asyncio.sleep(0)
            waits = measured(calls)
            if isinstance(waits, BaseException):
                raise waits
            result = LevelResult(calls, list(waits))
            result.verdict = result.judge(limit_ms)
            return result

        monkeypatch.setattr(capacity, "hold_level", hold)

    return say


def run(tmp_path, *options):
    path = tmp_path / "new" / "capacity.json"
    server = ("--server", "127.0.0.1:1", "--profile", "tiny")
    status = main(["capacity", *server, "--json", str(path), *options])
    return status, json.loads(path.read_text()) if path.exists() else None


def test_the_file_has_the_values_of_an_autoscaler(levels, tmp_path, capsys):
    levels(lambda calls: [400.0 if calls <= 3 else 4_000.0] * 60)
    status, found = run(tmp_path, "--price-per-hour", "0.72", "--fill", "0.5")
    assert status == 0
    assert (found["calls_held"], found["is_bounded"], found["complete"]) == (3, True, True)
    assert (found["calls_per_replica"], found["replicas"]["10"]) == (1.5, 7)
    assert found["cost_per_call_minute"] == pytest.approx(0.008)
    assert [level["calls"] for level in found["levels"]] == [1, 2, 4, 3]
    assert "Calls held with a p95 of 1000 ms: 3." in capsys.readouterr().out


def test_turns_that_cannot_be_enough_are_warned_of(levels, tmp_path, capsys):
    levels(lambda _: [400.0] * 20)
    run(tmp_path, "--turns", "20", "--most", "1")
    assert "that takes 59 turns" in capsys.readouterr().out


def test_capacity_of_zero_is_a_failure(levels, tmp_path):
    levels(lambda _: [4_000.0] * 60)
    status, found = run(tmp_path)
    assert (status, found["calls_held"]) == (1, 0)


def test_an_interrupted_search_keeps_its_levels(levels, tmp_path, capsys):
    levels(lambda calls: [400.0] * 60 if calls < 4 else asyncio.CancelledError())
    status, found = run(tmp_path)
    assert status == 130
    assert (found["complete"], found["calls_held"], len(found["levels"])) == (False, 2, 2)
    assert "The search was interrupted." in capsys.readouterr().out


def test_refusal_of_a_single_call_is_reported(tmp_path, monkeypatch, capsys):
    async def refuses(*_):
        return LevelResult(1, refused=["connect_failed"])

    monkeypatch.setattr(capacity, "hold_level", refuses)
    assert run(tmp_path)[0] == 1
    error = capsys.readouterr().err
    assert "nothing answers at 127.0.0.1:1" in error
    assert "make serve" in error


def test_failed_single_call_is_reported_with_its_code(tmp_path, monkeypatch, capsys):
    async def refuses(*_):
        return LevelResult(1, refused=["overloaded"])

    @asynccontextmanager
    async def connects():
        yield

    monkeypatch.setattr(capacity, "hold_level", refuses)
    monkeypatch.setattr(capacity, "_connector", lambda *_: connects)
    assert run(tmp_path)[0] == 1
    assert "a single call failed: overloaded" in capsys.readouterr().err


def test_unusable_files_are_noticed_before_the_search(levels, tmp_path, capsys):
    levels(lambda _: AssertionError())
    assert run(tmp_path, "--json", str(tmp_path))[0] == 1
    assert "is a folder; name a file" in capsys.readouterr().err
    assert run(tmp_path, "--tools", str(tmp_path / "none.py"))[0] == 1
    assert "none.py: there is no such file" in capsys.readouterr().err


def test_endless_warm_up_is_reported(tmp_path, monkeypatch, capsys):
    async def hangs(*_):
        return LevelResult(1, overdue_s=90.0)

    monkeypatch.setattr(capacity, "hold_level", hangs)
    assert run(tmp_path)[0] == 1
    assert "a single call held no turn within 90 s" in capsys.readouterr().err


@pytest.mark.parametrize(
    "options",
    [
        ("--start", "9", "--most", "8"),
        ("--start", "0"),
        ("--turns", "0"),
        ("--gateway", "http://127.0.0.1:1"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused(tmp_path, options):
    assert run(tmp_path, *options)[0] == 2
