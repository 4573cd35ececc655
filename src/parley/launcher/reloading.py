"""Loads a model of a running server again, and counts that on the metrics page.

Everything here waits for the server, so it runs in threads of its own beside the supervisor's.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from google.protobuf import json_format

from parley.canaries import CanaryCall, ServerAddress
from parley.launcher.control import ControlError, ModelControl, occupy_dead_slots
from parley.launcher.restarts import (
    DEAD_INSTANCES,
    DIED,
    NOT_RESTORED,
    SET_BACK,
    STOPPED,
    UNRESPONSIVE,
    SupervisorLimits,
)

_PROCESS_REASONS = (DIED, STOPPED, UNRESPONSIVE)
_FIRST_CANARY_S = 8.0
"""For a model that was just loaded: its first answer may take longer than those that follow (seconds)."""
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Failure:
    """Why a process, an instance or the server is replaced."""

    reason: str
    """One of those of :mod:`parley.launcher.restarts`."""
    detail: str
    """For people."""


@dataclass(frozen=True)
class LoadDone:
    """Outcome of loading a model again."""

    generation: int
    model: str
    instances: Mapping[str, Failure]
    """Why each instance was replaced, by name."""
    config: Any
    loaded: bool
    error: str = ""
    """Why it was not loaded, or did not answer its canary."""
    hopeless: bool = False
    """Another attempt would fail in the same way."""


class SupervisedServer(Protocol):
    """What the supervisor uses of the server. Apart because the server owns the supervisor."""

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


class ModelReloader:
    """Loads models of one server again.

    Args:
        server: a running server.
        canaries: by model.
        limits: how long a model may take to answer.
        load_s: seconds that a model may take to load.
        stopping: set when the supervisor stops.
    """

    def __init__(
        self,
        server: SupervisedServer,
        canaries: Mapping[str, CanaryCall],
        limits: SupervisorLimits,
        load_s: float,
        stopping: threading.Event,
    ) -> None:
        self._server = server
        self._canaries = canaries
        self._limits = limits
        self._load_s = load_s
        self._stopping = stopping

    def load(
        self, generation: int, model: str, instances: Mapping[str, Failure], config: Any, *, alone: bool
    ) -> LoadDone:
        """Load a model, or only some of its instances, and wait until it answers its canary.

        Args:
            generation: of the server; returned.
            model: its name.
            instances: those that are replaced.
            config: the ``ModelConfig`` to load.
            alone: whether the other instances stay.
        """
        control = self._server.control
        loaded, error, hopeless = False, "", False
        try:
            text = json_format.MessageToJson(config, preserving_proto_field_name=True)
            if alone:
                with occupy_dead_slots(self._server.own_address, config, len(instances)):
                    control.load(model, text, self._load_s)
            else:
                control.load(model, text, self._load_s)
            loaded = True
        except Exception as failure:  # noqa: BLE001 - the supervisor waits for the result
            error = f"{model} was not loaded: {failure}"
            hopeless = not (isinstance(failure, ControlError) and failure.refused)
            if not alone:
                # So that callers, and Triton's own ready endpoint, are not kept in the dark meanwhile.
                with contextlib.suppress(ControlError):
                    control.unload(model)
        else:
            try:
                self._await_canary(model, time.monotonic() + self._limits.reload_canary_s)
            except Exception as failure:  # noqa: BLE001 - whatever it is, the model does not answer
                error = f"{model} was loaded, but does not answer: {failure}"
        return LoadDone(generation, model, instances, config, loaded, error, hopeless)

    def count(self, model: str, reason: str, number: int = 1) -> None:
        """Add restarts to a counter of the metrics page; the model is empty for the server."""
        try:
            self._server.control.count(model, reason, number)
        except ControlError as error:
            _log.warning("a restart was not counted on the metrics page: %s", error)

    def show_dead_instances(self, number: int) -> None:
        """Set the gauge of the metrics page."""
        try:
            self._server.control.show_dead_instances(number)
        except ControlError as error:
            _log.warning("the number of dead instances is not on the metrics page: %s", error)

    def show_counters(self, models: Collection[str]) -> None:
        """Set every counter to zero: one that first appears with a restart shows no increase."""
        control = self._server.control
        names = [(model, reason) for model in models for reason in _PROCESS_REASONS]
        names += [("", reason) for reason in (*_PROCESS_REASONS, SET_BACK, NOT_RESTORED, DEAD_INSTANCES)]
        try:
            control.show_dead_instances(0)
            for model, reason in names:
                control.count(model, reason, 0)
        except ControlError as error:
            _log.warning("counters of restarts are not on the metrics page yet: %s", error)

    def _await_canary(self, model: str, end: float) -> None:
        canary = self._canaries.get(model)
        while canary is not None:
            try:
                canary(self._server.own_address, _FIRST_CANARY_S)
            except Exception:
                if time.monotonic() > end or self._stopping.is_set():
                    raise
                time.sleep(self._limits.look_s)
            else:
                return
