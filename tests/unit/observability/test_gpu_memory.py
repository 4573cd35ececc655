"""Memory of GPUs, with a fake of NVML's module."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from parley.metrics import Family, MetricsRecorder
from parley.runtime import gpu_memory

USED = Family("used_bytes", "gauge", "Used memory", ("gpu",))


class NVMLError(Exception):
    pass


@pytest.fixture(autouse=True)
def _fresh():
    gpu_memory.open_nvml.cache_clear()
    yield
    gpu_memory.open_nvml.cache_clear()


def nvml(used, **more):
    def info(index):
        if used[index] is None:
            raise NVMLError("no permission")
        return SimpleNamespace(used=used[index])

    return SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: len(used),
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetMemoryInfo=info,
        **more,
    )


def recorded():
    metrics = MetricsRecorder((USED,))
    gpu_memory.record_gpu_memory(metrics, USED)
    return {labels[0][1]: value for (_, labels), value in metrics.drain().values.items()}


def test_each_gpu_is_a_series(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", nvml([5, 7]))
    assert recorded() == {"0": 5, "1": 7}


def test_a_gpu_that_cannot_be_read_costs_no_other_one(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", nvml([None, 7]))
    assert recorded() == {"1": 7}


def test_without_a_driver_there_is_none(monkeypatch):
    def fail():
        raise NVMLError("no driver")

    module = nvml([5])
    module.nvmlInit = fail
    monkeypatch.setitem(sys.modules, "pynvml", module)
    assert recorded() == {}


def test_without_the_module_there_is_none(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert recorded() == {}
