"""A server that speaks the agent's protocol and only echoes audio, so that nothing but the way is measured.

Every piece of audio comes back at once, with the times at which it was received and sent (nanoseconds of the
machine's monotonic clock) behind the one that the client put in front. Run as a program it prints ``ready``
and its address.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc.aio
from tritonclient.grpc import service_pb2, service_pb2_grpc

from parley import protocol

STAMP_BYTES = 8
_RATE = 22_050


class Echo(service_pb2_grpc.GRPCInferenceServiceServicer):  # type: ignore[misc]
    """The part of Triton that a call and a health check need."""

    async def ServerReady(self, _request: Any, _context: Any) -> Any:  # noqa: N802 - gRPC's name
        """Always."""
        return service_pb2.ServerReadyResponse(ready=True)

    async def ModelReady(self, _request: Any, _context: Any) -> Any:  # noqa: N802
        """Every one."""
        return service_pb2.ModelReadyResponse(ready=True)

    async def ModelStreamInfer(self, requests: Any, _context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """Connect, echo, and close at the end; requests are acknowledged as Triton does."""
        offset = 0
        async for request in requests:
            received = time.monotonic_ns()
            audio = request.raw_input_contents[1]
            if request.parameters["sequence_start"].bool_param:
                yield _reply("start", protocol.Connected(session_id="echo", output_sample_rate=_RATE))
            elif request.parameters["sequence_end"].bool_param:
                yield _reply("start", protocol.Closed(reason="ended"))
                yield _reply("start", final=True)
            elif audio:
                stamps = received.to_bytes(STAMP_BYTES, "little"), time.monotonic_ns().to_bytes(8, "little")
                samples = audio[:STAMP_BYTES] + b"".join(stamps) + audio[3 * STAMP_BYTES :]
                count = len(samples) // 2
                event = protocol.Audio(
                    turn=1, response_id="echo", offset_ms=offset, sample_rate=_RATE, samples=count
                )
                offset += 1000 * count // _RATE
                yield _reply("start", event, samples)
            if request.parameters["triton_enable_empty_final_response"].bool_param:
                yield _reply(request.id, final=True)


def _reply(
    request_id: str, event: protocol.ServerEvent | None = None, audio: bytes = b"", *, final: bool = False
) -> Any:
    reply = service_pb2.ModelStreamInferResponse()
    response = reply.infer_response
    response.id = request_id
    response.parameters["triton_final_response"].bool_param = final
    if event is not None:
        content = protocol.encode(event)
        response.outputs.add(name="EVENT", datatype="BYTES", shape=[1])
        response.raw_output_contents.append(len(content).to_bytes(4, "little") + content)
        response.outputs.add(name="AUDIO", datatype="INT16", shape=[len(audio) // 2])
        response.raw_output_contents.append(audio)
    return reply


async def main() -> None:
    """Serve until the program is ended."""
    server = grpc.aio.server()
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(Echo(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"ready 127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


if __name__ == "__main__":
    asyncio.run(main())
