"""Streams that speak in real time to a server, and how long it takes to answer."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

import grpc.aio
import msgspec
import numpy as np
import websockets.asyncio.client
from harness.stats import percentiles
from numpy.typing import NDArray
from recognizer_client import answered, recognizer_request
from rich.console import Console
from rich.table import Table
from tritonclient.grpc import service_pb2_grpc

from parley.asr.messages import (
    AsrOptions,
    AsrReply,
    AsrRequest,
    SpeechStoppedEvent,
    TranscribeReply,
    TranscriptEvent,
)
from parley.inference import tensor_bytes
from parley.protocol import VadOptions

RATE = 16_000
_DEADLINE_S = 20.0
_PAUSE_S = 0.2
_ASK_AGAIN_S = 0.01
"""A final text that another model writes comes with the answer to any chunk, also to an empty one."""
_PATIENT = VadOptions(silence_ms=2_000)
"""The flush ends an utterance, not a pause in it."""


@dataclass(frozen=True)
class Answer:
    """What a server answered to a chunk; times are 0 where it does not report them."""

    vad_ms: float = 0.0
    encoder_ms: float = 0.0
    decoder_ms: float = 0.0
    """Of the model calls that served it, together with other streams."""
    texts: int = 0
    """New partial texts."""

    @property
    def calls_ms(self) -> float:
        """All calls."""
        return self.vad_ms + self.encoder_ms + self.decoder_ms


@dataclass
class Paced:
    """What the streams of one level measured, in milliseconds."""

    chunks: list[float] = field(default_factory=list)
    """From sending a chunk to the answer that has heard it."""
    answers: list[Answer] = field(default_factory=list)
    """What the answer to each of them contained."""
    finals: list[float] = field(default_factory=list)
    """From the end of an utterance, said by the client, to its final text."""
    late: list[float] = field(default_factory=list)
    """How late each chunk was sent, because the answer before had not come."""
    first_texts: list[float] = field(default_factory=list)
    """From the beginning of each utterance to its first text."""
    partials: list[int] = field(default_factory=list)
    """Texts of each utterance before the final one."""


class Line(Protocol):
    """One stream to a server."""

    async def __aenter__(self) -> Self: ...

    async def __aexit__(self, *problem: object) -> None: ...

    async def begin(self) -> None:
        """An utterance is about to begin."""
        ...

    async def send(self, piece: NDArray[np.int16]) -> Answer:
        """Say the next chunk."""
        ...

    async def finish(self) -> str:
        """End the utterance and return its text."""
        ...


class TritonLine:
    """A sequence of a recogniser's Triton model."""

    def __init__(self, server: str, model: str, lookahead_ms: int | None) -> None:
        self._server = server
        self._model = model
        self._id = f"bench-{uuid.uuid4()}"
        options = AsrOptions(lookahead_ms=lookahead_ms, words=False, vad=_PATIENT)  # type: ignore[arg-type]
        self._start = msgspec.json.encode(AsrRequest(options=options))
        self._finals: list[str] = []
        self._owed: set[int] = set()

    async def __aenter__(self) -> Self:
        self._channel = grpc.aio.insecure_channel(self._server)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        await self._ask(b"", self._start, start=True)
        return self

    async def __aexit__(self, *_problem: object) -> None:
        try:
            await self._ask(b"", b"{}", end=True)
        finally:
            await self._channel.close()

    async def begin(self) -> None:
        """See the interface."""
        self._finals = []

    async def send(self, piece: NDArray[np.int16]) -> Answer:
        """See the interface."""
        reply = await self._ask(piece.astype("<i2").tobytes(), b"{}")
        texts = sum(isinstance(event, TranscriptEvent) for event in reply.events)
        return Answer(reply.vad_ms, reply.encoder_ms, reply.decoder_ms, texts)

    async def finish(self) -> str:
        """See the interface; the final text may come a little after the answer."""
        await self._ask(b"", msgspec.json.encode(AsrRequest(flush=True)))
        async with asyncio.timeout(_DEADLINE_S):
            while self._owed:
                await asyncio.sleep(_ASK_AGAIN_S)
                await self._ask(b"", b"{}")
        return " ".join(self._finals)

    async def _ask(self, audio: bytes, message: bytes, *, start: bool = False, end: bool = False) -> AsrReply:
        request = recognizer_request(self._model, self._id, audio, message, start=start, end=end)
        answer = await answered(self._stub.ModelInfer(request, timeout=_DEADLINE_S))
        raw = np.array([answer.raw_output_contents[0][4:]], object)
        reply = msgspec.json.decode(tensor_bytes(raw), type=AsrReply)
        for event in reply.events:
            if isinstance(event, SpeechStoppedEvent):
                self._owed.add(event.utterance)
            elif isinstance(event, TranscriptEvent) and event.is_final:
                self._owed.discard(event.utterance)
                self._finals.append(event.text)
        return reply


