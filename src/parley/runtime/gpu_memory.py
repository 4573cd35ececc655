"""NVML: the GPUs that CUDA offers, and their used memory.

In a file of its own, because the agent must not import code for GPUs.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from parley.metrics import Family, MetricsRecorder

VISIBLE_VARIABLE = "CUDA_VISIBLE_DEVICES"
_DRIVER_FILES = (Path("/dev/nvidiactl"), Path("/dev/dxg"))
"""Of the driver; the second one in WSL."""


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


def lacks_gpu(environment: Mapping[str, str]) -> bool:
    """Whether there is certainly no GPU: no driver, or the environment hides all of them."""
    return environment.get(VISIBLE_VARIABLE) == "" or not any(path.exists() for path in _DRIVER_FILES)


def find_device(nvml: Any, number: int, environment: Mapping[str, str]) -> Any:
    """NVML's handle of the GPU that is CUDA's device of this number; None: there is none, or it is a slice.

    ``CUDA_VISIBLE_DEVICES`` has numbers and UUIDs, of which a beginning is enough that no other GPU has.
    Numbers are NVML's, which CUDA has, too, unless GPUs are of different kinds: it then needs
    ``CUDA_DEVICE_ORDER=PCI_BUS_ID``.

    Raises:
        nvml.NVMLError: a GPU cannot be read.
    """
    count = nvml.nvmlDeviceGetCount()
    visible = environment.get(VISIBLE_VARIABLE)
    names = list(map(str, range(count))) if visible is None else visible.split(",")
    if number >= len(names):
        return None
    device = None
    for name in names[: number + 1]:
        device = _find_named(nvml, name.strip(), count)
        if device is None:  # CUDA offers nothing of what follows either
            return None
    return device


def _find_named(nvml: Any, name: str, count: int) -> Any:
    if name.isdecimal():
        return nvml.nvmlDeviceGetHandleByIndex(int(name)) if int(name) < count else None
    if not name.startswith("GPU-"):
        return None
    devices = map(nvml.nvmlDeviceGetHandleByIndex, range(count))
    found = [device for device in devices if as_text(nvml.nvmlDeviceGetUUID(device)).startswith(name)]
    return found[0] if len(found) == 1 else None


def read_capability(nvml: Any, device: Any) -> tuple[int, int]:
    """The compute capability of a GPU, such as (9, 0).

    Raises:
        nvml.NVMLError: it cannot be read.
    """
    major, minor = nvml.nvmlDeviceGetCudaComputeCapability(device)
    return major, minor


def as_text(value: str | bytes) -> str:
    """What NVML calls a text; before version 12 its module has bytes."""
    return value.decode() if isinstance(value, bytes) else value
