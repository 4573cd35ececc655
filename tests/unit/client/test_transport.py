"""The transport against a gRPC server in this process, and the command's exit status and words."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import socket
import struct
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import numpy as np
import pytest
from fake_call_server import CONNECTED, Triton, serving
from tritonclient.grpc import service_pb2

from parley import protocol
from parley.errors import (
    InferenceError,
    InvalidInputError,
    ModelUnavailableError,
    NotPermittedError,
    OverloadedError,
    TooManySessionsError,
)
from parley_client import (
    NO_RETRY,
    AgentAudio,
    Backoff,
    CallLostError,
    ConnectError,
    Deadlines,
    Keepalive,
    connect,
)
from parley_client.channel import error_of_status, error_of_text, open_channel, wait_until_connected
from parley_client.cli.program import main
from parley_client.errors import NoGrpcError, NoServerError, WrongPortError
from parley_client.transport import Frame, TritonStream, to_reply


def test_waits_grow_stay_bounded_and_are_one_fewer_than_attempts():
    backoff = Backoff(attempts=8, initial_s=1.0, factor=2.0, max_s=5.0)
    longest = [1.0, 2.0, 4.0, 5.0, 5.0, 5.0, 5.0]
    draws = [list(backoff.waits(random.Random(seed))) for seed in range(200)]
    assert all(len(waits) == 7 for waits in draws)
    for position, limit in enumerate(longest):
        column = [waits[position] for waits in draws]
        assert 0.9 * limit < max(column) <= limit
        assert min(column) < 0.1 * limit  # full jitter: clients must not come back together


@pytest.mark.parametrize(
    "values", [{"attempts": 0}, {"initial_s": -1.0}, {"factor": 0.5}, {"initial_s": 9.0, "max_s": 8.0}]
)
def test_a_useless_backoff_is_refused(values):
    with pytest.raises(ValueError, match="backoff"):
        Backoff(**values)


def test_keepalive_lies_between_tritons_limit_and_the_load_balancers():
    options = dict(Keepalive().channel_options())
    assert 300_000 < options["grpc.keepalive_time_ms"] < 350_000


@pytest.mark.parametrize("values", [{"time_s": 350.0}, {"time_s": 0.0}, {"timeout_s": 0.0}])
def test_keepalive_that_comes_too_late_is_refused(values):
    with pytest.raises(ValueError, match="keepalive"):
        Keepalive(**values)


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
async def test_port_that_closes_connections_has_an_error_of_its_own(reset):
    async with closing_server(reset=reset) as address:
        with pytest.raises(NoGrpcError, match=f"^{address} closes connections at once; is it Triton's HTTP"):
            await reach(address)


async def test_port_without_a_listener_is_reported():
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


def test_write_to_an_ended_stream_raises_a_plain_error():
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


NO_SERVER = "127.0.0.1:1"
CLIP = str(Path(__file__).resolve().parents[2] / "data" / "conversation" / "01-hello.wav")


async def test_a_call_over_grpc():
    triton = Triton()
    async with serving(triton) as (address, _), connect(address, retry=NO_RETRY) as call:
        await call.send_audio(np.array([5, -6], np.int16))
        assert await anext(call) == CONNECTED
        audio = await anext(call)
        assert isinstance(audio, AgentAudio)
        assert audio.samples.tolist() == [5, -6]
        await call.send_audio(b"\xff\xff")
        assert (await anext(call)).code == "invalid_audio"
        assert await call.hang_up() == protocol.Closed(reason="ended")
    start, chunk, _, end = triton.requests
    assert start.model_name == "voice_agent"
    assert len({request.parameters["sequence_id"].string_param for request in triton.requests}) == 1
    asked = [
        request.parameters["triton_enable_empty_final_response"].bool_param for request in triton.requests
    ]
    assert asked == [True, True, False, True]  # of audio the first piece, and later ones now and then
    assert [(i.name, i.datatype, list(i.shape)) for i in chunk.inputs] == [
        ("MESSAGE", "BYTES", [1, 1]),
        ("AUDIO", "UINT8", [1, 4]),
    ]
    assert chunk.raw_input_contents[0] == b"\0\0\0\0"
    assert isinstance(protocol.decode_message(start.raw_input_contents[0][4:]), protocol.Start)
    assert end.parameters["sequence_end"].bool_param


async def test_a_server_that_dies_is_a_lost_call():
    async with serving(Triton()) as (address, server), connect(address, retry=NO_RETRY, resume=False) as call:
        assert await anext(call) == CONNECTED
        await server.stop(None)
        with pytest.raises(CallLostError):
            await anext(call)


async def test_a_server_without_the_model_is_unavailable():
    refusal = (grpc.StatusCode.UNAVAILABLE, "voice_agent is not ready")
    async with serving(Triton(refusal)) as (address, _):
        with pytest.raises(ConnectError, match="voice_agent is not ready") as caught:
            await connect(address, retry=NO_RETRY).__aenter__()
    assert isinstance(caught.value.__cause__, ModelUnavailableError)


async def test_address_without_a_server_fails_at_once():
    with pytest.raises(ConnectError, match="nothing answers at"):
        async with asyncio.timeout(5):
            await connect(NO_SERVER, retry=NO_RETRY, deadlines=Deadlines(connect_s=60)).__aenter__()


# --- the command ----------------------------------------------------------------------------


async def parley(*arguments):
    """Run the command in a process of its own: (status, output, errors)."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "parley_client.cli.program", *arguments, stdout=-1, stderr=-1
    )
    out, err = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode, out.decode(), err.decode()


