"""A server that answers every request at once, as the test says."""

import asyncio
from contextlib import asynccontextmanager

from fake_models import FakeModels, serving_fake
from tritonclient.grpc import service_pb2


class FakeTriton(FakeModels):
    def __init__(self, answer):
        super().__init__()
        self.requests = []
        self.answer = answer
        self.failure = None
        self.may_answer = asyncio.Event()
        self.may_answer.set()

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


@asynccontextmanager
async def serving(answer):
    async with serving_fake(FakeTriton(answer)) as fake:
        yield fake
