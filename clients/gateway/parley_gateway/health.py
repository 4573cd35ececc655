"""Is a Triton ready to take a call?"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2, service_pb2_grpc

from parley.errors import ModelUnavailableError, ParleyError
from parley_client.channel import error_of
from parley_client.triton import MODEL

Probe: TypeAlias = Callable[[grpc.aio.Channel, float], Awaitable[None]]
"""Returns if the server behind the channel is ready, within seconds; raises :class:`ParleyError` if not."""


async def check_readiness(channel: grpc.aio.Channel, timeout_s: float) -> None:
    """Ask whether server and agent are ready.

    Raises:
        ModelUnavailableError: one of them is not, or nothing answers.
        DeadlineExceededError: no answer in time.
        ParleyError: what the server answered instead.
    """
    stub: Any = service_pb2_grpc.GRPCInferenceServiceStub(channel)
    try:
        server, model = await asyncio.gather(
            stub.ServerReady(service_pb2.ServerReadyRequest(), timeout=timeout_s),
            stub.ModelReady(service_pb2.ModelReadyRequest(name=MODEL), timeout=timeout_s),
        )
    except grpc.aio.AioRpcError as error:
        raise error_of(error) from error
    except grpc.aio.UsageError as error:
        raise ParleyError("the channel is closed") from error
    if not server.ready:
        raise ModelUnavailableError("the server is not ready")
    if not model.ready:
        raise ModelUnavailableError(f"the model {MODEL} is not ready")
