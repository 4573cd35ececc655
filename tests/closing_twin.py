"""Runs ``tritonserver`` behind a gRPC endpoint that stops as that of Triton 2.71 does.

    python closing_twin.py TRITONSERVER ARGUMENTS...

On SIGTERM the endpoint takes no new RPC and refuses new requests of open streams, whose responses still go
out. The server goes on serving its models until all streams have ended, or :data:`GRACE_S` are over; then it
is ended.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys

import grpc.aio
from tritonclient.grpc import service_pb2

GRACE_S = 10.0
CUT = "streams were cut off"
_REFUSAL = "GRPC server is shutting down and has stopped accepting new requests."
_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_reconnect_backoff_ms", 500),
]


class Relay(grpc.GenericRpcHandler):
    """Passes messages on as bytes."""

    def __init__(self, target):
        self._channel = grpc.aio.insecure_channel(target, options=_OPTIONS)
        self.streams = 0
        self.is_closing = False

    def service(self, handler_call_details):
        method = handler_call_details.method

        async def answer(request, context):
            try:
                return await self._channel.unary_unary(method)(request)
            except grpc.aio.AioRpcError as error:
                await context.abort(error.code(), error.details())

        async def stream(requests, context):
            self.streams += 1
            try:
                await self._pass_on(method, requests, context)
            except grpc.aio.AioRpcError as error:
                await context.abort(error.code(), error.details())
            finally:
                self.streams -= 1

        if method.endswith("/ModelStreamInfer"):
            return grpc.stream_stream_rpc_method_handler(stream)
        return grpc.unary_unary_rpc_method_handler(answer)

    async def _pass_on(self, method, requests, context):
        async def accepted():
            async for request in requests:
                if self.is_closing:
                    refusal = service_pb2.ModelStreamInferResponse(error_message=_REFUSAL)
                    await context.write(refusal.SerializeToString())
                else:
                    yield request

        async for response in self._channel.stream_stream(method)(accepted()):
            await context.write(response)


def find_port():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


async def main(program, arguments):
    (flag,) = [argument for argument in arguments if argument.startswith("--grpc-port=")]
    port, own = flag.partition("=")[2], find_port()
    arguments = [f"--grpc-port={own}" if argument == flag else argument for argument in arguments]
    relay = Relay(f"127.0.0.1:{own}")
    endpoint = grpc.aio.server(options=_OPTIONS)
    endpoint.add_generic_rpc_handlers((relay,))
    endpoint.add_insecure_port(f"127.0.0.1:{port}")
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    server = await asyncio.create_subprocess_exec(
        program, *arguments, env={**os.environ, "PARLEY_GRPC_URL": f"127.0.0.1:{port}"}
    )
    await endpoint.start()
    ended, stopped = asyncio.create_task(server.wait()), asyncio.create_task(stop.wait())
    await asyncio.wait((ended, stopped), return_when=asyncio.FIRST_COMPLETED)
    relay.is_closing = True
    closing = asyncio.create_task(endpoint.stop(GRACE_S + 5.0))
    for _ in range(int(GRACE_S / 0.1)):
        if not relay.streams:
            break
        await asyncio.sleep(0.1)
    print(f"{relay.streams} {CUT}", flush=True)
    if not ended.done():
        server.terminate()
    status = await ended
    closing.cancel()
    os._exit(status if status >= 0 else 128 - status)  # without waiting for streams that were cut


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2:]))
