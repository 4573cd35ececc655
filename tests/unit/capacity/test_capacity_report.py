"""What follows from a capacity."""

from __future__ import annotations

import json
import math

import pytest
from rich.console import Console

from parley.runtime import gpu_memory
from parley_client.cli.capacity import usage
from parley_client.cli.capacity.callers import LevelResult
from parley_client.cli.capacity.report import Capacity
from parley_client.cli.capacity.search import Found, Verdict
from parley_client.cli.capacity.usage import UsageMeter, gpu_reader


def capacity(held=5, fill=0.8, price=0.6, **more):
    levels = [
        LevelResult(5, [400.0] * 60, cpus=2.0, verdict=Verdict.HELD),
        LevelResult(6, [400.0] * 20 + [math.inf] * 9, refused=["too_many_sessions"], verdict=Verdict.BROKEN),
    ]
    return Capacity(Found(held, is_bounded=True), levels, 1_000.0, fill, price, **more)


@pytest.mark.parametrize(("calls", "replicas"), [(0, 0), (1, 1), (4, 1), (5, 2), (100, 25), (101, 26)])
def test_replicas_leave_the_buffer_free(calls, replicas):
    assert capacity().replicas(calls) == replicas


def test_rounding_adds_no_replica():
    assert capacity(held=3, fill=0.1).replicas(3) == 10


def test_a_minute_of_a_call_costs_its_share_of_a_replica():
    assert capacity().cost_per_minute(4.0) == pytest.approx(0.0025)
    assert capacity(price=None).cost_per_minute(4.0) is None


def test_report_without_held_calls_divides_nothing():
    found = capacity(held=0).to_json()
    assert found["calls_held"] == 0
    assert set(found["replicas"].values()) == {None}
    assert found["cost_per_call_minute"] is None
    assert capacity(held=0).lines() == ["No level is surely held with a p95 of 1000 ms."]


def test_programs_get_numbers_or_null():
    found = json.loads(json.dumps(capacity().to_json(), allow_nan=False))
    assert (found["calls_held"], found["calls_per_replica"], found["cpus_per_call"]) == (5, 4.0, 0.4)
    assert found["levels"][1]["p95_ms"] is None
    assert found["levels"][1]["refused"] == ["too_many_sessions"]


def test_the_result_names_formula_and_buffer():
    text = " ".join(capacity().lines())
    assert "Calls held with a p95 of 1000 ms: 5." in text
    assert "ceil(N / (5 * 0.8))" in text
    assert "The buffer is 20% of each replica." in text
    assert "Busy processors per call: 0.40." in text
    assert "GPUs" not in text
    assert "interrupted" in " ".join(capacity(is_complete=False).lines())


def test_a_level_that_was_unsure_is_named():
    unsure = [LevelResult(1, [900.0] * 30)]
    lines = Capacity(Found(0, is_bounded=True), unsure, 1_000.0, 0.8, None).lines()
    assert lines[1].startswith("At 1 the limit is within the interval of the p95")


def test_a_level_that_was_not_over_by_its_deadline_is_named():
    overdue = [LevelResult(2, [400.0] * 60, overdue_s=90.0, verdict=Verdict.BROKEN)]
    found = Capacity(Found(0, is_bounded=True), overdue, 1_000.0, 0.8, None)
    assert found.lines()[1] == "At 2 the level was not over within 90 s: given up, and broken."
    assert found.to_json()["levels"][0]["overdue_s"] == 90
    console = Console(width=160, record=True)
    console.print(found.table())
    assert "overdue" in console.export_text()


def test_the_table_shows_what_broke_a_level():
    console = Console(width=160, record=True)
    console.print(capacity().table())
    shown = console.export_text()
    assert "too_many_sessions" in shown
    assert "\N{INFINITY}" in shown


async def test_usage_is_a_mean_over_the_level():
    seconds = iter([10.0, 10.5])
    async with UsageMeter(lambda: next(seconds), lambda: [0.5, 1.0]) as meter:
        await usage.asyncio.sleep(0)
    assert meter.cpus > 0
    assert meter.busy_gpus == 1.5


async def test_gpus_that_cannot_be_read_to_the_end_are_unknown(monkeypatch, caplog):
    monkeypatch.setattr(usage, "_SAMPLE_S", 0)
    reads, failed = iter([[0.5], [1.0]]), usage.asyncio.Event()

    def read():
        sample = next(reads, None)
        if sample is None:
            failed.set()
            raise OSError("GPU is lost")
        return sample

    async with UsageMeter(None, read) as meter:
        await failed.wait()
    assert meter.busy_gpus is None
    assert "GPU is lost" in caplog.text


async def test_usage_of_a_remote_machine_is_unknown():
    async with UsageMeter(None) as meter:
        pass
    assert (meter.cpus, meter.busy_gpus) == (None, None)


class Nvml:
    def nvmlDeviceGetCount(self):  # noqa: N802
        return 1

    def nvmlDeviceGetHandleByIndex(self, index):  # noqa: N802
        return index

    def nvmlDeviceGetUtilizationRates(self, handle):  # noqa: N802
        del handle
        return type("Rates", (), {"gpu": 25})


def test_gpus_are_read_by_nvml(monkeypatch):
    monkeypatch.setattr(gpu_memory, "open_nvml", Nvml)
    assert gpu_reader()() == [0.25]
    monkeypatch.setattr(gpu_memory, "open_nvml", lambda: None)
    assert gpu_reader() is None
