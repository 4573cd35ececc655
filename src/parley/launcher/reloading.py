"""Loading a failed model again, alone or as a whole, until it answers its canary."""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from google.protobuf import json_format

from parley.canaries.connection import ServerAddress
from parley.canaries.models import CanaryCall
from parley.launcher.control import ControlError, ModelControl, occupy_dead_slots

_FIRST_CANARY_S = 8.0
"""For a model that was just loaded: its first answer may take longer than those that follow (seconds)."""
_AGAIN_S = 0.2


class SupervisedServer(Protocol):
    """What the supervisor uses of the server."""

    @property
    def pid(self) -> int:
        """Process number of ``tritonserver``."""
        ...

    @property
    def own_address(self) -> ServerAddress:
        """Of gRPC, as this machine calls it."""
        ...

    @property
    def folder(self) -> Path:
        """Where its processes leave their heartbeats."""
        ...

    @property
    def control(self) -> ModelControl:
        """Loads models of the running server."""
        ...

    @property
    def models(self) -> list[str]:
        """Names of the loaded models."""
        ...

    def poll(self) -> int | None:
        """The server's exit status, or None while it runs."""
        ...

    def protect_memory(self) -> int:
        """Keep other users from the shared memory of new processes; returns the number of regions."""
        ...

    def model_config(self, model: str) -> Any:
        """The ``ModelConfig`` that a model was started with."""
        ...

    @property
    def drain_file(self) -> Path | None:
        """Asks the server to drain; None: it cannot be drained."""
        ...

    def restart(self) -> None:
        """Kill the server and start it again; LauncherError if it cannot be."""
        ...

    def log_tail(self) -> str:
        """The last lines of the server's log."""
        ...


@dataclass(frozen=True)
class LoadOutcome:
    """How loading a model again ended."""

    error: str = ""
    """Why it was not loaded, or did not answer its canary; empty: it serves."""
    is_loaded: bool = True
    is_hopeless: bool = False
    """Another attempt would fail in the same way."""


def load_again(
    server: SupervisedServer,
    config: Any,
    canary: CanaryCall | None,
    *,
    dead: int,
    load_s: float,
    canary_s: float,
    stopping: threading.Event,
) -> LoadOutcome:
    """Load a model, or only some of its instances, and wait until it answers its canary.

    ``dead``: number of instances that are replaced while the others stay; 0: the whole model is. ``canary_s``
    begins after the load; ``stopping`` ends the wait for the answer.
    """
    model: str = config.name
    text = json_format.MessageToJson(config, preserving_proto_field_name=True)
    try:
        slots = occupy_dead_slots(server.own_address, config, dead) if dead else contextlib.nullcontext()
        with slots:
            server.control.load(model, text, load_s)
    except Exception as failure:  # noqa: BLE001 - the supervisor waits for the result
        if not dead:
            # So that Triton's own ready endpoint says no until the next attempt.
            with contextlib.suppress(ControlError):
                server.control.unload(model)
        is_refused = isinstance(failure, ControlError) and failure.refused
        error = f"{model} was not loaded: {failure}"
        return LoadOutcome(error, is_loaded=False, is_hopeless=not is_refused)
    end = time.monotonic() + canary_s
    while canary is not None:
        try:
            canary(server.own_address, _FIRST_CANARY_S)
            break
        except Exception as failure:  # noqa: BLE001 - whatever it is, the model does not answer
            if time.monotonic() > end or stopping.wait(_AGAIN_S):
                return LoadOutcome(f"{model} was loaded, but does not answer: {failure}")
    return LoadOutcome()
