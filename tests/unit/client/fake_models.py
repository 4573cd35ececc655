"""A server with models that answer as the test says, for clients of single stages."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager

import grpc.aio
import msgspec
import numpy as np
from tritonclient.grpc import service_pb2, service_pb2_grpc

from parley.asr.messages import AsrReply, AsrRequest, TranscribeReply, TranscribeRequest
from parley.embeddings.messages import EmbeddingSpace, EmbedReply
from parley.errors import InvalidMessageError, UnsupportedVoiceError
from parley.llm.messages import Completed, TextDelta
from parley.triton.model_control import CONTROL_MODEL
from parley.tts.messages import SpeechChunk, WordMark
from parley.tts.voice_messages import (
    DeleteVoice,
    DescribeVoice,
    EnrollVoice,
    VoiceDetails,
    VoicesReply,
    VoicesRequest,
    VoiceSummary,
)
from parley_stages import open_server
from parley_stages.transcription import TRANSCRIBERS


def add_text(response, name, value):
    raw = msgspec.json.encode(value)
    response.outputs.add(name=name, datatype="BYTES", shape=[1])
    response.raw_output_contents.append(len(raw).to_bytes(4, "little") + raw)


def add_audio(response, samples):
    response.outputs.add(name="AUDIO", datatype="INT16", shape=[len(samples)])
    response.raw_output_contents.append(np.asarray(samples, "<i2").tobytes())


def text_of(request, name="REQUEST"):
    index = [tensor.name for tensor in request.inputs].index(name)
    return request.raw_input_contents[index][4:]


def samples_of(request):
    index = [tensor.name for tensor in request.inputs].index("AUDIO")
    return np.frombuffer(request.raw_input_contents[index], "<i2")


class FakeModels(service_pb2_grpc.GRPCInferenceServiceServicer):
    """As a recogniser it answers with the events (or the error's text) that ``hear(request)`` returns.

    As any other model, with the outputs by name (or the error's text) that ``answer(message)`` yields.
    """

    def __init__(self):
        self.heard = []  # (start, end, samples, flush)
        self.asked = []  # JSON of every decoupled request
        self.asked_models = []  # who was asked
        self.may_hear = asyncio.Event()
        self.may_hear.set()
        self.hearing = asyncio.Event()
        self.ended = asyncio.Event()
        self.hear = lambda _: []
        self.refusal = []  # what the start of a stream is answered with
        self.answer = None
        self.embedded = []  # (text, kind)
        self.transcribed = []  # (samples, TranscribeRequest) of recordings
        self.transcript = TranscribeReply(text="")  # or an error's text
        self.transcriber = ""  # the model that was asked last
        self.recognizer = ""  # the same for streams of speech
        self.ready = set()
        self.refusing = None  # of a plain server: the errors of models that refuse all requests, by name
        self.probed = []  # models that were asked on it whether they refuse
        self.agent_tts = None  # what voice_agent is configured with; None: it is not there
        self.voices = {}  # what voice_enrollment has stored, by id
        self.recordings = []  # that it has got
        self.configurations = []  # names of the models whose configuration was asked for

    async def ModelReady(self, request, context):  # noqa: N802 - gRPC's name
        is_launched = self.refusing is None and request.name == CONTROL_MODEL
        is_ready = request.name in self.ready or request.name in (self.refusing or {})
        return service_pb2.ModelReadyResponse(ready=is_launched or is_ready)

    async def ModelMetadata(self, request, context):  # noqa: N802 - gRPC's name
        reply = service_pb2.ModelMetadataResponse(name=request.name)
        reply.inputs.add(name="AUDIO", datatype="INT16", shape=[-1, -1])
        reply.inputs.add(name="REQUEST", datatype="BYTES", shape=[-1, 1])
        return reply

    async def ModelConfig(self, request, context):  # noqa: N802 - gRPC's name
        self.configurations.append(request.name)
        if request.name != "voice_agent" or self.agent_tts is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"unknown model: {request.name!r}")
        reply = service_pb2.ModelConfigResponse()
        reply.config.parameters["tts"].string_value = self.agent_tts
        return reply

    async def RepositoryIndex(self, request, context):  # noqa: N802 - gRPC's name
        await context.abort(grpc.StatusCode.UNAVAILABLE, "This protocol is restricted")

    async def ModelStatistics(self, request, context):  # noqa: N802 - gRPC's name
        return service_pb2.ModelStatisticsResponse()  # no model that a canary could be asked of

    async def ModelInfer(self, request, context):  # noqa: N802 - gRPC's name
        if request.model_name in TRANSCRIBERS:
            return await self._transcribe(request, context)
        if request.model_name == "embeddings":
            return await self._embed(request, context)
        if request.model_name == "voice_enrollment":
            return await self._keep_voices(request, context)
        self.recognizer = request.model_name
        start = request.parameters["sequence_start"].bool_param
        end = request.parameters["sequence_end"].bool_param
        plain = all(tensor.name != "REQUEST" for tensor in request.inputs)
        message = AsrRequest() if plain else msgspec.json.decode(text_of(request), type=AsrRequest)
        self.heard.append((start, end, samples_of(request), message))
        self.hearing.set()
        await self.may_hear.wait()
        response = service_pb2.ModelInferResponse(model_name=request.model_name)
        events = []
        if end:
            self.ended.set()
        elif start:
            events = self.refusal
        else:
            events = self.hear(self.heard[-1])
        if isinstance(events, str):
            await context.abort(grpc.StatusCode.INTERNAL, events)
        add_text(response, "REPLY", AsrReply(events=events))
        return response

    async def _transcribe(self, request, context):
        message = msgspec.json.decode(text_of(request), type=TranscribeRequest)
        self.transcribed.append((samples_of(request), message))
        self.transcriber = request.model_name
        self.hearing.set()
        await self.may_hear.wait()
        if isinstance(self.transcript, str):
            await context.abort(grpc.StatusCode.INTERNAL, self.transcript)
        response = service_pb2.ModelInferResponse(model_name=request.model_name)
        add_text(response, "REPLY", self.transcript)
        return response

    async def _embed(self, request, context):
        """A vector on the second axis for texts of an odd length; refuses ``refused``, and counts letters."""
        text = text_of(request, "TEXT").decode()
        self.embedded.append((text, msgspec.json.decode(text_of(request))["kind"]))
        if text == "refused":
            await context.abort(grpc.StatusCode.INTERNAL, InvalidMessageError("no words").to_wire())
        response = service_pb2.ModelInferResponse(model_name=request.model_name)
        response.outputs.add(name="EMBEDDING", datatype="FP32", shape=[1, 2])
        vector = np.eye(2, dtype="<f4")[len(text) % 2]
        response.raw_output_contents.append(vector.tobytes())
        space = EmbeddingSpace(fingerprint="one", dimensions=2, max_tokens=8)
        add_text(
            response, "REPLY", EmbedReply(space=space, tokens=min(8, len(text)), is_truncated=len(text) > 8)
        )
        return response

    async def _keep_voices(self, request, context):
        message = msgspec.json.decode(text_of(request), type=VoicesRequest)
        found = list(self.voices.values())
        match message:
            case EnrollVoice():
                index = [tensor.name for tensor in request.inputs].index("AUDIO")
                self.recordings.append(request.raw_input_contents[index])
                details = VoiceDetails(
                    name=message.name,
                    languages=message.languages,
                    description=message.description,
                    consent=message.consent,
                )
                self.add_voice(message.voice_id, details=details)
                found = [self.voices[message.voice_id]]
            case DescribeVoice() | DeleteVoice() if message.voice_id not in self.voices:
                await context.abort(
                    grpc.StatusCode.INTERNAL, UnsupportedVoiceError("no such voice").to_wire()
                )
            case DescribeVoice():
                found = [self.voices[message.voice_id]]
            case DeleteVoice():
                found = []
                del self.voices[message.voice_id]
        response = service_pb2.ModelInferResponse(model_name=request.model_name)
        add_text(response, "REPLY", VoicesReply(voices=found))
        return response

    def add_voice(self, voice_id, **fields):
        given = {"digest": "d" * 64, "prompt_s": 4.0, "details": VoiceDetails(name=voice_id)} | fields
        self.voices[voice_id] = VoiceSummary(voice_id=voice_id, **given)

    async def ModelStreamInfer(self, requests, context):  # noqa: N802 - gRPC's name
        async for request in requests:
            if not text_of(request):
                self.probed.append(request.model_name)
                invalid = InvalidMessageError("not JSON").to_wire()
                error = (self.refusing or {}).get(request.model_name, invalid)
                yield service_pb2.ModelStreamInferResponse(error_message=error)
                continue
            message = msgspec.json.decode(text_of(request))
            self.asked.append(message)
            self.asked_models.append(request.model_name)
            async for outputs in self.answer(message):
                response = service_pb2.ModelStreamInferResponse()
                if isinstance(outputs, str):
                    response.error_message = outputs
                else:
                    response.infer_response.model_name = request.model_name
                    for name, value in outputs.items():
                        if name == "AUDIO":
                            add_audio(response.infer_response, value)
                        else:
                            add_text(response.infer_response, name, value)
                yield response

    def aborted(self):
        return [message["request_id"] for message in self.asked if message["op"] == "abort"]


class Chat:
    """Writes "one", "two"... until it is aborted; ``last`` ends it by itself."""

    def __init__(self, fake, last=None):
        self.stop = asyncio.Event()
        self.aborted = asyncio.Event()
        self.asked = asyncio.Event()
        self.last = last
        fake.answer = self.answer

    async def answer(self, message):
        if message["op"] == "abort":
            self.stop.set()
            self.aborted.set()
            return
        self.asked.set()
        yield {"EVENT": TextDelta(text="one")}
        yield {"EVENT": TextDelta(text="two")}
        if self.last is None:
            await self.stop.wait()
            self.last = Completed(finish_reason="abort")
        yield self.last if isinstance(self.last, str) else {"EVENT": self.last}


class Voice:
    """Says every character in two samples, or ``times`` of them, which are its code; words have marks."""

    def __init__(self, fake, rate=16_000, times=2):
        self.rate = rate
        self.times = times
        self.spoken = []
        self.hold = asyncio.Event()
        self.hold.set()
        self.aborted = asyncio.Event()
        fake.answer = self.answer

    async def answer(self, message):
        if message["op"] == "abort":
            self.aborted.set()
            self.hold.set()
            return
        text = message["text"]
        self.spoken.append(text)
        marks = [
            WordMark(start_char=at, end_char=at + len(word), at_sample=self.times * at)
            for word in text.split()
            for at in [text.index(word)]
        ]
        audio = np.repeat(np.frombuffer(text.encode("latin-1"), np.uint8), self.times).astype(np.int16)
        half = len(audio) // 2
        yield {
            "CHUNK": SpeechChunk(
                sample_rate=self.rate, offset=0, words=[mark for mark in marks if mark.at_sample < half]
            ),
            "AUDIO": audio[:half],
        }
        await self.hold.wait()
        yield {
            "CHUNK": SpeechChunk(
                sample_rate=self.rate, offset=half, words=[mark for mark in marks if mark.at_sample >= half]
            ),
            "AUDIO": audio[half:],
        }


@asynccontextmanager
async def serving_fake(fake=None):
    """A fake that serves at its ``address``."""
    fake = fake or FakeModels()
    server = grpc.aio.server(options=[("grpc.max_receive_message_length", -1)])
    service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(fake, server)
    fake.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    fake.stop = lambda: server.stop(None)
    await server.start()
    try:
        yield fake
    finally:
        await server.stop(None)


@asynccontextmanager
async def serving_models():
    """A fake, and the connection of a client to it."""
    async with serving_fake() as fake, open_server(fake.address) as connection:
        yield fake, connection
