"""Finding the models whose process lives but does not answer.

A model that has completed nothing for a while is asked its canary. A canary that is not answered in time is
held against the model only if neither its processes nor those of the models that it calls have used their
processor meanwhile: what hangs uses none, and what has much to do on a slow machine does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass

import tritonclient.grpc as triton

from parley.canaries import CanaryCall, CanaryLateError
from parley.launcher.processes import processor_s

_COUNTS_S = 3.0
WORKING = 0.05
"""Part of a processor. A process that waits uses less for its timers; one that works gets more, even with
twenty others on two cores."""


def read_counts(address: str) -> dict[str, tuple[int, ...]]:
    """What the models of a server have completed.

    Args:
        address: ``host:port`` of gRPC.

    Returns:
        By model: numbers of which one grows whenever it completes something.

    Raises:
        ConnectionError: the server did not answer.
    """
    try:
        with triton.InferenceServerClient(address) as client:
            answer = client.get_inference_statistics(client_timeout=_COUNTS_S)
    except triton.InferenceServerException as error:
        raise ConnectionError(str(error)) from error
    return {
        each.name: (each.inference_count, each.execution_count, each.inference_stats.success.count)
        for each in answer.model_stats
    }


@dataclass
class Liveness:
    """What is known of whether one model answers. Times are those of :func:`time.monotonic`."""

    alive_at: float
    """When it last completed something, or answered its canary."""
    asked_at: float = 0.0
    """When its last canary ended."""
    asking: bool = False
    misses: int = 0
    """Canaries missed one after the other while it did not work."""
    _completed: tuple[int, ...] = ()

    def count(self, completed: tuple[int, ...], now: float) -> None:
        """Take the numbers of what it has completed."""
        if completed != self._completed:
            self._completed = completed
            self.answered(now)

    def answered(self, now: float) -> None:
        """It has shown that it works."""
        self.alive_at, self.misses = now, 0

    def is_quiet(self, now: float, quiet_s: float) -> bool:
        """Whether it is to be asked: after a first miss at once."""
        return not self.asking and (self.misses > 0 or now - max(self.alive_at, self.asked_at) >= quiet_s)


@dataclass(frozen=True)
class Asked:
    """What came of a canary."""

    model: str
    error: str = ""
    """Empty: it was answered well."""
    working: bool = False
    """There was no answer in time, but the processes have used their processor."""


def ask_canary(
    model: str,
    canary: CanaryCall,
    address: str,
    *,
    processes: Collection[int],
    deadline_s: float,
    wait: Callable[[float], object] = time.sleep,
) -> Asked:
    """Ask a model its canary.

    Args:
        model: its name.
        canary: its canary.
        address: ``host:port`` of gRPC.
        processes: of the model and of those that it calls.
        deadline_s: for the answer (seconds).
        wait: sleeps; may end early when there is no use for the result.
    """
    began, used_s = time.monotonic(), processor_s(processes)
    try:
        canary(address, deadline_s)
    except CanaryLateError as error:
        # A full queue refuses at once: too soon to see whether anything works on it.
        wait(max(0.0, began + deadline_s - time.monotonic()))
        passed_s = time.monotonic() - began
        return Asked(model, str(error), working=processor_s(processes) - used_s >= WORKING * passed_s)
    except Exception as error:  # noqa: BLE001 - whatever it is, the model did not answer well
        return Asked(model, str(error) or type(error).__name__)
    return Asked(model)
