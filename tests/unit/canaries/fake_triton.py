"""A Triton whose models answer as the test says."""

from __future__ import annotations

import queue
import struct
from concurrent.futures import ThreadPoolExecutor

import grpc
import msgspec
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc
from tritonclient.utils import np_to_triton_dtype


def outputs(**tensors):
    """A ``ModelInferResponse``; texts and structs become TYPE_STRING tensors of one element."""
    response = service_pb2.ModelInferResponse()
    for name, value in tensors.items():
        if isinstance(value, np.ndarray):
            response.outputs.add(name=name, datatype=np_to_triton_dtype(value.dtype), shape=value.shape)
            response.raw_output_contents.append(value.tobytes())
        else:
            raw = value if isinstance(value, bytes) else msgspec.json.encode(value)
            response.outputs.add(name=name, datatype="BYTES", shape=[1])
            response.raw_output_contents.append(struct.pack("<I", len(raw)) + raw)
    return response


class FakeTriton(service_pb2_grpc.GRPCInferenceServiceServicer):
    """``answers``: by model the responses to a request, or the text of an error; absent: it hangs."""

    def __init__(self, **answers):
        self.answers = answers
        self.index = None
        self.requests = []
        self.stream_ends = queue.Queue()
        self.let_go = queue.Queue()

    def ModelInfer(self, request, context):  # noqa: N802 - gRPC's names
        self.requests.append(request)
        answer = self._answer(request, context)
        if isinstance(answer, str):
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, answer)
        return answer[0]

    def ModelStreamInfer(self, requests, context):  # noqa: N802
        context.add_callback(lambda: self.stream_ends.put(context.code()))
        for request in requests:
            self.requests.append(request)
            answer = self._answer(request, context)
            if isinstance(answer, str):
                yield service_pb2.ModelStreamInferResponse(error_message=answer)
                continue
            for response in answer:
                yield service_pb2.ModelStreamInferResponse(infer_response=response)
        context.set_code(grpc.StatusCode.OK)

    def ModelStatistics(self, request, context):  # noqa: N802
        statistics = [service_pb2.ModelStatistics(name=name) for name in self.answers]
        return service_pb2.ModelStatisticsResponse(model_stats=statistics)

    def RepositoryIndex(self, request, context):  # noqa: N802
        if self.index is None:
            context.abort(grpc.StatusCode.UNAVAILABLE, "This protocol is restricted")
        models = [
            service_pb2.RepositoryIndexResponse.ModelIndex(name=name, state=state, reason=reason)
            for name, state, reason in self.index
        ]
        return service_pb2.RepositoryIndexResponse(models=models)

    def ModelReady(self, request, context):  # noqa: N802
        return service_pb2.ModelReadyResponse(ready=request.name == "echo")

    def _answer(self, request, context):
        if request.model_name not in self.answers:
            self.let_go.get(timeout=30)  # a model whose process has died says nothing
        return self.answers[request.model_name]


class Servers:
    """Those that one test has started."""

    def __init__(self):
        self._running = []

    def start(self, triton):
        server = grpc.server(ThreadPoolExecutor(8))
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(triton, server)
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        self._running.append((server, triton))
        return f"127.0.0.1:{port}"

    def stop(self):
        for server, triton in self._running:
            for _ in range(8):
                triton.let_go.put(None)
            server.stop(0).wait()