class WholeLine:
    """A model that takes whole recordings: it hears an utterance when it is over."""

    def __init__(self, server: str, model: str) -> None:
        self._server = server
        self._model = model
        self._audio: list[NDArray[np.int16]] = []

    async def __aenter__(self) -> Self:
        self._channel = grpc.aio.insecure_channel(self._server)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)
        return self

    async def __aexit__(self, *_problem: object) -> None:
        await self._channel.close()

    async def begin(self) -> None:
        """See the interface."""
        self._audio = []

    async def send(self, piece: NDArray[np.int16]) -> Answer:
        """See the interface; nothing is sent yet."""
        self._audio.append(piece)
        return Answer()

    async def finish(self) -> str:
        """See the interface."""
        audio = np.concatenate(self._audio).astype("<i2").tobytes()
        request = recognizer_request(self._model, "", audio)
        answer = await answered(self._stub.ModelInfer(request, timeout=_DEADLINE_S))
        raw = np.array([answer.raw_output_contents[0][4:]], object)
        return msgspec.json.decode(tensor_bytes(raw), type=TranscribeReply).text


class SherpaLine:
    """A connection to sherpa-onnx's websocket server; one utterance each."""

    def __init__(self, url: str, lead: NDArray[np.float32]) -> None:
        self._url = url
        self._lead = lead
        self._text = ""
        self._socket: websockets.asyncio.client.ClientConnection | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_problem: object) -> None:
        if self._socket is not None:
            await self._socket.close()

    async def begin(self) -> None:
        """See the interface."""
        self._text = ""
        self._socket = await websockets.asyncio.client.connect(self._url, open_timeout=_DEADLINE_S)
        await self._socket.send(self._lead.tobytes())

    async def send(self, piece: NDArray[np.int16]) -> Answer:
        """See the interface."""
        assert self._socket is not None
        await self._socket.send((piece.astype(np.float32) / 32768).tobytes())
        async with asyncio.timeout(_DEADLINE_S):
            text = json.loads(await self._socket.recv())["text"]
        changed, self._text = text != self._text, text
        return Answer(texts=int(changed))

    async def finish(self) -> str:
        """See the interface."""
        assert self._socket is not None
        text = ""
        await self._socket.send("Done")
        async with asyncio.timeout(_DEADLINE_S):
            while (message := await self._socket.recv()) != "Done!":
                text = json.loads(message)["text"]
        await self._socket.close()
        self._socket = None
        return text.strip()


@dataclass(frozen=True)
class Speech:
    """What every line says."""

    clips: Sequence[NDArray[np.int16]]
    """Recordings, i16 ``[n]``, 16 kHz."""
    chunk: int
    """Samples that are sent at once."""
    seconds: float
    """After so long no further clip is begun."""


async def run_level(lines: Sequence[Line], speech: Speech) -> Paced:
    """Let every line, none of them open yet, speak clip after clip."""
    paced = Paced()
    until = time.perf_counter() + speech.seconds
    async with asyncio.TaskGroup() as tasks:
        for number, line in enumerate(lines):
            tasks.create_task(_speak(line, number, speech, until, paced))
    return paced


async def _speak(line: Line, number: int, speech: Speech, until: float, paced: Paced) -> None:
    chunk = speech.chunk
    # Microphones are not in step with each other.
    await asyncio.sleep(chunk / RATE * ((number * 0.618) % 1))
    async with line:
        at = number
        while time.perf_counter() < until:
            at = (at + 1) % len(speech.clips)
            clip = np.pad(speech.clips[at], (0, -len(speech.clips[at]) % chunk))
            await line.begin()
            due = spoken = time.perf_counter()
            first, texts = None, 0
            for start in range(0, len(clip), chunk):
                due += chunk / RATE
                await asyncio.sleep(max(0.0, due - time.perf_counter()))
                began = time.perf_counter()
                answer = await line.send(clip[start : start + chunk])
                answered_at = time.perf_counter()
                paced.chunks.append(1000 * (answered_at - began))
                paced.answers.append(answer)
                paced.late.append(1000 * (began - due))
                texts += answer.texts
                if texts and first is None:
                    first = answered_at
            began = time.perf_counter()
            text = await line.finish()
            ended = time.perf_counter()
            paced.finals.append(1000 * (ended - began))
            if text:
                paced.first_texts.append(1000 * ((first or ended) - spoken))
                paced.partials.append(texts)
            await asyncio.sleep(_PAUSE_S)


