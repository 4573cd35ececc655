"""A gRPC server that answers calls as Triton does, without an agent."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import grpc.aio
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from parley import protocol

CONNECTED = protocol.Connected(session_id="s", output_sample_rate=22_050)


class Triton(service_pb2_grpc.GRPCInferenceServiceServicer):
    """As much of Triton as a call needs: echoes audio of any request as one `audio` event."""

    def __init__(self, refuse=None, models=("voice_agent",)):
        self.models = models
        self.requests = []
        self.heard = asyncio.Event()
        self.refuse = refuse

    async def ServerReady(self, request, context):  # noqa: N802 - gRPC's name
        return service_pb2.ServerReadyResponse(ready=True)

    async def ModelReady(self, request, context):  # noqa: N802 - gRPC's name
        return service_pb2.ModelReadyResponse(ready=True)

    async def ModelStatistics(self, request, context):  # noqa: N802 - gRPC's name
        loaded = [service_pb2.ModelStatistics(name=name) for name in self.models]
        return service_pb2.ModelStatisticsResponse(model_stats=loaded)

    async def ModelStreamInfer(self, requests, context):  # noqa: N802 - gRPC's name
        if self.refuse is not None:
            # A refusal that the request crosses may reach the client as a failed write, without its reason.
            await anext(aiter(requests))
            await context.abort(*self.refuse)
        async for request in requests:
            self.requests.append(request)
            if len(self.requests) > 3:
                self.heard.set()
            parameters = request.parameters
            audio = request.raw_input_contents[1]
            if parameters["sequence_start"].bool_param:
                yield event(CONNECTED)
            elif parameters["sequence_end"].bool_param:
                yield event(protocol.Closed(reason="ended"))
                yield acknowledgement(request.id)
            elif audio == b"\xff\xff":
                message = service_pb2.ModelStreamInferResponse(error_message="invalid_audio: too loud")
                message.infer_response.id = request.id
                yield message
            else:
                samples = np.frombuffer(audio, np.int16)
                meta = {"turn": 1, "response_id": "r", "offset_ms": 0, "sample_rate": 22_050}
                yield event(protocol.Audio(**meta, samples=len(samples)), audio)
                yield acknowledgement(request.id)


def event(content, audio=b""):
    response = service_pb2.ModelInferResponse(id="start")
    response.outputs.add(name="EVENT", datatype="BYTES", shape=[1])
    raw = protocol.encode(content)
    response.raw_output_contents.append(len(raw).to_bytes(4, "little") + raw)
    response.outputs.add(name="AUDIO", datatype="INT16", shape=[len(audio) // 2])
    response.raw_output_contents.append(audio)
    return service_pb2.ModelStreamInferResponse(infer_response=response)


def acknowledgement(request_id):
    response = service_pb2.ModelInferResponse(id=request_id)
    response.parameters["triton_final_response"].bool_param = True
    return service_pb2.ModelStreamInferResponse(infer_response=response)


@asynccontextmanager
async def serving(triton):
    server = grpc.aio.server()
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(triton, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}", server
    finally:
        await server.stop(None)
