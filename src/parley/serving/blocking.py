"""Calls to other models from a synchronous ``execute``."""

from __future__ import annotations

from typing import Any, Protocol

from parley.inference import InferencePort, ModelRequest, ModelResponse
from parley.serving.bls import infer_blocking
from parley.serving.loop_thread import LoopThread
from parley.serving.parameters import Parameters
from parley.serving.ports import make_port, port_kind

_CLOSE_S = 5.0


class BlockingPort(Protocol):
    """What :class:`parley.inference.InferencePort` is, for code that waits."""

    def infer(self, request: ModelRequest) -> ModelResponse:
        """The single response of a model; every failure is a :class:`parley.errors.ParleyError`."""
        ...

    def close(self) -> None:
        """Free what the port holds."""
        ...


class InProcessBlockingPort:
    """Calls inside the server (``InferenceRequest.exec``)."""

    def __init__(self, pb_utils: Any) -> None:
        self._pb = pb_utils

    def infer(self, request: ModelRequest) -> ModelResponse:
        """The single response of a model."""
        return infer_blocking(self._pb, request)

    def close(self) -> None:
        """Nothing is held."""


class LoopBlockingPort:
    """An asynchronous port behind an event loop in a thread of its own."""

    def __init__(self, port: InferencePort) -> None:
        self._port = port
        self._loop = LoopThread("blocking-port")

    def infer(self, request: ModelRequest) -> ModelResponse:
        """The single response of a model; the port itself keeps the request's deadline."""
        return self._loop.run(self._port.infer(request), None)

    def close(self) -> None:
        """Close the port and end the thread."""
        try:
            self._loop.run(self._port.close(), _CLOSE_S)
        finally:
            self._loop.stop(_CLOSE_S)


def make_blocking_port(pb_utils: Any, parameters: Parameters) -> BlockingPort:
    """The port that the configuration asks for; the settings are those of :func:`make_port`.

    Single responses are safe in-process, so only ``grpc`` goes another way.

    Raises:
        ModelLoadingError: a setting has a value that it cannot have.
    """
    if port_kind(parameters) == "grpc":
        return LoopBlockingPort(make_port(pb_utils, parameters))
    return InProcessBlockingPort(pb_utils)
