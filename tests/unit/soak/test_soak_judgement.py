"""What is made of the journal of a soak."""

from __future__ import annotations

import json

import pytest
from soak_judgement import judge, read

EVERY_S = 15


def use(role, pid, **fields):
    usual = {"anonymous_kib": 40_960, "shared_kib": 20_480, "threads": 9, "descriptors": 20, "started": 0.0}
    return {"role": role, "pid": pid, **usual, **fields}


def sample(at_s, *uses, **fields):
    processes = list(uses) or [use("tritonserver", 10), use("espeak_0_0", 11), use("gateway", 12)]
    return {
        "record": "sample",
        "at_s": at_s,
        "sessions": at_s,
        "outcomes": {},
        "processes": processes,
        "shared_memory": {"regions": 3, "kib": 3072},
        "gateway_tasks": {"run": 4, "watch": 1},
        "gateway_channels": 1,
        "caller_tasks": {"run": 4},
        "caller_channels": 1,
        **fields,
    }


def kill(at_s=2000.0, restored_s=2001.0, model="espeak", **fields):
    usual = {"instance": f"{model}_0_0", "pid": 11, "server_replaced": False}
    return {
        "record": "restored",
        "at_s": restored_s or at_s,
        "kill": {"at_s": at_s, "model": model, "restored_s": restored_s, **usual, **fields},
    }


def failure(kills=(), outcome="LostTurnError", **fields):
    return {
        "record": "failure",
        "at_s": 2010.0,
        "what": "conversation",
        "error": f"{outcome}()",
        "outcome": outcome,
        "kills": list(kills),
        **fields,
    }


def hours(count, make=sample):
    return [make(at_s) for at_s in range(0, int(3600 * count), EVERY_S)]


def growth(judgement, role, name):
    return next(each for each in judgement.growth if (each.role, each.name) == (role, name))


def test_that_a_soak_in_which_nothing_happens_passes():
    found = judge(hours(2))
    assert found.passed
    assert found.problems == []
    assert {each.verdict for each in found.growth} == {"flat"}
    assert found.hours == pytest.approx(2, abs=0.01)


@pytest.mark.parametrize(
    ("role", "name", "fields"),
    [
        ("gateway", "private memory", {"anonymous_kib": 10 * 1024}),
        ("gateway", "descriptors", {"descriptors": 4}),
        ("tritonserver", "threads", {"threads": 3}),
    ],
)
def test_that_what_grows_steadily_is_found(role, name, fields):
    def make(at_s):
        grown = {key: int(100 + per_hour * at_s / 3600) for key, per_hour in fields.items()}
        return sample(at_s, use(role, 10, **grown))

    found = judge(hours(2, make))
    assert not found.passed
    assert [(each.role, each.name) for each in found.growth if each.verdict == "grows"] == [(role, name)]


def test_that_what_grows_at_first_does_not_grow_after_a_longer_warm_up():
    def make(at_s):
        return sample(at_s, use("gateway", 10, anonymous_kib=40_960 + 2 * min(at_s, 9_000)))

    records = hours(4, make)
    assert growth(judge(records), "gateway", "private memory").verdict == "grows"
    assert growth(judge(records, warm_s=9_000), "gateway", "private memory").verdict == "flat"


def test_that_channels_and_tasks_and_shared_memory_are_judged():
    def make(at_s):
        hour = at_s / 3600
        return sample(
            at_s,
            gateway_channels=int(1 + 10 * hour),
            gateway_tasks={"run": int(4 + 20 * hour)},
            shared_memory={"regions": 3, "kib": int(3072 + 4096 * hour)},
        )

    found = judge(hours(2, make))
    assert {(each.role, each.name) for each in found.growth if each.verdict == "grows"} == {
        ("gateway", "channels"),
        ("gateway", "tasks"),
        ("regions of shared memory", "size"),
    }


