"""What a failed connection or call is called."""

from __future__ import annotations

import asyncio
import socket
import struct
from contextlib import asynccontextmanager

import grpc
import pytest
from tritonclient.grpc import service_pb2

from parley.errors import (
    InferenceError,
    InvalidInputError,
    ModelUnavailableError,
    NotPermittedError,
    OverloadedError,
    TooManySessionsError,
)
from parley_client.channel import error_of_status, error_of_text, open_channel, wait_until_connected
from parley_client.errors import NoGrpcError, NoServerError, WrongPortError
from parley_client.transport import Frame
from parley_client.triton import TritonStream, to_reply


async def reach(address):
    channel = open_channel(address, None, [])
    try:
        async with asyncio.timeout(30):
            await wait_until_connected(channel, address)
    finally:
        await channel.close()


@asynccontextmanager
async def web_server():
    async def answer(reader, writer):
        await reader.read(1)
        writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_a_port_that_speaks_http_is_recognised():
    async with web_server() as address:
        with pytest.raises(WrongPortError, match="HTTP or metrics port") as caught:
            await reach(address)
    assert not caught.value.retryable


@asynccontextmanager
async def closing_server(*, reset):
    """Closes connections as soon as they speak, as Triton's HTTP ports do, or resets them."""

    async def close(reader, writer):
        await reader.read(1)
        if reset:
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.close()

    server = await asyncio.start_server(close, "127.0.0.1", 0)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize("reset", [False, True])
async def test_a_port_that_closes_connections_is_told_from_one_where_nobody_listens(reset):
    async with closing_server(reset=reset) as address:
        with pytest.raises(NoGrpcError, match=f"^{address} closes connections at once; is it Triton's HTTP"):
            await reach(address)


async def test_a_port_where_nobody_listens():
    with pytest.raises(NoServerError, match=r"nothing answers at 127\.0\.0\.1:9"):
        await reach("127.0.0.1:9")


@pytest.mark.parametrize(
    ("code", "details", "kind", "retryable"),
    [
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "too much", OverloadedError, True),
        (grpc.StatusCode.UNAVAILABLE, "Socket closed", ModelUnavailableError, True),
        (grpc.StatusCode.INVALID_ARGUMENT, "unexpected shape", InvalidInputError, False),
        (grpc.StatusCode.UNIMPLEMENTED, "Method not found!", InvalidInputError, False),
        (grpc.StatusCode.UNAUTHENTICATED, "no token", NotPermittedError, False),
        (grpc.StatusCode.PERMISSION_DENIED, "not you", NotPermittedError, False),
        (grpc.StatusCode.UNKNOWN, "boom", InferenceError, True),
        # What a model says goes before what its status means.
        (grpc.StatusCode.UNAVAILABLE, "too_many_sessions: 8", TooManySessionsError, True),
    ],
)
def test_a_status_says_whether_to_try_again(code, details, kind, retryable):
    error = error_of_status(code, details)
    assert type(error) is kind
    assert error.retryable == retryable
    assert details.endswith(str(error))


def test_a_stream_that_ended_before_a_write_is_told_in_plain_words():
    error = error_of_status(grpc.StatusCode.INTERNAL, "Internal error from Core")
    assert str(error) == "the server ended the stream before it took the request"
    assert error.retryable


@pytest.mark.parametrize(
    ("why", "words"),
    [
        ("is not found", "the model voice_agent is not loaded by this server"),
        ("has no available versions", "it failed to load"),
        ("version 1 is not at ready state", "still loading"),
    ],
)
def test_a_model_that_is_not_loaded_is_named(why, words):
    text = f"[request id: start] Request for unknown model: 'voice_agent' {why}"
    error = error_of_text(text)
    assert type(error) is ModelUnavailableError
    assert words in str(error)
    reply = to_reply(service_pb2.ModelStreamInferResponse(error_message=text))
    assert reply.error == error.to_wire()


class EndedRpc:
    """A call that the server has refused before anything was written."""

    def __init__(self, code, details):
        self._code, self._details = code, details

    async def write(self, request):
        raise asyncio.InvalidStateError("RPC already finished.")

    done_writing = write

    def done(self):
        return True

    async def code(self):
        return self._code

    async def details(self):
        return self._details


@pytest.mark.parametrize(
    ("code", "details", "kind", "words"),
    [
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "too many streams", OverloadedError, "too many streams"),
        (grpc.StatusCode.OK, "", InferenceError, "the stream has ended"),
    ],
)
async def test_a_refusal_before_the_first_request_is_what_sending_raises(code, details, kind, words):
    with pytest.raises(kind, match=words):
        await TritonStream(EndedRpc(code, details), "id").send(Frame("start", start=True))
