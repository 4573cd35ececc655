from pathlib import Path

import pytest
from fake_engines import WordTokenizer

from parley.errors import ContextTooLongError, InvalidMessageError
from parley.llm.chat import PromptBuilder
from parley.llm.messages import ChatMessage, ToolCall
from parley.protocol import Tool

TINY = Path(__file__).parents[3] / "models" / "tiny-qwen3"


def user(text):
    return ChatMessage(role="user", content=text)


def test_max_tokens_is_cut_to_what_fits():
    builder = PromptBuilder(WordTokenizer(), 10)
    assert builder.build([user("a b c")], [], 5).max_tokens == 5
    assert builder.build([user("a b c")], [], 50).max_tokens == 7
    assert builder.build([user("a b c d e f g h i")], [], 50).max_tokens == 1


def test_no_room_for_an_answer():
    with pytest.raises(ContextTooLongError, match="10 tokens"):
        PromptBuilder(WordTokenizer(), 10).build([user("a " * 10)], [], 1)


def test_template_errors_are_the_callers():
    with pytest.raises(InvalidMessageError, match="the template says no"):
        PromptBuilder(WordTokenizer(), 10).build([user("raise")], [], 1)


def test_messages_as_templates_know_them():
    tokenizer = WordTokenizer()
    call = ToolCall(id="c1", name="get_time", arguments={"city": "Paris"})
    messages = [
        user("hi"),
        ChatMessage(role="assistant", tool_calls=[call]),
        ChatMessage(role="tool", content="{}", tool_call_id="c1"),
    ]
    tool = Tool(name="get_time", description="Time.", parameters={"type": "object"})
    options = {"enable_thinking": False, "tools": "not the template's"}
    PromptBuilder(tokenizer, 100, options).build(messages, [tool], 1)
    function = {"name": "get_time", "arguments": {"city": "Paris"}}
    assert tokenizer.conversation == [
        {"role": "user", "content": "hi"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"id": "c1", "type": "function", "function": function}],
        },
        {"role": "tool", "content": "{}", "tool_call_id": "c1"},
    ]
    described = {"name": "get_time", "description": "Time.", "parameters": {"type": "object"}}
    assert tokenizer.options["tools"] == [{"type": "function", "function": described}]
    assert tokenizer.options["enable_thinking"] is False
    assert tokenizer.options["add_generation_prompt"] is True


def test_no_tools_is_none():
    tokenizer = WordTokenizer()
    PromptBuilder(tokenizer, 100).build([user("hi")], [], 1)
    assert tokenizer.options["tools"] is None


def test_real_template_round_trip():
    """The prompt is what Qwen3's own template writes, thinking off, tool calls as JSON."""
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(TINY)
    call = ToolCall(id="c1", name="get_time", arguments={"city": "Paris"})
    messages = [
        ChatMessage(role="system", content="Be brief."),
        user("what time is it in paris"),
        ChatMessage(role="assistant", tool_calls=[call]),
        ChatMessage(role="tool", content='{"time": "10:30"}', tool_call_id="c1"),
    ]
    prompts = PromptBuilder(tokenizer, 4096, {"enable_thinking": False})
    prompt = prompts.build(messages, [Tool(name="get_time")], 64)
    text = tokenizer.decode(prompt.ids)
    assert text.startswith("<|im_start|>system\nBe brief.\n\n# Tools")
    assert (
        '<|im_start|>assistant\n<tool_call>\n{"name": "get_time", "arguments": {"city": "Paris"}}\n'
        '</tool_call><|im_end|>\n<|im_start|>user\n<tool_response>\n{"time": "10:30"}\n</tool_response>'
    ) in text
    assert text.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")
    assert prompt.max_tokens == 64
