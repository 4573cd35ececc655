"""The model ``qwen3``: its settings, its first answer, and its requests."""

from __future__ import annotations

import pytest
from fake_engines import ScriptedEngine, WordTokenizer

from parley.chat import ChatMessage
from parley.errors import InferenceError, InvalidMessageError, ModelLoadingError
from parley.inference import struct_tensor, tensor_struct, text_tensor
from parley.llm.engine import Progress
from parley.llm.guidance import ToolGuidance
from parley.llm.messages import AbortRequest, Completed, GenerateRequest, TextDelta
from parley.llm.prompt import PromptBuilder
from parley.llm.replies import HermesFormat
from parley.llm.service import ChatService
from parley.models.qwen3 import ChatHandler, load_chat_service, warm_up
from parley.runtime.parameters import Parameters
from parley.triton.model_traces import ModelTraces

REQUEST = GenerateRequest(request_id="r", messages=[ChatMessage(role="user", content="hi")])


class Responder:
    def __init__(self, room=10):
        self.sent = []
        self.room = room

    def send(self, outputs):
        if len(self.sent) == self.room:
            return False
        self.sent.append(outputs["EVENT"])
        return True


def handler(engine):
    return ChatHandler(ChatService(engine, PromptBuilder(WordTokenizer(), 1_000)), ModelTraces("qwen3", None))


async def test_generate():
    responder = Responder()
    engine = ScriptedEngine(Progress("Hi.", 1, finish_reason="stop"))
    await handler(engine)(responder, {"REQUEST": struct_tensor(REQUEST)})
    text, completed = responder.sent
    assert tensor_struct(text, TextDelta).text == "Hi."
    assert tensor_struct(completed, Completed).finish_reason == "stop"


async def test_abort_is_answered_by_nothing():
    responder = Responder()
    handle = handler(ScriptedEngine())
    await handle(responder, {"REQUEST": struct_tensor(AbortRequest(request_id="r"))})
    assert responder.sent == []
    await handle(responder, {"REQUEST": struct_tensor(REQUEST)})
    assert tensor_struct(responder.sent[0], Completed).finish_reason == "abort"


async def test_stops_when_the_request_has_ended():
    engine = ScriptedEngine(Progress("a"), Progress("b"), None)
    await handler(engine)(Responder(room=1), {"REQUEST": struct_tensor(REQUEST)})
    assert engine.closed == ["r"]


async def test_requests_without_an_id_get_one_each():
    engine = ScriptedEngine(Progress("Hi.", 1, finish_reason="stop"))
    handle = handler(engine)
    for _ in range(2):
        raw = b'{"op": "generate", "messages": [{"role": "user", "content": "hi"}]}'
        await handle(Responder(), {"REQUEST": text_tensor(raw)})
    first, second = [request.request_id for request in engine.requests]
    assert first
    assert first != second


@pytest.mark.parametrize("raw", [b"", b"\xff", b"{", b'{"op": "fly"}', b'{"op": "generate"}', b"[" * 10000])
async def test_garbage(raw):
    with pytest.raises(InvalidMessageError):
        await handler(ScriptedEngine())(Responder(), {"REQUEST": text_tensor(raw)})


@pytest.mark.parametrize("raw", ["{", "[]", "true"])
def test_template_variables_that_are_no_object(tmp_path, raw):
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_text("{}")
    values = {"weights": str(tmp_path), "chat_template_kwargs": raw}
    with pytest.raises(ModelLoadingError, match="chat_template_kwargs"):
        load_chat_service(Parameters("qwen3", values, environment={}), "")


def chat_on(engine):
    return ChatService(
        engine, PromptBuilder(WordTokenizer(), 1_000), HermesFormat(ToolGuidance(lambda _: None))
    )


@pytest.mark.parametrize(
    "written",
    [
        Progress("Hi.", 2, 3, finish_reason="stop"),
        Progress('<tool_call>{"name"', 8, 3, finish_reason="length"),
    ],
)
async def test_the_first_answer_is_guided_and_may_be_cut_off(written):
    engine = ScriptedEngine(written)
    await warm_up(chat_on(engine))
    asked, spoken, *questions = engine.requests
    assert asked.structural_tag is not None
    assert (asked.max_tokens, spoken.max_tokens) == (8, 8)
    # vLLM compiles a kernel for the first of them.
    assert [len(question.scored) for question in questions] == [2, 2]


async def test_an_engine_that_cannot_answer_is_not_loaded():
    class Broken(ScriptedEngine):
        async def generate(self, request):
            raise InferenceError("no kernel")
            yield

    with pytest.raises(ModelLoadingError, match="no kernel"):
        await warm_up(chat_on(Broken()))
