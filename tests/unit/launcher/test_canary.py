"""What the canary leaves behind in the server that it asks."""

import queue
from concurrent.futures import ThreadPoolExecutor

import grpc
import pytest
from tritonclient.grpc import service_pb2, service_pb2_grpc

from parley.launcher.canary import CanaryError, call_canaries

_DEADLINE_S = 10.0


class Server(service_pb2_grpc.GRPCInferenceServiceServicer):
    """Answers every request of a stream with an empty final response, or with an error."""

    def __init__(self, error=""):
        self.error = error
        self.ends = queue.Queue()

    def ModelStreamInfer(self, requests, context):  # noqa: N802 - gRPC's name
        context.add_callback(lambda: self.ends.put(context.code()))
        for request in requests:
            answer = service_pb2.ModelStreamInferResponse(error_message=self.error)
            answer.infer_response.id = request.id
            answer.infer_response.parameters["triton_final_response"].bool_param = True
            yield answer
        context.set_code(grpc.StatusCode.OK)


@pytest.fixture
def serve():
    running = []

    def start(server):
        pool = grpc.server(ThreadPoolExecutor(4))
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(server, pool)
        port = pool.add_insecure_port("127.0.0.1:0")
        pool.start()
        running.append(pool)
        return f"127.0.0.1:{port}"

    yield start
    for pool in running:
        pool.stop(0).wait()


def test_a_stream_that_was_answered_is_left_to_end_by_itself(serve):
    server = Server()
    assert call_canaries(serve(server), ["espeak"], _DEADLINE_S) == ["espeak answered"]
    # Cancelled just as it ends, it would keep the model loaded when the server is to stop.
    assert server.ends.get(timeout=_DEADLINE_S) is grpc.StatusCode.OK


def test_a_stream_that_was_refused_is_not_waited_for(serve):
    with pytest.raises(CanaryError, match="no such model"):
        call_canaries(serve(Server("no such model")), ["espeak"], _DEADLINE_S)
