"""Kills of model processes in the soak test, and what they excuse."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from harness.servers import Server

from parley.launcher.processes import Stub
from parley.triton.model_control import CONTROL_MODEL

_RESTORED_S = 180.0
_LOOK_S = 0.2
GRACE_S = 30.0
"""After a replacement: by then callers' own deadlines and Triton's answers for a dead process are over."""
AGENT = "voice_agent"


@dataclass
class Kill:
    """One process that was killed. Times are seconds since the begin of the soak."""

    at_s: float
    model: str
    instance: str
    pid: int
    restored_s: float | None = None
    """When the supervisor said that all of it serves again; None: not yet."""
    server_replaced: bool = False
    """Triton itself ended by it, and was started again."""

    def overlaps(self, began_s: float, ended_s: float) -> bool:
        """Whether a session may have noticed it."""
        until = self.restored_s + GRACE_S if self.restored_s is not None else float("inf")
        return began_s <= until and ended_s >= self.at_s


class Killer:
    """Kills one process after the other, each when the one before is replaced and its callers have recovered.

    Args:
        server: supervised.
        chance: draws the process and the time.
        mean_s: between two kills: half of it to one and a half.
        began: of the soak, by :func:`time.monotonic`.
    """

    def __init__(self, server: Server, chance: random.Random, mean_s: float, began: float) -> None:
        self._server = server
        self._random = chance
        self._mean_s = mean_s
        self._began = began
        self._order: list[str] = []
        self.until_s = float("inf")
        """Time since the start of the soak after which nothing is killed (seconds)."""
        self.kills: list[Kill] = []

    @property
    def is_disturbed(self) -> bool:
        """Whether something is being replaced, or was just now."""
        now = time.monotonic() - self._began
        return any(kill.overlaps(now, now) for kill in self.kills)

    def excuses(self, began_s: float, ended_s: float) -> list[Kill]:
        """The kills that a session may have noticed."""
        return [kill for kill in self.kills if kill.overlaps(began_s, ended_s)]

    async def next(self, on_kill: Callable[[Kill], None]) -> Kill | None:
        """Wait, kill, and wait until it is replaced, or not; None: nothing was killed, or it is too late.

        Args:
            on_kill: called at once, before it is known what comes of it.
        """
        await asyncio.sleep(self._mean_s * self._random.uniform(0.5, 1.5))
        if time.monotonic() - self._began >= self.until_s:
            return None
        stubs = [stub for stub in self._server.stubs() if stub.model != CONTROL_MODEL]
        if not stubs:
            return None
        stub = self._choose(stubs)
        before, server_before = self._restarts(stub.model), self._restarts("")
        kill = Kill(time.monotonic() - self._began, stub.model, stub.instance, stub.pid)
        self.kills.append(kill)
        os.kill(stub.pid, signal.SIGKILL)
        on_kill(kill)
        end = time.monotonic() + _RESTORED_S
        while time.monotonic() < end:
            await asyncio.sleep(_LOOK_S)
            kill.server_replaced = self._restarts("") > server_before
            noticed = kill.server_replaced or self._restarts(stub.model) > before
            if noticed and self._all_serve():
                kill.restored_s = time.monotonic() - self._began
                break
        return kill

    def _choose(self, stubs: Sequence[Stub]) -> Stub:
        """Each model, and each instance of the agent, once in a random order; then again."""
        keys = {stub.instance if stub.model == AGENT else stub.model for stub in stubs}
        self._order = [key for key in self._order if key in keys]
        if not self._order:
            self._order = self._random.sample(sorted(keys), len(keys))
        key = self._order.pop()
        return self._random.choice([stub for stub in stubs if key in (stub.model, stub.instance)])

    def _restarts(self, model: str) -> int:
        return sum(self._entry(model).get("restarts", {}).values())

    def _all_serve(self) -> bool:
        record = self._server.record()
        entries = [record.get("server", {}), *record.get("models", {}).values()]
        return all(entry.get("state") == "serving" for entry in entries)

    def _entry(self, model: str) -> dict[str, Any]:
        record = self._server.record()
        found: dict[str, Any] = record.get("models", {}).get(model, {}) if model else record.get("server", {})
        return found
