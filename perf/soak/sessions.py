"""What clients of the server itself do in the soak test: refused, cancelled, broken off, and normal."""

from __future__ import annotations

import asyncio
import random
import uuid
from collections.abc import AsyncGenerator, Awaitable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

import grpc
import grpc.aio
import msgspec
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from parley.asr.messages import AsrOptions, AsrReply, AsrRequest
from parley.errors import ParleyError, from_wire
from parley.grpc_messages import to_message
from parley.inference import ModelRequest, SequenceFlags, text_tensor
from parley.protocol import Closed, ErrorEvent, Start, VadOptions, decode_event, encode
from parley_client import NO_RETRY, connect
from parley_client.transport import Frame, ServerReply, TritonStream, TritonTransport
from soak.scripts import Scripts, UnexpectedAnswerError

RECOGNIZERS = ("parakeet_tdt", "nemotron_streaming")
FULL = "too_many_sessions"
_CHUNK = bytes(640)  # 20 ms of silence
_OPEN_S = 10.0
_ANSWER_S = 20.0
# Every session that a START of this kind opens is refused with the code.
_REFUSED: tuple[tuple[str, bytes], ...] = (
    *(("unsupported_language", encode(Start(language=name))) for name in ("de", "fr", "es", "it", "xx")),
    ("unsupported_sample_rate", encode(Start(output_sample_rate=44_100))),
    ("unsupported_sample_rate", encode(Start(input_sample_rate=48_000))),
    ("unsupported_voice", encode(Start(voice="nobody"))),
    ("invalid_message", encode(Start(vad=VadOptions(threshold=7.0)))),
    ("invalid_message", encode(Start(phrase_weight=99.0))),
    ("invalid_message", encode(Start(phrases=["€"]))),
    ("invalid_message", encode(Start(alternatives=99))),
    ("invalid_message", b"{"),
    ("invalid_message", b'{"type":"dance"}'),
    ("invalid_message", b'{"type":"commit"}'),
)
_REFUSED_STREAMS: tuple[tuple[str, bytes], ...] = (
    *(
        ("unsupported_language", msgspec.json.encode(AsrRequest(options=AsrOptions(language=name))))
        for name in ("de", "fr")
    ),
    ("invalid_message", msgspec.json.encode(AsrRequest(options=AsrOptions(phrase_weight=99.0)))),
    ("invalid_message", b'{"options":{"nbest":99}}'),
    ("invalid_message", b"nonsense"),
)


@dataclass(frozen=True)
class Target:
    """The server, as one caller reaches it."""

    address: str
    """``host:port`` of Triton's gRPC endpoint."""
    channel: grpc.aio.Channel
    """That all callers share, as a gateway's do."""
    gateway: str
    """URL of a gateway before the server."""
    random: random.Random
    """Of this caller alone."""
    scripts: Scripts | None = None
    """What conversations are about; shared by all callers. None: no conversations are held."""


class Session(Protocol):
    """One kind of session."""

    def __call__(self, target: Target) -> Awaitable[str]:
        """Hold it; returns the outcome. Raises :class:`UnexpectedAnswerError` or the session's failure."""
        ...


# --- a session with the agent -------------------------------------------------------------


class AgentStream:
    """One ``ModelStreamInfer`` call whose client does whatever it likes."""

    def __init__(self, stream: TritonStream) -> None:
        self._stream = stream

    async def send(self, name: str, message: bytes = b"", audio: bytes = b"", **flags: bool) -> None:
        """Send one request; a stream that the server has ended takes none."""
        with suppress(ParleyError):
            await self._stream.send(Frame(name, message=message, audio=audio, **flags))

    async def receive_until(self, *kinds: type[Any]) -> Any:
        """The next event of one of these kinds; None: the stream ended before."""
        while (reply := await self._receive()) is not None:
            if reply.error:
                raise from_wire(reply.error)
            if reply.event and isinstance(event := decode_event(reply.event), kinds):
                return event
        return None

    async def finish(self) -> None:
        """Send no more, and take the rest."""
        with suppress(ParleyError):
            await self._stream.finish()
            while await self._receive() is not None:
                pass

    def cancel(self) -> None:
        """Break the stream off."""
        self._stream.cancel()

    async def _receive(self) -> ServerReply | None:
        async with asyncio.timeout(_ANSWER_S):
            return await self._stream.receive()


