"""A server that answers every request at once, as the test says."""

import asyncio
from contextlib import asynccontextmanager

import grpc
import grpc.aio
from tritonclient.grpc import service_pb2, service_pb2_grpc


class FakeTriton(service_pb2_grpc.GRPCInferenceServiceServicer):
    def __init__(self, answer):
        self.requests = []
        self.answer = answer
        self.failure = None
        self.ready = set()
        self.agent_tts = None  # what voice_agent is configured with; None: it is not there
        self.may_answer = asyncio.Event()
        self.may_answer.set()

    async def ModelReady(self, request, context):  # noqa: N802
        return service_pb2.ModelReadyResponse(ready=request.name in self.ready)

    async def ModelInfer(self, request, context):  # noqa: N802
        self.requests.append(request)
        await self.may_answer.wait()
        if self.failure:
            await context.abort(*self.failure)
        response = service_pb2.ModelInferResponse(model_name=request.model_name)
        if self.answer is not None:
            response.outputs.add(name="REPLY", datatype="BYTES", shape=[1])
            response.raw_output_contents.append(len(self.answer).to_bytes(4, "little") + self.answer)
        return response

    async def ModelConfig(self, request, context):  # noqa: N802
        if self.agent_tts is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"unknown model: {request.name!r}")
        reply = service_pb2.ModelConfigResponse()
        reply.config.parameters["tts"].string_value = self.agent_tts
        return reply


@asynccontextmanager
async def serving(answer):
    fake = FakeTriton(answer)
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(fake, server)
    fake.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    try:
        yield fake
    finally:
        await server.stop(None)
