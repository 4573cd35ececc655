"""The roof of a device: the most that it multiplies and moves in a second, and how near a run comes to it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch.utils.flop_counter import FlopCounterMode

from gpu_check.timing import seconds
from parley.runtime.gpu_plan import BFLOAT16_CAPABILITY
from parley_torch.runtime.precision import PRECISIONS

Limit = Literal["compute", "memory"]
_NAMES = {dtype: name for name, dtype in PRECISIONS.items()}
_SIDES = {"cuda": 8_192, "cpu": 1_024}
"""Of square matrices that keep a device busy."""
_COPIES = {"cuda": 1 << 30, "cpu": 1 << 27}
"""Bytes that do not fit into a cache."""


@dataclass(frozen=True)
class Work:
    """What a run has to do, however it is done."""

    flops: float
    """Two for each multiplication with addition."""
    moved: float
    """Bytes to and from the device's memory: every weight once, and what is remembered."""


@dataclass(frozen=True)
class Roof:
    """What a device does at most, measured: no run of a network reaches what its data sheet says."""

    flops: Mapping[str, float]
    """In a second, by the name of the precision."""
    bandwidth: float
    """Bytes in a second, read and written ones together."""

    def __str__(self) -> str:
        computing = (f"{flops / 1e12:.3g} TFLOP/s in {name}" for name, flops in self.flops.items())
        return f"{', '.join(computing)}; {self.bandwidth / 1e9:.3g} GB/s of memory"

    def share(self, work: Work, dtype: torch.dtype, taken_s: float) -> tuple[float, Limit]:
        """The share of the roof that a run reaches, and by what it is limited."""
        computing, moving = work.flops / self.flops[_NAMES[dtype]], work.moved / self.bandwidth
        return max(computing, moving) / taken_s, "compute" if computing > moving else "memory"


def measure_roof(device: torch.device) -> Roof:
    """Multiply large matrices in each precision that the device has, and copy a large tensor."""
    side, size = _SIDES[device.type], _COPIES[device.type]
    flops = {}
    for dtype in _precisions(device):
        left, right = (torch.rand((side, side), device=device).to(dtype) for _ in range(2))
        product = torch.empty_like(left)

        def multiply() -> None:
            torch.mm(left, right, out=product)  # noqa: B023 - called at once

        flops[_NAMES[dtype]] = 2.0 * side**3 / seconds(multiply, device)
    source = torch.ones(size // 2, dtype=torch.int8, device=device)
    target = torch.empty_like(source)
    bandwidth = size / seconds(lambda: target.copy_(source), device)
    return Roof(flops, bandwidth)


def _precisions(device: torch.device) -> list[torch.dtype]:
    if device.type != "cuda":
        return [torch.float32, torch.bfloat16]  # Qwen3 is in bfloat16 on a processor, too
    if torch.cuda.get_device_capability(device) < BFLOAT16_CAPABILITY:
        return [torch.float32, torch.float16]
    return [torch.float32, torch.float16, torch.bfloat16]


def count_flops(run: Callable[[], object]) -> float:
    """Of products and convolutions, where PyTorch starts them one by one."""
    with FlopCounterMode(display=False) as counter:
        run()
    return float(counter.get_total_flops())
