"""What is made of the journal of a soak."""

from __future__ import annotations

import io
import json

import numpy as np
import pytest
from rich.console import Console
from soak.growth import DESCRIPTORS, HORIZON_H, MEMORY, THREADS
from soak.judgement import judge, read, show

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

    found = judge(hours(4, make))
    assert not found.passed
    assert [(each.role, each.name) for each in found.growth if each.verdict == "grows"] == [(role, name)]


WEEK_S = 3600 * HORIZON_H


def memory_of_the_gateway(length_h, kib):
    """The judgement of a soak in which the gateway has so many KiB, with noise."""
    chance = np.random.default_rng(1)

    def make(at_s):
        return sample(at_s, use("gateway", 10, anonymous_kib=int(kib(at_s) + 100 * chance.normal())))

    return growth(judge(hours(length_h, make)), "gateway", "private memory")


@pytest.mark.parametrize("warm_up_kib", [0, 1024])
def test_a_leak_that_would_pass_its_bound_in_a_week_grows_within_two_hours(warm_up_kib):
    leak = 1.1 * MEMORY.bound * 1024 / WEEK_S
    found = memory_of_the_gateway(2, lambda at_s: 90_000 + warm_up_kib * np.log2(1 + at_s / 60) + leak * at_s)
    assert found.verdict == "grows"
    assert found.slope.high >= MEMORY.bound / HORIZON_H


def test_memory_that_grows_with_the_logarithm_of_time_does_not_grow():
    """One MiB whenever the time doubles: so the gateway's allocator fills."""
    assert memory_of_the_gateway(2, lambda at_s: 90_000 + 1024 * np.log2(1 + at_s / 60)).verdict != "grows"


def test_memory_that_fills_for_one_hour_of_two_is_flat():
    assert memory_of_the_gateway(2, lambda at_s: 90_000 + 4 * min(at_s, 3600)).verdict in ("flat", "below")


@pytest.mark.parametrize("excess", [0.9, 1.3])
@pytest.mark.parametrize(
    ("role", "name", "quantity", "field"),
    [
        ("gateway", "private memory", MEMORY, "anonymous_kib"),
        ("gateway", "descriptors", DESCRIPTORS, "descriptors"),
        ("espeak_0_0", "threads", THREADS, "threads"),
    ],
)
def test_a_process_that_gains_more_in_ten_minutes_than_in_a_week_grows(role, name, quantity, field, excess):
    gained = excess * quantity.bound * (1024 if quantity is MEMORY else 1)

    def make(at_s):
        # Of the samples of the second minute and of the last one, the medians are 465 s apart.
        return sample(at_s, use(role, 10, **{field: int(100 + gained * at_s / 465)}))

    found = judge(hours(1 / 6, make))
    assert growth(found, role, name).verdict == ("grows" if excess > 1 else "bounded")
    assert found.passed is (excess < 1)


