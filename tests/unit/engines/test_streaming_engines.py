"""The engines over decoupled models, against a port that answers from a script."""

from functools import partial

import msgspec
import numpy as np
import pytest

from parley.chat import ChatMessage
from parley.engines.base import RemoteChat
from parley.engines.qwen3 import Qwen3ChatModel
from parley.engines.registry import CHAT_MODELS, RECOGNIZERS, SYNTHESIZERS, find_engine
from parley.engines.speech import ChatterboxSpeaker, KnownSpeaker
from parley.errors import InferenceError, ModelLoadingError, OverloadedError, UnsupportedVoiceError
from parley.inference import struct_tensor, tensor_bytes, text_tensor
from parley.llm.messages import Completed, GenerateRequest, TextDelta
from parley.tts.messages import MoreText, SpeakRequest, SpeechChunk

GENERATE = GenerateRequest(request_id="g", messages=[ChatMessage(role="user", content="hi")])
SPEAK = SpeakRequest(request_id="s", text="Hello.")
ESPEAK = partial(KnownSpeaker, model="espeak")


class Port:
    def __init__(self, *responses):
        self.responses = responses
        self.requests = []
        self.closed = 0

    async def stream(self, request):
        self.requests.append(request)
        try:
            for response in self.responses:
                if isinstance(response, Exception):
                    raise response
                yield response
        finally:
            self.closed += 1


def events(*values):
    return [{"EVENT": struct_tensor(value)} for value in values]


async def test_chat_events():
    answer = (TextDelta(text="Hi."), Completed(finish_reason="stop", completion_tokens=2))
    port = Port(*events(*answer))
    assert [event async for event in Qwen3ChatModel(port, timeout_s=3).generate(GENERATE)] == list(answer)
    (request,) = port.requests
    assert (request.model, request.outputs, request.request_id, request.timeout_s) == (
        "qwen3",
        ("EVENT",),
        "g",
        3,
    )
    assert b'"op":"generate"' in tensor_bytes(request.inputs["REQUEST"])


async def test_chat_without_completion_is_an_error():
    with pytest.raises(InferenceError, match="without completing"):
        _ = [event async for event in Qwen3ChatModel(Port(*events(TextDelta(text="H")))).generate(GENERATE)]


@pytest.mark.parametrize("raw", [b"{", b'{"type": "telepathy"}'])
async def test_chat_events_that_cannot_be_read(raw):
    with pytest.raises(InferenceError, match="cannot be read"):
        await anext(Qwen3ChatModel(Port({"EVENT": text_tensor(raw)})).generate(GENERATE))


async def test_failures_are_passed_on_and_streams_closed():
    port = Port(*events(TextDelta(text="H")), OverloadedError("full"))
    generator = Qwen3ChatModel(port).generate(GENERATE)
    await anext(generator)
    with pytest.raises(OverloadedError):
        await anext(generator)
    generator = Qwen3ChatModel(port).generate(GENERATE)
    await anext(generator)
    await generator.aclose()
    assert port.closed == 2


async def test_speech():
    chunk = SpeechChunk(sample_rate=22050, offset=0)
    port = Port({"CHUNK": struct_tensor(chunk), "AUDIO": np.array([1, 2], np.int16)})
    ((seen, audio),) = [pair async for pair in ESPEAK(port).speak(SPEAK)]
    assert (seen, audio.tolist(), audio.dtype) == (chunk, [1, 2], np.int16)
    assert port.requests[0].outputs == ("CHUNK", "AUDIO")


async def test_a_voice_is_looked_for_by_a_request_without_text():
    port = Port()
    await ChatterboxSpeaker(port).check_voice("anna")
    request = msgspec.json.decode(tensor_bytes(port.requests[0].inputs["REQUEST"]), type=SpeakRequest)
    assert (request.voice, request.text, request.final, port.closed) == ("anna", "", True, 1)
    with pytest.raises(UnsupportedVoiceError):
        await ChatterboxSpeaker(Port(UnsupportedVoiceError("missing"))).check_voice("missing")


@pytest.mark.parametrize("engine", [Qwen3ChatModel, ESPEAK, ChatterboxSpeaker])
async def test_abort(engine):
    port = Port()
    await engine(port).abort("x")
    raw = tensor_bytes(port.requests[0].inputs["REQUEST"])
    assert raw == b'{"op":"abort","request_id":"x"}'
    assert port.closed == 1


async def test_more_text():
    port = Port()
    await ChatterboxSpeaker(port).more(MoreText(request_id="x", text="and on", first=4, final=True))
    raw = tensor_bytes(port.requests[0].inputs["REQUEST"])
    assert raw == b'{"op":"more","request_id":"x","text":"and on","first":4,"final":true}'
    assert (port.requests[0].model, port.closed) == ("chatterbox", 1)


def test_registry():
    made = find_engine(CHAT_MODELS, "qwen3")(Port(), timeout_s=1.0, remote=RemoteChat())
    assert isinstance(made, Qwen3ChatModel)
    assert find_engine(SYNTHESIZERS, "chatterbox") is ChatterboxSpeaker
    assert "parakeet_tdt" in RECOGNIZERS
    with pytest.raises(ModelLoadingError, match="qwen3"):
        find_engine(CHAT_MODELS, "gpt")


def test_the_first_voice_is_the_default():
    speaker = find_engine(SYNTHESIZERS, "espeak")(Port(), timeout_s=1.0)
    assert speaker.voices[0] == "man-1"
    assert "en" in speaker.languages
