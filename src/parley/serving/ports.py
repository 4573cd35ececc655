"""Which way calls to other models go."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any

from parley.inference import ModelRequest, ModelResponse
from parley.serving.bls import InProcessPort
from parley.serving.parameters import Parameters

if TYPE_CHECKING:
    from parley.serving.loopback import LoopbackPort

GRPC_URL_VARIABLE = "PARLEY_GRPC_URL"


class MixedPort:
    """:class:`parley.inference.InferencePort`: ordinary calls in-process, streams over gRPC.

    Ordinary calls (one per piece of audio) need the short way and are safe on it. Triton's
    in-process streams (``async_exec(decoupled=True)``) are not (24.10): errors after the first response are
    lost, and the whole process deadlocks within a minute or so under load, and now and then with 45 streams
    that start together. Its delivery thread then waits for a stream's lock, held by a thread that waits for
    the interpreter's lock, held by a thread that starts another stream and waits for the delivery thread. The
    deadlock that Triton 26.07 mends (python_backend#439) is another one. Over gRPC streams are no slower.
    """

    def __init__(self, calls: InProcessPort, streams: LoopbackPort) -> None:
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


def make_port(pb_utils: Any, parameters: Parameters) -> MixedPort:
    """The port of a model with these parameters.

    ``PARLEY_GRPC_URL`` or ``grpc_url``: the server's own gRPC endpoint (``127.0.0.1:8001``).
    ``bls_max_calls`` and ``bls_max_streams``: calls under way at once.

    Raises:
        ModelLoadingError: a setting has a value that it cannot have.
    """
    # gRPC is imported only where it is used: it is not needed by models that make no such calls.
    from parley.serving.loopback import LoopbackPort  # noqa: PLC0415

    calls = InProcessPort(pb_utils, max_calls=parameters.integer("bls_max_calls", 64, minimum=1))
    url = parameters.environment.get(GRPC_URL_VARIABLE) or parameters.text("grpc_url", "127.0.0.1:8001")
    streams = LoopbackPort(url, max_streams=parameters.integer("bls_max_streams", 64, minimum=1))
    return MixedPort(calls, streams)
