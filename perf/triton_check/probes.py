"""The probes: each asks one question about a Triton."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import Any

import grpc
import numpy as np
import tritonclient.grpc.aio as triton
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub
from tritonclient.utils import InferenceServerException

from parley.errors import ParleyError
from parley.grpc_messages import to_message
from parley.inference import ModelRequest, text_tensor
from parley.triton.grpc_client import LoopbackClient
from triton_check.server import LOCK, ProbedServer

_LIMIT_S = 60.0
"""For one probe without its rounds."""
_ROUND_S = 1.0
"""For each round besides. One takes 0.2 s on two cores."""
VERDICT_ROUNDS = 300
_CALL_S = 20.0
_NOTICE_S = 10.0
"""In which a model has to notice that its caller has left."""
_SILENCE_S = 5.0
_STREAMS = 45
_LARGE = 8 << 20
"""Bytes of a tensor: eight times the region that a model begins with."""


@dataclass(frozen=True)
class Finding:
    """What one probe found."""

    name: str
    verdict: str
    """``holds`` or ``broken``; of a workaround ``needed``, ``not seen`` or ``undecided`` (too few rounds)."""
    detail: str


@dataclass(frozen=True)
class Probe:
    """One question."""

    name: str
    about: str
    """What rests on the answer, and where."""
    ask: Callable[[Asked], Awaitable[Answer]]
    is_workaround: bool
    """Whether Parley avoids what is asked for, so that it may fail; else Parley relies on it."""
    least_rounds: int = 0
    """So many rounds without the fault are a verdict: 20 have passed where 300 deadlock."""


@dataclass(frozen=True)
class Asked:
    """What a probe works with."""

    server: ProbedServer
    client: triton.InferenceServerClient
    streams: LoopbackClient
    rounds: int
    limit_s: float
    """For the probe."""


@dataclass(frozen=True)
class Answer:
    """Whether it works, and what was seen."""

    works: bool
    detail: str


def run(probe: Probe, server: ProbedServer, rounds: int, runner: asyncio.Runner) -> Finding:
    """One probe, on a server that is started for it if there is none; a failure is an answer.

    gRPC keeps to the event loop that it has met first: all probes run in that of ``runner``.
    """
    limit_s = _LIMIT_S + rounds * _ROUND_S
    good, bad = ("not seen", "needed") if probe.is_workaround else ("holds", "broken")
    try:
        server.start()
        answer = runner.run(_ask(probe, server, rounds, limit_s))
    except TimeoutError:
        answer = Answer(False, f"no answer within {limit_s:.0f} s")
    except grpc.aio.AioRpcError as error:
        answer = Answer(False, error.details() or str(error.code()))
    except (InferenceServerException, OSError, ParleyError) as error:
        answer = Answer(False, str(error))
    if server.has_ended():
        answer = Answer(False, f"tritonserver has ended; {answer.detail}")
    if not answer.works:
        server.stop()  # what is left of it may be stuck
    if answer.works and rounds < probe.least_rounds:
        return Finding(
            probe.name, "undecided", f"{answer.detail}; a verdict needs {probe.least_rounds} rounds"
        )
    return Finding(probe.name, good if answer.works else bad, answer.detail)


async def _ask(probe: Probe, server: ProbedServer, rounds: int, limit_s: float) -> Answer:
    streams = LoopbackClient(server.address)
    try:
        async with asyncio.timeout(limit_s), triton.InferenceServerClient(server.address) as client:
            return await probe.ask(Asked(server, client, streams, rounds, limit_s))
    finally:
        await streams.close()


def _text_input(asked: dict[str, Any]) -> list[triton.InferInput]:
    tensor = triton.InferInput("REQUEST", [1], "BYTES")
    tensor.set_data_from_numpy(np.array([json.dumps(asked).encode()], np.object_))
    return [tensor]


def _request(**asked: Any) -> ModelRequest:
    return ModelRequest(
        "probe_stream", {"REQUEST": text_tensor(json.dumps(asked))}, ("N",), timeout_s=_CALL_S
    )


async def _stream(streams: LoopbackClient, **asked: Any) -> AsyncGenerator[int, None]:
    """The numbers that ``probe_stream`` sends, by the client that models have; its errors are raised."""
    async with aclosing(streams.stream(_request(**asked))) as responses:
        async for response in responses:
            yield int(response["N"][0])


async def _numbers(streams: LoopbackClient, **asked: Any) -> list[int]:
    async with aclosing(_stream(streams, **asked)) as numbers:
        return [number async for number in numbers]


async def _call(asked: Asked, run: str, **options: Any) -> Any:
    """What ``probe_caller`` finds when it runs something in process."""
    inputs = _text_input({"run": run, **options})
    result = await asked.client.infer("probe_caller", inputs, client_timeout=asked.limit_s)
    return json.loads(result.as_numpy("RESULT").item())


async def _streams_at_once(asked: Asked) -> Answer:
    found = await asyncio.gather(*(_numbers(asked.streams, count=20) for _ in range(_STREAMS)))
    whole = [numbers == list(range(20)) for numbers in found]
    return Answer(all(whole), f"{sum(whole)} of {_STREAMS} streams at once are whole")


async def _cancelled_stream(asked: Asked) -> Answer:
    (before,) = await _numbers(asked.streams, left=True)
    async with aclosing(_stream(asked.streams, count=100_000, delay_s=0.02)) as numbers:
        await anext(numbers)
    end = time.monotonic() + _NOTICE_S
    while time.monotonic() < end:
        (now,) = await _numbers(asked.streams, left=True)
        if now > before:
            return Answer(True, "the model has noticed that its caller left")
        await asyncio.sleep(0.05)
    return Answer(False, f"the model has not noticed within {_NOTICE_S:.0f} s that its caller left")


async def _large_tensors(asked: Asked) -> Answer:
    data = np.arange(_LARGE, dtype=np.uint32).astype(np.uint8).reshape(1, -1)
    tensor = triton.InferInput("DATA", list(data.shape), "UINT8")
    tensor.set_data_from_numpy(data)
    result = await asked.client.infer(
        "probe_echo",
        [tensor],
        sequence_id=1,
        sequence_start=True,
        sequence_end=True,
        client_timeout=_CALL_S,
    )
    same = np.array_equal(result.as_numpy("SAME"), data)
    return Answer(
        same, f"{_LARGE >> 20} MiB there and back through a region of 1 MiB, {'' if same else 'not '}the same"
    )


async def _lock(asked: Asked) -> Answer:
    bare = await asyncio.to_thread(index_by_http2, asked.server.address)
    opened = await asyncio.to_thread(index_by_http2, asked.server.address, lock_header(LOCK))
    is_locked = b"probe_echo" not in bare and b"expecting header" in bare
    has_no_key = b"probe_echo" not in opened
    return Answer(
        is_locked and has_no_key,
        f"the repository's index is {'refused' if is_locked else 'given'} without a header, and "
        f"{'refused' if has_no_key else 'given'} with the header of the command line",
    )


async def _sequence_in_process(asked: Asked) -> Answer:
    found = await _call(asked, "sequence", name="call-7", chunks=3)
    expected = [[f"call-7 {flags}", [[n] * 3]] for n, flags in enumerate((1, 0, 2))]
    return Answer(found == expected, f"three chunks of a named sequence: {found}")


async def _error_in_process(asked: Asked) -> Answer:
    found = (await _call(asked, "stream", count=5, fail_at=2))["found"]
    return Answer(found == [0, 1, "asked to fail"], f"two responses and an error arrive as {found}")


async def _cancel_in_process(asked: Asked) -> Answer:
    can = (await _call(asked, "stream", count=1))["can_cancel"]
    return Answer(can, f"the stream has {'a' if can else 'no'} method to cancel it")


async def _together_in_process(asked: Asked) -> Answer:
    found = await _call(asked, "together", streams=_STREAMS, rounds=asked.rounds, count=20)
    detail = f"{asked.rounds} times {_STREAMS} streams that start together"
    return Answer(found["wrong"] is None, detail if found["wrong"] is None else f"{detail}: {found['wrong']}")


async def _hang_up(asked: Asked) -> Answer:
    """The end of the request follows its only response, with which the caller cancels its stream."""
    message = to_message(_request(count=1))

    async def first(stub: Any) -> None:
        call = stub.ModelStreamInfer()
        await call.write(message)
        await call.read()
        call.cancel()

    async with grpc.aio.insecure_channel(asked.server.address) as channel:
        stub = GRPCInferenceServiceStub(channel)
        for _ in range(asked.rounds):
            await asyncio.gather(*(first(stub) for _ in range(_STREAMS)))
    whole = await _numbers(asked.streams, count=3) == [0, 1, 2]
    return Answer(whole, f"{asked.rounds * _STREAMS} streams that are cancelled as they end")


async def _dead_model(asked: Asked) -> Answer:
    ended = False
    async with aclosing(_stream(asked.streams, count=100_000, delay_s=0.02)) as numbers:
        await anext(numbers)
        asked.server.kill_model("probe_stream")
        with suppress(TimeoutError):
            async with asyncio.timeout(_SILENCE_S):
                with suppress(ParleyError):
                    async for _ in numbers:
                        pass
                ended = True
    ready = await asked.client.is_model_ready("probe_stream")
    return Answer(
        ended and not ready,
        f"a model whose process was killed is {'' if ready else 'not '}ready; a stream under way "
        + ("ends" if ended else f"has not ended after {_SILENCE_S:.0f} s"),
    )


PROBES = (
    Probe("streams", "streams between models, by gRPC (triton/model_client.py)", _streams_at_once, False),
    Probe(
        "cancellation", "a caller that leaves ends the work (triton/responses.py)", _cancelled_stream, False
    ),
    Probe("shared-memory", "audio and features of any length (launcher/command.py)", _large_tensors, False),
    Probe("lock", "the protocols for administration have no key (launcher/command.py)", _lock, False),
    Probe("sequences", "recognisers called in process (triton/model_client.py)", _sequence_in_process, False),
    Probe(
        "errors-in-process",
        "without the fault, streams might stay in process",
        _error_in_process,
        is_workaround=True,
    ),
    Probe(
        "cancel-in-process",
        "without the fault, streams might stay in process",
        _cancel_in_process,
        is_workaround=True,
    ),
    Probe(
        "together-in-process",
        "a deadlock; without it, streams might stay in process (docs/decisions/streams-over-loopback.md)",
        _together_in_process,
        is_workaround=True,
        least_rounds=VERDICT_ROUNDS,
    ),
    Probe(
        "end-alone",
        "the last response carries the end of its request (triton/responses.py)",
        _hang_up,
        is_workaround=True,
        least_rounds=VERDICT_ROUNDS,
    ),
    Probe("dead-models", "canaries, the supervisor (docs/reliability.md)", _dead_model, is_workaround=True),
)
"""In this order: the last ones may end or block the server."""


_TIMEOUT_S = 10.0
_SETTINGS, _HEADERS, _DATA = 4, 1, 0
_END_STREAM, _END_HEADERS = 1, 4
_EMPTY_MESSAGE = b"\0" * 5


def lock_header(flag: str) -> tuple[str, str]:
    """Name and value of the header in ``--grpc-restricted-protocol=PROTOCOLS:NAME=VALUE``."""
    name, _, value = flag.partition("=")[2].partition(":")[2].partition("=")
    return name, value


def index_by_http2(address: str, *opening: tuple[str, str]) -> bytes:
    """What a Triton at ``address`` (``host:port``) sends back, up to the status of the call.

    ``opening`` are headers as those of :func:`lock_header`.

    Raises:
        OSError: it does not answer.
    """
    block = b"".join(
        _header(name, value)
        for name, value in (
            (b":method", b"POST"),
            (b":scheme", b"http"),
            (b":path", b"/inference.GRPCInferenceService/RepositoryIndex"),
            (b":authority", address.encode()),
            (b"content-type", b"application/grpc"),
            (b"te", b"trailers"),
            *((b"triton-grpc-protocol-" + name.encode(), value.encode()) for name, value in opening),
        )
    )
    host, _, port = address.partition(":")
    with socket.create_connection((host, int(port)), _TIMEOUT_S) as connection:
        connection.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(_SETTINGS, 0, 0, b""))
        connection.sendall(
            _frame(_HEADERS, _END_HEADERS, 1, block) + _frame(_DATA, _END_STREAM, 1, _EMPTY_MESSAGE)
        )
        received = b""
        while b"grpc-status" not in received and (piece := connection.recv(4096)):
            received += piece
    return received


def _header(name: bytes, value: bytes) -> bytes:
    """One HPACK field, in plain: not indexed, not compressed."""
    return b"".join([b"\0", *(part for text in (name, value) for part in (bytes([len(text)]), text))])


def _frame(kind: int, flags: int, stream: int, content: bytes) -> bytes:
    return len(content).to_bytes(3) + bytes([kind, flags]) + stream.to_bytes(4) + content