def test_that_a_new_process_begins_a_new_series():
    def make(at_s):
        espeak = use("espeak_0_0", 11) if at_s < 3600 else use("espeak_0_0", 21, started=3600.0)
        espeak["anonymous_kib"] += 0 if at_s < 3600 else 200 * 1024
        return sample(at_s, use("tritonserver", 10), espeak)

    found = judge([*hours(2.5, make), kill(3599.0, 3600.0)])
    memory = growth(found, "espeak_0_0", "private memory")
    assert (memory.verdict, memory.processes) == ("flat", 2)
    assert memory.level == 240


@pytest.mark.parametrize("killed", [True, False])
def test_that_what_dead_processes_leave_in_the_server_is_counted_by_itself(killed):
    times = [float(at_s) for at_s in range(600, 7200, 600)]

    def make(at_s):
        dead = sum(time <= at_s for time in times)
        uses = [use("tritonserver", 10, threads=100 + 6 * dead), use("espeak_0_0", 20 + dead)]
        return sample(at_s, *uses, shared_memory={"regions": 3 + dead, "kib": 3072 + 1024 * dead})

    kills = [kill(time, time + 1) for time in times] if killed else []
    found = judge([*hours(2, make), *kills])
    assert found.passed is killed
    assert growth(found, "tritonserver", "threads").verdict == "flat"
    assert growth(found, "regions of shared memory", "number").verdict == "flat"
    left = {each.name: each.median for each in found.leftovers}
    assert left == (
        {
            "tritonserver: private memory": 0,
            "tritonserver: shared memory": 0,
            "tritonserver: descriptors": 0,
            "tritonserver: threads": 6,
            "regions of shared memory: size": 1,
            "regions of shared memory: number": 1,
        }
        if killed
        else {}
    )


def test_that_a_kill_which_leaves_more_than_is_known_is_a_problem():
    def make(at_s):
        return sample(at_s, use("tritonserver", 10, threads=100 if at_s < 2000 else 200))

    assert "threads" in judge([*hours(1, make), kill()]).problems[0]


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        (failure(), True),
        (failure([2000.0]), False),
        (failure([2000.0], "CrossedError"), True),
        (failure([2000.0], "did not end"), True),
        (failure([2000.0], "CallLostError"), True),
        (failure([2000.0, 2100.0], "CallLostError"), False),
    ],
)
def test_that_kills_excuse_what_they_can_explain(record, problem):
    kills = [kill(), kill(2100.0, 2101.0, "voice_agent", pid=13)]
    found = judge([*hours(1), *kills, record])
    espeak = [each for each in found.problems if "was not replaced" in each]
    assert espeak == []
    assert bool(found.problems) is problem
    assert found.excused == ({} if problem else {"conversation": {record["outcome"]: 1}})


def test_that_a_process_which_is_not_replaced_is_a_problem():
    assert "not replaced" in judge([*hours(1), kill(restored_s=None)]).problems[0]


def test_that_a_process_which_ends_by_itself_is_reported_once():
    def make(at_s):
        uses = [use("tritonserver", 10)] + ([use("espeak_0_0", 11)] if at_s < 1000 else [])
        return sample(at_s, *uses)

    found = judge(hours(1, make))
    assert found.problems == ["espeak_0_0 ended at 1005 s without having been killed"]


def test_that_a_journal_that_was_cut_off_is_read(tmp_path):
    path = tmp_path / "soak.json"
    path.write_text("\n".join(json.dumps(record) for record in hours(1)) + '\n{"record": "sam')
    assert len(read(path)) == 240
    assert not judge(read(path)).is_complete


def test_that_a_journal_that_is_damaged_in_the_middle_is_refused(tmp_path):
    path = tmp_path / "soak.json"
    path.write_text('{"record": "begin"\n{"record": "end"}\n')
    with pytest.raises(ValueError, match="Expecting"):
        read(path)


def test_that_nothing_is_judged_without_samples():
    with pytest.raises(ValueError, match="no sample"):
        judge([{"record": "begin"}])
