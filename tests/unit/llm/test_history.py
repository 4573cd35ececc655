"""What the language model is told about the conversation so far."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from parley.llm.history import History
from parley.llm.messages import ChatMessage, ToolCall
from parley.protocol import Tool


def exchange(history, number, *, tool=False):
    history.add_user(f"question {number} " + "x" * 60)
    call = ToolCall(id=f"c{number}", name="t", arguments={})
    messages = [ChatMessage(role="assistant", content=f"answer {number}")]
    if tool:
        messages = [
            ChatMessage(role="assistant", tool_calls=[call]),
            ChatMessage(role="tool", content="1", tool_call_id=call.id),
            *messages,
        ]
    history.extend(messages)


def test_messages_that_nobody_answered_are_joined():
    history = History("", 1_000)
    history.add_user("what is")
    history.add_user("the weather")
    assert [message.content for message in history.messages()] == ["what is the weather"]


def test_messages_that_nobody_answers_do_not_grow_for_ever():
    history = History("", 100)
    for number in range(200):
        history.add_user(f"question {number}")
    (message,) = history.messages()
    assert message.content.endswith("question 199")
    assert len(message.content) < 300


def test_the_newest_exchange_stays_however_long_it_is():
    history = History("be brief", 50)
    history.add_user("x" * 10_000)
    assert [message.role for message in history.messages()] == ["system", "user"]
    assert not history.forget_oldest()


def test_tools_take_a_part_of_the_budget():
    tool = Tool(name="t", description="y" * 600)
    plain, tooled = History("", 400), History("", 400, [tool])
    for number in range(10):
        exchange(plain, number)
        exchange(tooled, number)
    assert len(tooled.messages()) < len(plain.messages())


def test_a_preview_joins_and_forgets_as_adding_would():
    history = History("be brief", 100)
    for number in range(3):
        exchange(history, number)
    before = history.messages()
    for text in ("and then", "x" * 150):
        seen = history.preview(text)
        assert history.messages() == before
        history.add_user(text)
        assert seen == history.messages() != before
        before = history.messages()
    assert before[-1].content == "and then " + "x" * 150


@given(st.lists(st.booleans(), min_size=1, max_size=40), st.integers(60, 900))
def test_the_oldest_exchanges_go_first_and_whole(tools, budget):
    history = History("system", budget)
    for number, tool in enumerate(tools):
        exchange(history, number, tool=tool)
    system, *rest = history.messages()
    assert (system.role, rest[0].role) == ("system", "user")
    assert rest[-1].content == f"answer {len(tools) - 1}"
    asked = [call.id for message in rest for call in message.tool_calls]
    assert asked == [message.tool_call_id for message in rest if message.role == "tool"]
    kept = [message.content.split()[1] for message in rest if message.role == "user"]
    assert kept == [str(number) for number in range(len(tools) - len(kept), len(tools))]