def figures(paced: Paced) -> dict[str, Any]:
    """What is written down of a level, times in milliseconds."""
    beside = [whole - answer.calls_ms for whole, answer in zip(paced.chunks, paced.answers, strict=True)]
    known = any(answer.calls_ms for answer in paced.answers)
    slowest = sorted(range(len(paced.chunks)), key=lambda at: -paced.chunks[at])
    slowest = slowest[: max(1, len(slowest) // 100)]
    return {
        "chunks": len(paced.chunks),
        "chunk_latency_ms": _percentiles(paced.chunks),
        "beside_model_ms": _percentiles(beside) if known else None,
        "slowest_ms": {
            "voice activity": _mean([paced.answers[at].vad_ms for at in slowest]),
            "encoder": _mean([paced.answers[at].encoder_ms for at in slowest]),
            "decoder": _mean([paced.answers[at].decoder_ms for at in slowest]),
            "waiting and the way": _mean([beside[at] for at in slowest]),
        }
        if known
        else None,
        "final_ms": _percentiles(paced.finals),
        "late_ms": _percentiles(paced.late),
        "first_text_ms": _percentiles(paced.first_texts),
        "partials": _mean(paced.partials),
    }


def _mean(values: Sequence[float]) -> float:
    return round(statistics.fmean(values), 2) if values else 0.0


def _percentiles(values: Sequence[float]) -> list[float]:
    """p50, p95, p99."""
    return [round(value, 2) for value in percentiles(values) or (0.0, 0.0, 0.0)]


def print_bare(console: Console, rows: Sequence[dict[str, Any]]) -> None:
    """Streams that one processor holds."""
    table = Table(title="Streams that one processor holds in real time", title_justify="left")
    for name in ("chunk", "in a step", "parley", "sherpa-onnx", "ratio", "equal texts"):
        table.add_column(name, justify="right")
    for row in rows:
        for count in row["step_ms"]["parley"]:
            held = {name: count * row["chunk_ms"] / times[count] for name, times in row["step_ms"].items()}
            table.add_row(
                f"{row['chunk_ms']} ms",
                str(count),
                f"{held['parley']:.0f}",
                f"{held['sherpa']:.0f}",
                f"{held['parley'] / held['sherpa']:.2f}",
                f"{row['equal_texts']} of {row['clips']}",
            )
    console.print(table)


def print_paced(console: Console, rows: Sequence[dict[str, Any]]) -> None:
    """Latencies of the servers, and where the longest come from."""
    table = Table(title="Paced streams, milliseconds: p50 / p95 / p99", title_justify="left")
    table.add_column("chunk", justify="right")
    table.add_column("streams", justify="right")
    for name in ("server", "chunk to answer", "of that, beside the model's calls", "end to final text"):
        table.add_column(name)
    for row in rows:
        cells = (row["chunk_latency_ms"], row["beside_model_ms"], row["final_ms"])
        table.add_row(
            f"{row['chunk_ms']} ms",
            str(row["streams"]),
            row["server"],
            *("" if cell is None else _joined(cell) for cell in cells),
        )
    console.print(table)
    for row in rows:
        if row["slowest_ms"]:
            parts = ", ".join(f"{name} {value:.1f}" for name, value in row["slowest_ms"].items())
            console.print(
                f"slowest hundredth at {row['chunk_ms']} ms, {row['streams']} streams (mean ms): {parts}"
            )


def _joined(values: Sequence[float]) -> str:
    return " / ".join(f"{value:.1f}" for value in values)


def print_batch(console: Console, rows: Sequence[dict[str, Any]]) -> None:
    """Streaming against batch."""
    table = Table(title="Streaming and batch, milliseconds: p50 / p95 / p99", title_justify="left")
    for name in ("recognised", "streams", "to the first text", "partial texts", "chunk to answer"):
        table.add_column(name)
    table.add_column("end to final text")
    table.add_column("chunk sent too late, p95")
    for row in rows:
        table.add_row(
            row["server"],
            str(row["streams"]),
            _joined(row["first_text_ms"]),
            f"{row['partials']:.1f}",
            "" if row["server"] == "at the end" else _joined(row["chunk_latency_ms"]),
            _joined(row["final_ms"]),
            f"{row['late_ms'][1]:.1f}",
        )
    console.print(table)