@asynccontextmanager
async def _agent_stream(target: Target) -> AsyncGenerator[AgentStream]:
    transport = TritonTransport(target.address, channel=target.channel)
    stream = AgentStream(await transport.open(f"soak-{uuid.uuid4().hex}", _OPEN_S))
    try:
        yield stream
    finally:
        stream.cancel()


async def refused_session(target: Target) -> str:
    """A START that is refused; then the client ends its stream, with END or without."""
    code, message = target.random.choice(_REFUSED)
    async with _agent_stream(target) as stream:
        await stream.send("start", message, start=True)
        error = await stream.receive_until(ErrorEvent)
        if error is None or error.code not in (code, FULL):
            raise UnexpectedAnswerError(f"{message!r} was answered with {error}")
        if await stream.receive_until(Closed) is None:
            raise UnexpectedAnswerError(f"no closed after {error}")
        if target.random.random() < 0.5:
            await stream.send("end", end=True)
        await stream.finish()
        return str(error.code)


async def refused_call(target: Target) -> str:
    """A session in a language that is refused, opened by this project's client, as a gateway does."""
    language = target.random.choice(("de", "fr", "es", "it"))
    try:
        async with connect(target.address, language=language, retry=NO_RETRY):
            raise UnexpectedAnswerError(f"a session in {language!r} was opened")
    except ParleyError as error:
        return opening_code(error, "unsupported_language", FULL)


async def abandoned_call(target: Target) -> str:
    """A session with this project's client, given up at a random moment."""
    language = target.random.choice(("en", "de"))

    async def talk() -> str:
        async with connect(target.address, language=language, system_prompt="", retry=NO_RETRY) as call:
            for _ in range(target.random.randrange(25)):
                await call.send_audio(_CHUNK)
                await asyncio.sleep(0.02 * target.random.random())
        return "ended"

    longest_s = target.random.choice((0.01, 0.03, 0.1, 0.5))
    try:
        return await drop(talk(), longest_s * target.random.random(), "given up")
    except ParleyError as error:
        return opening_code(error, "unsupported_language", FULL)


async def short_call(target: Target) -> str:
    """A normal call: half a second of audio, then END."""
    try:
        async with connect(target.address, system_prompt="", retry=NO_RETRY) as call:
            await call.send_audio(_CHUNK * 25)
            closed = await call.hang_up()
    except ParleyError as error:
        return opening_code(error, FULL)
    if closed is None or closed.reason != "ended":
        raise UnexpectedAnswerError(f"a call was closed with {closed}")
    return "ended"


async def unknown_model(target: Target) -> str:
    """A request for a model that the server does not have, or without an input that the model needs."""
    name = target.random.choice(("nobody", "", "parakeet_tdt", "qwen3"))
    request = _request(name, uuid.uuid4().hex, b"", start=True)
    del request.inputs[:], request.raw_input_contents[:]
    stub = _stub(target)
    if target.random.random() < 0.5:
        try:
            await stub.ModelInfer(request, timeout=_ANSWER_S)
        except grpc.aio.AioRpcError as error:
            return error.code().name.lower()
        raise UnexpectedAnswerError(f"{name!r} answered a request without inputs")
    rpc = stub.ModelStreamInfer()
    try:
        await rpc.write(request)
        await rpc.done_writing()
        answers = await _read_all(rpc)
        if len(answers) != 1 or not answers[0].error_message:
            raise UnexpectedAnswerError(f"{name!r} answered a request without inputs: {answers}")
        return "refused"
    finally:
        rpc.cancel()