def test_what_kills_may_leave_in_the_server_is_no_gain():
    def make(at_s):
        dead = int(at_s // 60)
        uses = [use("tritonserver", 10, threads=100 + 37 * dead), use("espeak_0_0", 20 + dead, started=at_s)]
        return sample(at_s, *uses)

    kills = [kill(60.0 * number, 60.0 * number + 1) for number in range(1, 10)]
    found = judge([*hours(1 / 6, make), *kills])
    threads = growth(found, "tritonserver", "threads")
    assert (threads.verdict, threads.gain > THREADS.bound) == ("bounded", True)


def test_a_process_of_two_minutes_is_too_young_for_a_judgement():
    found = judge(hours(1 / 30))
    assert {each.verdict for each in found.growth} == {"too short"}


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
        espeak = use("espeak_0_0", 11) if at_s < 7200 else use("espeak_0_0", 21, started=7200.0)
        espeak["anonymous_kib"] += 0 if at_s < 7200 else 200 * 1024
        return sample(at_s, use("tritonserver", 10), espeak)

    found = judge([*hours(4, make), kill(7199.0, 7200.0)])
    memory = growth(found, "espeak_0_0", "private memory")
    assert (memory.verdict, memory.processes) == ("flat", 2)
    assert memory.level == 240


@pytest.mark.parametrize("killed", [True, False])
def test_that_what_dead_processes_leave_in_the_server_is_counted_by_itself(killed):
    times = [float(at_s) for at_s in range(600, 14_400, 600)]

    def make(at_s):
        dead = sum(time <= at_s for time in times)
        uses = [use("tritonserver", 10, threads=100 + 4 * dead), use("espeak_0_0", 20 + dead)]
        return sample(at_s, *uses, shared_memory={"regions": 3 + dead, "kib": 3072 + 1024 * dead})

    kills = [kill(time, time + 1) for time in times] if killed else []
    found = judge([*hours(4, make), *kills])
    assert found.passed is killed
    assert growth(found, "tritonserver", "threads").verdict == "flat"
    assert growth(found, "regions of shared memory", "number").verdict == "flat"
    left = {each.name: each.median for each in found.leftovers}
    assert left == (
        {
            "tritonserver: private memory": 0,
            "tritonserver: shared memory": 0,
            "tritonserver: descriptors": 0,
            "tritonserver: threads": 4,
            "regions of shared memory: size": 1,
            "regions of shared memory: number": 1,
        }
        if killed
        else {}
    )


@pytest.mark.parametrize(("left", "passed"), [(37, True), (39, False)])
def test_kills_that_follow_each_other_closely_share_what_they_left(left, passed):
    """Seven, one a minute: Triton is seen settled before the first and after the last."""
    times = [60.0 * number for number in range(1, 8)]

    def make(at_s):
        return sample(at_s, use("tritonserver", 10, threads=100 + left * sum(time <= at_s for time in times)))

    found = judge([*hours(1 / 5, make), *(kill(time, time + 1) for time in times)])
    threads = next(each for each in found.leftovers if each.name == "tritonserver: threads")
    assert (threads.kills, threads.median) == (7, left)
    assert (found.problems == []) is passed


def complete():
    """A soak that ended by itself, in which everything was tried."""
    outcomes = {"conversation": {"answered, moved": 3, "given up": 2}}
    return [
        {"record": "begin", "at_s": 0.0, "unix_s": 0.0, "kinds": {"conversation": 1}},
        *hours(1, lambda at_s: sample(at_s, outcomes=outcomes)),
        kill(),
        {"record": "canaries", "at_s": 60.0},
        {"record": "end", "at_s": 3600.0},
    ]


def test_a_complete_soak_says_how_much_it_has_tried():
    found = judge(complete())
    assert found.problems == []
    assert (found.answered, len(found.kills), found.canaries) == (3, 1, 1)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda records: [each for each in records if each["record"] != "restored"], "nothing was killed"),
        (
            lambda records: [each for each in records if each["record"] != "canaries"],
            "no canary was answered",
        ),
        (lambda records: [{**each, "outcomes": {}} for each in records], "no conversation was answered"),
        (lambda records: [{**each, "sessions": 0} for each in records], "no session was held"),
    ],
)
def test_a_complete_soak_that_has_not_tried_something_fails(change, problem):
    assert judge(change(complete())).problems == [problem]


def test_kills_after_which_the_server_was_not_seen_fail_a_complete_soak():
    records = [each if each["record"] != "restored" else kill(3500.0, 3501.0) for each in complete()]
    assert judge(records).problems == ["what kills leave was not seen"]


def test_a_complete_soak_of_two_minutes_fails():
    records = [each for each in complete() if each["record"] != "restored" and each["at_s"] < 120]
    assert judge([*records, {"record": "end", "at_s": 120.0}]).problems == [
        "nothing was killed",
        "no process was watched for long enough",
    ]


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


def test_show_of_a_judgement_has_sessions_kills_growth_and_problems():
    records = [*hours(1), kill(), failure(error="LostTurnError('no answer')")]
    records[-3]["outcomes"] = {"conversation": {"answered": 7, "LostTurnError": 1}}
    output = io.StringIO()
    show(judge(records), Console(file=output, width=200))
    shown = output.getvalue()
    for text in ("answered", "Left by each process", "tritonserver", "bounded", "no answer", "1 problems"):
        assert text in shown
