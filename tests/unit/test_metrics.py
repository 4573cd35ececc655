"""Metrics that are recorded in memory."""

from __future__ import annotations

import threading

import pytest

from parley import metrics as module
from parley.metrics import DROPPED, Family, MetricsRecorder

CALLS = Family("calls_total", "counter", "Calls", ("outcome",), from_start=(("opened",), ("refused",)))
BYTES = Family("bytes_total", "counter", "Bytes")
OPEN = Family("open", "gauge", "Open calls", ("instance",))
WAIT = Family("wait_seconds", "histogram", "Waits", buckets=(0.1, 1.0))


def test_counts_are_summed_until_they_are_drained():
    metrics = MetricsRecorder((CALLS, BYTES))
    assert metrics.drain().counts == {
        (CALLS, (("outcome", "opened"),)): 0,
        (CALLS, (("outcome", "refused"),)): 0,
        (BYTES, ()): 0,
        (DROPPED, ()): 0,
    }
    metrics.count(BYTES, 640)
    metrics.count(BYTES, 640)
    metrics.count(CALLS, outcome="opened")
    assert metrics.drain().counts == {(BYTES, ()): 1280, (CALLS, (("outcome", "opened"),)): 1}
    assert metrics.drain().counts == {}


def test_a_gauge_keeps_its_last_value_and_a_histogram_every_observation():
    metrics = MetricsRecorder((OPEN, WAIT))
    metrics.set(OPEN, 3, instance="a")
    metrics.set(OPEN, 2, instance="a")
    metrics.observe(WAIT, 0.5)
    metrics.observe(WAIT, 0.25)
    changes = metrics.drain()
    assert changes.values == {(OPEN, (("instance", "a"),)): 2}
    assert changes.observations == [(WAIT, (), 0.5), (WAIT, (), 0.25)]


def test_the_number_of_series_is_bounded():
    metrics = MetricsRecorder((CALLS,))
    metrics.drain()
    for number in range(2 * module.MAX_SERIES):
        metrics.count(CALLS, outcome=f"other {number}")
    counts = metrics.drain().counts
    assert len(counts) <= module.MAX_SERIES + 1
    assert sum(counts.values()) == 2 * module.MAX_SERIES
    assert counts[CALLS, (("outcome", "other"),)] > 1


def test_observations_that_wait_are_bounded_and_the_rest_is_counted():
    metrics = MetricsRecorder((WAIT,))
    for _ in range(module.MAX_OBSERVATIONS + 5):
        metrics.observe(WAIT, 1.0)
    changes = metrics.drain()
    assert len(changes.observations) == module.MAX_OBSERVATIONS
    assert changes.counts[DROPPED, ()] == 5


def test_what_is_no_family_of_the_process_is_not_kept():
    metrics = MetricsRecorder(())
    metrics.count(BYTES, 1)
    metrics.set(OPEN, 1, instance="a")
    metrics.observe(WAIT, 1.0)
    changes = metrics.drain()
    assert (changes.counts, changes.values, changes.observations) == ({}, {}, [])


def test_a_collector_that_fails_takes_nothing_else_with_it(caplog):
    def fail():
        raise RuntimeError("no driver")

    metrics = MetricsRecorder((OPEN,))
    metrics.collect_with(fail)
    metrics.collect_with(lambda: metrics.set(OPEN, 1, instance="a"))
    assert metrics.drain().values == {(OPEN, (("instance", "a"),)): 1}
    assert "no driver" in caplog.text


def test_counts_of_several_threads_add_up():
    metrics = MetricsRecorder((BYTES,))
    total = 0

    def record():
        for _ in range(5_000):
            metrics.count(BYTES, 1)

    threads = [threading.Thread(target=record) for _ in range(4)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        total += metrics.drain().counts.get((BYTES, ()), 0)
    total += metrics.drain().counts.get((BYTES, ()), 0)
    assert total == 20_000


def test_a_label_that_is_missing_is_an_error():
    with pytest.raises(KeyError):
        MetricsRecorder((CALLS,)).count(CALLS)