async def _read_all(rpc: Any) -> list[Any]:
    """What a stream still brings."""
    answers = []
    async with asyncio.timeout(_ANSWER_S):
        while (answer := await rpc.read()) is not grpc.aio.EOF:
            answers.append(answer)
    return answers


# --- a stream of a recogniser -------------------------------------------------------------


async def recognizer_stream(target: Target) -> str:
    """A short stream of audio, ended as it has to be."""
    stub, model, name = _stub(target), target.random.choice(RECOGNIZERS), uuid.uuid4().hex
    samples = 0
    try:
        for number in range(pieces := target.random.randrange(1, 6)):
            request = _request(model, name, _CHUNK * 8, start=number == 0, end=number == pieces - 1)
            reply = await stub.ModelInfer(request, timeout=_ANSWER_S)
            samples += 8 * len(_CHUNK) // 2
            stream_ms = msgspec.json.decode(reply.raw_output_contents[0][4:], type=AsrReply).stream_ms
            if stream_ms != samples // 16:
                raise UnexpectedAnswerError(f"{model} received {stream_ms} ms of {samples // 16} ms")
    except grpc.aio.AioRpcError as error:
        return _code_of(error, FULL)
    return "ended"


async def refused_stream(target: Target) -> str:
    """Options that a recogniser refuses; the stream is ended or left."""
    stub, model, name = _stub(target), target.random.choice(RECOGNIZERS), uuid.uuid4().hex
    code, message = target.random.choice(_REFUSED_STREAMS)
    try:
        await stub.ModelInfer(_request(model, name, b"", message, start=True), timeout=_ANSWER_S)
    except grpc.aio.AioRpcError as error:
        found = _code_of(error, code, FULL)
    else:
        raise UnexpectedAnswerError(f"{model} accepted {message!r}")
    if target.random.random() < 0.97:  # otherwise it keeps one of the model's places until it expires
        rpc = stub.ModelStreamInfer()
        try:
            await rpc.write(_request(model, name, b"", end=True))
            await rpc.done_writing()
            await _read_all(rpc)
        finally:
            rpc.cancel()
    return found


def _request(
    model: str, stream: str, audio: bytes, message: bytes = b"{}", *, start: bool = False, end: bool = False
) -> service_pb2.ModelInferRequest:
    """One piece of audio for a recogniser."""
    inputs = {
        "AUDIO": np.frombuffer(audio, np.int16).reshape(1, -1),
        "REQUEST": text_tensor(message, batched=True),
    }
    return to_message(ModelRequest(model, inputs, (), sequence=SequenceFlags(stream, start, end)))


def _stub(target: Target) -> Any:
    return service_pb2_grpc.GRPCInferenceServiceStub(target.channel)


def _code_of(error: grpc.aio.AioRpcError, *expected: str) -> str:
    code = from_wire(error.details() or "").code
    if code not in expected:
        raise error
    return code


def opening_code(error: ParleyError, *expected: str) -> str:
    """Why a session was not opened, whether or not the client would try again; raises any other error."""
    code = error.__cause__.code if isinstance(error.__cause__, ParleyError) else error.code
    if code not in expected:
        raise error
    return code


async def drop(session: Coroutine[Any, Any, str], after_s: float, outcome: str) -> str:
    """Hold a session for so long at most; its own outcome, or the one of a session that was dropped."""
    work = asyncio.create_task(session)
    try:
        await asyncio.wait([work], timeout=after_s)
    finally:
        work.cancel()
        await asyncio.wait([work])
    return outcome if work.cancelled() else work.result()


SESSIONS: dict[Session, int] = {
    refused_session: 3,
    refused_call: 3,
    abandoned_call: 3,
    short_call: 2,
    unknown_model: 1,
    recognizer_stream: 2,
    refused_stream: 2,
}
"""How often each kind is held, relative to the others.

No client cancels a request which the server is about to end: Triton before 25.04 does not survive that
(server#7840, server#8078).
"""
