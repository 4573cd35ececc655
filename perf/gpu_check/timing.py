"""How long something takes on a device."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch


def wait(device: torch.device) -> None:
    """Until the device has done what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds(run: Callable[[], object], device: torch.device, *, rounds: int = 10) -> float:
    """Median of some runs, each waited for, after two that do not count."""
    for _ in range(2):
        run()
    taken = []
    for _ in range(rounds):
        wait(device)
        began = time.perf_counter()
        run()
        wait(device)
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)


def once(run: Callable[[], object], device: torch.device) -> float:
    """A single run, such as the first one."""
    wait(device)
    began = time.perf_counter()
    run()
    wait(device)
    return time.perf_counter() - began


def memory_mib(device: torch.device) -> float:
    """The most that tensors have taken on a GPU since the last :func:`forget_memory`; 0 elsewhere."""
    return torch.cuda.max_memory_allocated(device) / 2**20 if device.type == "cuda" else 0.0


def memory_used_mib(device: torch.device) -> float:
    """What the whole GPU holds, contexts, graphs and other processes included; 0 elsewhere."""
    if device.type != "cuda":
        return 0.0
    free, total = torch.cuda.mem_get_info(device)
    return (total - free) / 2**20


def forget_memory(device: torch.device) -> None:
    """Begin to count anew."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
