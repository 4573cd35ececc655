"""NVML, and the used memory of the GPUs by it.

Apart because the agent knows no hardware.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from parley.metrics import Family, MetricsRecorder


def record_gpu_memory(metrics: MetricsRecorder, family: Family) -> None:
    """Set the gauge ``family`` with the label ``gpu`` for each GPU that may be read."""
    nvml = open_nvml()
    for index in range(nvml.nvmlDeviceGetCount() if nvml else 0):
        try:
            memory = nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByIndex(index))
        except nvml.NVMLError:
            continue  # without the right to read it, or lost
        metrics.set(family, memory.used, gpu=str(index))


@cache
def open_nvml() -> Any:
    """NVML's module, ready for use; None: it is not installed, or there is no driver."""
    try:
        import pynvml  # noqa: PLC0415 - of the gpu profile only
    except ImportError:
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    return pynvml
