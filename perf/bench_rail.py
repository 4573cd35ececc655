"""What the way to the recogniser costs, beside the models' own work.

A silent stream of its own goes through ``parakeet_tdt`` while the sessions run. Silence needs
voice activity detection and nothing else, so a round trip less that model's mean compute is what
gRPC, scheduling, the rail's Python and its call of another model add to a chunk.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import NoReturn, Self

import grpc.aio
import numpy as np
from rail_client import answered, rail_request
from tritonclient.grpc import service_pb2, service_pb2_grpc

_CHUNK = np.zeros(512, "<i2").tobytes()  # 32 ms: one window of the detector
_INTERVAL_S = 0.1
_DEADLINE_S = 10.0
_VAD = "silero_vad"


class RailProbe:
    """Measures while its ``async with`` lasts.

    Args:
        server: Triton's gRPC endpoint.

    Raises:
        InferenceError: on entering or leaving: the recogniser did not answer.
    """

    def __init__(self, server: str) -> None:
        self._channel = grpc.aio.insecure_channel(server)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        self._id = f"bench-{uuid.uuid4()}"
        self._round_trips_ms: list[float] = []
        self._before = (0, 0)
        self.overheads_ms: list[float] = []
        """Filled on leaving: of each chunk everything but the model's compute (milliseconds)."""

    async def __aenter__(self) -> Self:
        try:
            self._before = await self._compute()
            await self._send(start=True)
        except BaseException:
            await self._channel.close()
            raise
        self._task = asyncio.create_task(self._run(), name="rail-probe")
        return self

    async def __aexit__(self, *_problem: object) -> None:
        try:
            self._task.cancel()
            (end,) = await asyncio.gather(self._task, return_exceptions=True)
            if not isinstance(end, asyncio.CancelledError):
                raise end
            await self._send(end=True)
            nanoseconds, count = (
                now - then for now, then in zip(await self._compute(), self._before, strict=True)
            )
            compute_ms = nanoseconds / 1e6 / max(1, count)
            self.overheads_ms = [max(0.0, value - compute_ms) for value in self._round_trips_ms]
        finally:
            await self._channel.close()

    async def _run(self) -> NoReturn:
        while True:
            await asyncio.sleep(_INTERVAL_S)
            began = time.perf_counter()
            await self._send()
            self._round_trips_ms.append(1000 * (time.perf_counter() - began))

    async def _send(self, *, start: bool = False, end: bool = False) -> None:
        request = rail_request("parakeet_tdt", self._id, _CHUNK, start=start, end=end)
        await answered(self._stub.ModelInfer(request, timeout=_DEADLINE_S))

    async def _compute(self) -> tuple[int, int]:
        """Nanoseconds that the detector has computed, and how often."""
        request = service_pb2.ModelStatisticsRequest(name=_VAD)
        answer = await answered(self._stub.ModelStatistics(request, timeout=_DEADLINE_S))
        stats = answer.model_stats[0]
        return sum(batch.compute_infer.ns for batch in stats.batch_stats), stats.execution_count
