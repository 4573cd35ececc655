"""How busy processors and GPUs are."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import Self

from parley.timeouts import cancel_all

_SAMPLE_S = 1.0

_log = logging.getLogger("parley.client")


class UsageMeter:
    """Measures while its ``async with`` lasts.

    Args:
        cpu_s: processor time of the server so far (seconds); None where that is not known.
        gpus: utilisation of each GPU of this machine (0-1); None: it has none, or the server is elsewhere.
    """

    def __init__(
        self, cpu_s: Callable[[], float] | None, gpus: Callable[[], list[float]] | None = None
    ) -> None:
        self._cpu_s = cpu_s
        self._gpus = gpus
        self._before_s = 0.0
        self._began_s = 0.0
        self._samples: list[list[float]] = []
        self._task: asyncio.Task[None] | None = None
        self.cpus: float | None = None
        """Busy processors in the mean, filled on leaving."""
        self.busy_gpus: float | None = None
        """Busy GPUs in the mean; None also where they could not be read to the end."""

    async def __aenter__(self) -> Self:
        self._began_s = time.monotonic()
        self._before_s = self._cpu_s() if self._cpu_s else 0.0
        self._task = asyncio.create_task(self._sample(), name="gpu-usage")
        return self

    async def __aexit__(self, *problem: object) -> None:
        assert self._task is not None
        (ended,) = await cancel_all([self._task])
        wall_s = time.monotonic() - self._began_s
        if self._cpu_s is not None and wall_s > 0:
            self.cpus = (self._cpu_s() - self._before_s) / wall_s
        if isinstance(ended, Exception):
            # The samples so far are of a part of the time only: their mean would be that of another load.
            _log.warning("the usage of GPUs is unknown: %s", ended)
        elif self._samples:
            self.busy_gpus = sum(map(sum, self._samples)) / len(self._samples)

    async def _sample(self) -> None:
        while self._gpus is not None:
            self._samples.append(self._gpus())
            await asyncio.sleep(_SAMPLE_S)


def gpu_reader() -> Callable[[], list[float]] | None:
    """Reads the utilisation of this machine's GPUs; None: NVML is not installed, or there is no GPU."""
    from parley.runtime.gpu_memory import open_nvml  # noqa: PLC0415 - of the server, which is on this machine

    nvml = open_nvml()
    if nvml is None or not nvml.nvmlDeviceGetCount():
        return None
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]

    def read() -> list[float]:
        return [nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100 for handle in handles]

    return read
