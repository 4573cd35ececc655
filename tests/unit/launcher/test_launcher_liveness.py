"""When the silence of an event loop is too long, and when the wall clock was set back."""

from __future__ import annotations

import os
import threading

import pytest

from parley.canaries.models import CanaryLateError
from parley.launcher import liveness
from parley.launcher.liveness import HeartbeatWatch, WallClock, ask_canary
from parley.launcher.restarts import SupervisorLimits
from parley.triton.request_loop import heartbeat_path

PID = 7


class Process:
    """One that beats, or does not, on a clock of its own."""

    def __init__(self, folder, monkeypatch):
        self._path = heartbeat_path(folder, PID)
        self._beats = 0
        self.used_s = 0.0
        self._watch = HeartbeatWatch(folder, PID, SupervisorLimits(silent_s=8.0, working_s=60.0))
        monkeypatch.setattr(liveness, "processor_demand_s", lambda processes: self.used_s)

    def beat(self):
        self._path.touch()
        self._beats += 1
        os.utime(self._path, ns=(self._beats, self._beats))

    def silent_from(self, since, until):
        """The first second in which it is silent for too long; None: none."""
        looks = (since + tenth / 10 for tenth in range(round(10 * (until - since))))
        return next((now for now in looks if self._watch.is_silent(now)), None)


@pytest.fixture
def process(tmp_path, monkeypatch):
    return Process(tmp_path, monkeypatch)


@pytest.mark.parametrize(
    ("beats", "used_s", "silent_s"), [(False, 0.0, None), (True, 0.0, 8.0), (True, 100.0, 60.0)]
)
def test_process_is_silent_some_time_after_its_last_beat(process, beats, used_s, silent_s):
    if beats:
        process.beat()
    assert process.silent_from(0, 2.5) is None
    process.used_s = used_s  # it works
    found = process.silent_from(2.5, 100)
    assert found == (pytest.approx(silent_s) if silent_s else None)


def test_process_that_beats_is_not_silent_however_long(process):
    for second in range(0, 100, 5):
        process.beat()
        assert process.silent_from(second, second + 5) is None


@pytest.mark.parametrize(
    ("readings", "back_s"),
    [
        ([(10, 10), (11, 11)], 0),
        ([(10, 10), (4_610, 11)], 0),
        ([(4_610, 10), (1_011, 11)], 3_600),
        ([(10, 10), (12, 12, 40), (41, 41)], 0),  # the thread had to wait after it had read the wall clock
        ([(10, 10), (40, 12, 40), (41, 41)], 0),  # and before
    ],
)
def test_a_wall_clock_that_is_set_back_is_noticed(readings, back_s):
    walls = iter([wall for wall, *_ in readings])
    steady = iter([at for _, *around in readings for at in (around[0], around[-1])])
    clock = WallClock(lambda: next(walls), lambda: next(steady))
    assert max(clock.set_back_s() for _ in readings) == back_s


@pytest.mark.parametrize("waits", [True, False])
def test_only_processes_behind_a_late_canary_are_measured(monkeypatch, waits):
    measured = threading.Event()

    def demand_s(_):
        measured.set()
        return 0.0

    def canary(*_):
        if waits:
            assert measured.wait(20), "while the canary waits"
            raise CanaryLateError("late")

    monkeypatch.setattr(liveness, "processor_demand_s", demand_s)
    outcome = ask_canary(canary, "", processes=[1], deadline_s=0.1 if waits else 60.0, wait=lambda _: None)
    assert outcome.error == ("late" if waits else "")
    assert measured.is_set() == waits
