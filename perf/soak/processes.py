"""The processes that the soak watches, and what they use."""

from __future__ import annotations

import asyncio
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
from harness.servers import Server
from prometheus_client.parser import text_string_to_metric_families

from soak.counted_gateway import CHANNELS, TASKS, live_channels, live_tasks

_PREFIX = re.compile(rb"shm-region-prefix-name=([^\0]+)")
_SHM = Path("/dev/shm")  # noqa: S108 - the kernel's own name for it
_HTTP_S = 10.0
_KIB = 1024


@dataclass(frozen=True)
class Use:
    """One process at one moment."""

    role: str
    """``tritonserver``, ``launcher``, ``gateway``, ``callers``, or a model's instance (``espeak_0_0``)."""
    pid: int
    started: float
    """Seconds since 1970: with the number it identifies the process."""
    anonymous_kib: int
    """Memory that belongs to no file and no shared memory."""
    shared_kib: int
    """Memory that others map too."""
    threads: int
    descriptors: int


def look(server: Server, gateway: int) -> list[Use]:
    """Everything that runs now; a process that ends meanwhile is left out."""
    triton = server.triton_pid
    roles = {server.pid: "launcher", triton: "tritonserver", gateway: "gateway", os.getpid(): "callers"}
    roles |= {stub.pid: stub.instance for stub in server.stubs()}
    for number, child in enumerate(_children(gateway)):
        roles[child] = f"gateway decoder {number}"
    found = []
    for pid, role in roles.items():
        try:
            found.append(_use(pid, role))
        except (psutil.Error, OSError):
            continue
    return found


def _children(pid: int) -> list[int]:
    try:
        return sorted(child.pid for child in psutil.Process(pid).children(recursive=True))
    except psutil.Error:
        return []


def _use(pid: int, role: str) -> Use:
    process = psutil.Process(pid)
    memory = process.memory_full_info()
    return Use(
        role=role,
        pid=pid,
        started=process.create_time(),
        anonymous_kib=(memory.rss - memory.shared) // _KIB,
        shared_kib=(memory.rss - memory.uss) // _KIB,
        threads=process.num_threads(),
        descriptors=process.num_fds(),
    )


def shared_memory(server: Server) -> dict[str, int]:
    """Regions of the server in ``/dev/shm``, and KiB that are allocated, not the size they might grow to."""
    try:
        match = _PREFIX.search(Path(f"/proc/{server.triton_pid}/cmdline").read_bytes())
    except OSError:
        match = None
    regions, kib = 0, 0
    for path in _SHM.glob(f"{match[1].decode()}*") if match else ():
        try:
            kib += path.stat().st_blocks * 512 // _KIB
        except FileNotFoundError:
            continue
        regions += 1
    return {"regions": regions, "kib": kib}


async def counts(url: str) -> dict[str, Any]:
    """Tasks and channels, of the gateway and of this process.

    Raises:
        httpx.HTTPError: the gateway does not answer.
    """
    async with httpx.AsyncClient(timeout=_HTTP_S, trust_env=False) as http:
        page = (await http.get(f"{url}/metrics")).raise_for_status().text
    tasks: dict[str, int] = {}
    channels = 0
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == TASKS:
                tasks[sample.labels["coroutine"]] = int(sample.value)
            elif sample.name == CHANNELS:
                channels = int(sample.value)
    return {
        "gateway_tasks": tasks,
        "gateway_channels": channels,
        "caller_tasks": live_tasks(asyncio.get_running_loop()),
        "caller_channels": live_channels(),
    }