async def test_probe_succeeds_against_a_server_that_answers():
    async with serving(Triton()) as (address, _):
        status, out, _ = await parley("probe", "--json", "--server", address)
    result = json.loads(out)
    assert (status, result["ok"], result["server"]) == (0, True, address)
    (model,) = result["models"]
    assert (model["model"], model["ok"]) == ("voice_agent", True)
    assert model["duration_ms"] > 0


async def test_probe_fails_with_a_server_that_has_no_model():
    async with serving(Triton(models=())) as (address, _):
        status, out, _ = await parley("probe", "--json", "--server", address)
    assert (status, json.loads(out)["ok"]) == (1, False)


async def test_probe_fails_without_a_server():
    status, out, err = await parley("probe", "--json", "--server", NO_SERVER)
    result = json.loads(out)
    assert (status, err) == (1, "")
    assert (result["ok"], result["code"], result["retryable"]) == (False, "connect_failed", True)


class Refusing(Triton):
    """Answers START with an error."""

    def __init__(self, words):
        super().__init__()
        self.words = words

    async def ModelStreamInfer(self, requests, context):  # noqa: N802 - gRPC's name
        async for request in requests:
            message = service_pb2.ModelStreamInferResponse(error_message=self.words)
            message.infer_response.id = request.id
            yield message


async def test_message_of_a_server_is_shown_verbatim():
    # Triton likes brackets, which rich would read as its own markup.
    words = "[request id: start] no [/model] is ready"
    async with serving(Refusing(words)) as (address, _):
        status, out, err = await parley("probe", "--server", address)
    assert (status, err) == (1, "")
    assert words in " ".join(out.split())
    assert f"failed: 1 of the 1 models of {address}" in " ".join(out.split())


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["say", "/nowhere.wav"], 1, "/nowhere.wav: no such file"),
        (["say", "--script", "/x.toml", "--barge-in-after", "900"], 2, "--barge-in-after is for files"),
        (["say"], 2, "audio files or --script"),
        (["say", "a.wav", "--script", "b.toml"], 2, "audio files or --script"),
        (["demo", "--script", "/nowhere.toml", "--server", NO_SERVER], 1, "No such file"),
    ],
)
def test_command_line_mistakes_are_one_line(capsys, arguments, status, words):
    assert main(arguments) == status
    captured = capsys.readouterr()
    assert captured.err.startswith("parley: ")
    assert words in captured.err.splitlines()[0]


def test_talking_needs_portaudio(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    assert main(["talk"]) == 1
    assert "`make talk` brings it" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
async def test_a_signal_hangs_up_before_the_program_ends(number):
    triton = Triton()
    async with serving(triton) as (address, _):
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "parley_client.cli.program",
            "say",
            CLIP,
            "--server",
            address,
            stdout=-1,
            stderr=-1,
        )
        async with asyncio.timeout(30):
            await triton.heard.wait()
            process.send_signal(number)
            out, err = await process.communicate()
    assert process.returncode == 130, err
    assert b"Interrupted." in out
    assert b"Traceback" not in err
    assert triton.requests[-1].parameters["sequence_end"].bool_param


async def test_a_reader_that_leaves_ends_the_command_without_a_word():
    triton = Triton()
    async with serving(triton) as (address, _):
        command = [sys.executable, "-m", "parley_client.cli.program", "say", CLIP, "--server", address]
        process = await asyncio.create_subprocess_exec(*command, stdout=-1, stderr=-1)
        async with asyncio.timeout(30):
            process.stdout._transport.close()  # before the first line
            err = await process.stderr.read()
            status = await process.wait()
    assert (status, err) == (141, b"")
    assert triton.requests[-1].parameters["sequence_end"].bool_param


def test_a_client_alone_says_that_it_has_no_server(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "parley.launcher", None)
    assert main(["demo"]) == 1
    assert "make demo" in capsys.readouterr().err
