"""Which way calls to other models go."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

from parley.errors import ModelLoadingError
from parley.inference import InferencePort, ModelRequest, ModelResponse
from parley.serving.bls import InProcessPort
from parley.serving.parameters import Parameters

BLS_VARIABLE = "PARLEY_BLS"
GRPC_URL_VARIABLE = "PARLEY_GRPC_URL"
_KINDS = ("mixed", "inprocess", "grpc")


class MixedPort:
    """Ordinary calls in-process, streams over gRPC.

    Ordinary calls (one per piece of audio) need the short way and are safe on it. Triton's
    in-process streams are not (24.10): they lose errors, and under load they deadlock the whole
    process within a minute or so. Its delivery thread then waits for a stream's lock, held by a
    thread that waits for the interpreter's lock, held by a thread that starts another stream and
    waits for the delivery thread. Over gRPC streams are no slower.
    """

    def __init__(self, calls: InferencePort, streams: InferencePort) -> None:
        self._calls = calls
        self._streams = streams

    async def infer(self, request: ModelRequest) -> ModelResponse:
        """The single response of a model that is not decoupled."""
        return await self._calls.infer(request)

    def stream(self, request: ModelRequest) -> AsyncGenerator[ModelResponse, None]:
        """The responses of a decoupled model, in order, without the empty final one."""
        return self._streams.stream(request)

    async def close(self) -> None:
        """Close both ways."""
        try:
            await self._streams.close()
        finally:
            await self._calls.close()


def port_kind(parameters: Parameters) -> str:
    """Which way the configuration asks for: ``mixed``, ``inprocess`` or ``grpc``.

    Raises:
        ModelLoadingError: the setting has another value.
    """
    kind = parameters.environment.get(BLS_VARIABLE) or parameters.choice("bls", _KINDS[0], _KINDS)
    if kind not in _KINDS:
        raise ModelLoadingError(f"{BLS_VARIABLE} is {kind!r}; it must be one of {', '.join(_KINDS)}")
    return kind


def make_port(pb_utils: Any, parameters: Parameters) -> InferencePort:
    """The port that the configuration asks for.

    ``PARLEY_BLS`` or the model's parameter ``bls``: ``mixed`` (default), ``inprocess`` or
    ``grpc``. ``PARLEY_GRPC_URL`` or ``grpc_url``: the server's own gRPC endpoint
    (``127.0.0.1:8001``). ``bls_max_calls`` and ``bls_max_streams``: calls under way at once.

    Raises:
        ModelLoadingError: a setting has a value that it cannot have.
    """
    kind = port_kind(parameters)
    limits = {
        "max_calls": parameters.integer("bls_max_calls", 64, minimum=1),
        "max_streams": parameters.integer("bls_max_streams", 64, minimum=1),
    }
    if kind == "inprocess":
        return InProcessPort(pb_utils, **limits)
    # gRPC is imported only where it is used: it is not needed by models that make no such calls.
    from parley.serving.loopback import LoopbackPort  # noqa: PLC0415

    url = parameters.environment.get(GRPC_URL_VARIABLE) or parameters.text("grpc_url", "127.0.0.1:8001")
    loopback = LoopbackPort(url, **limits)
    return loopback if kind == "grpc" else MixedPort(InProcessPort(pb_utils, **limits), loopback)
