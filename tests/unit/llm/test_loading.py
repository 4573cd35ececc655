"""How a chat model is loaded: settings that are wrong, and its first answer."""

from __future__ import annotations

import pytest
from fake_engines import ScriptedEngine, WordTokenizer

from parley.errors import InferenceError, ModelLoadingError
from parley.llm.engine import Progress
from parley.llm.guidance import ToolGuidance
from parley.llm.prompt import PromptBuilder
from parley.llm.replies import HermesFormat
from parley.llm.service import ChatService
from parley.models.qwen3 import load_chat_service, warm_up
from parley.runtime.parameters import Parameters


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
    (asked,) = engine.requests
    assert asked.structural_tag is not None
    assert asked.max_tokens == 8


async def test_an_engine_that_cannot_answer_is_not_loaded():
    class Broken(ScriptedEngine):
        async def generate(self, request):
            raise InferenceError("no kernel")
            yield

    with pytest.raises(ModelLoadingError, match="no kernel"):
        await warm_up(chat_on(Broken()))
