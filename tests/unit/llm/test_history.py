"""What the language model is told about the conversation so far."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from parley.llm.history import History, estimate_tokens
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


@given(st.lists(st.booleans(), min_size=1, max_size=40), st.integers(120, 900))
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


def say(history, number):
    history.extend([ChatMessage(role="assistant", content=f"Announcement {number}: the train is late.")])


def test_what_is_said_to_a_user_who_never_answers_is_forgotten_in_time():
    history = History("You are an agent.", 400)
    sizes = set()
    for number in range(300):
        say(history, number)
        sizes.add(len(history.messages()))
    assert max(sizes) < 30
    system, *rest = history.messages()
    assert system.content == "You are an agent."
    numbers = [int(message.content.split()[1][:-1]) for message in rest]
    assert numbers == list(range(300 - len(rest), 300))
    assert history.forget_oldest()
    assert history.messages() == [system, *rest[1:]]


def test_one_exchange_of_many_answers_is_forgotten_message_by_message():
    history = History("", 400)
    history.add_user("hello")
    for number in range(300):
        say(history, number)
    assert 5 < len(history.messages()) < 30
    history.add_user("stop")
    left = history.messages()
    assert (left[-1].content, left[-2].content.split()[1]) == ("stop", "299:")
    # Not all of what was said before, only because it is one exchange.
    assert history.forget_oldest()
    assert len(history.messages()) >= min(len(left) - 1, 16)


def test_the_number_of_messages_is_bounded_whatever_the_window():
    history = History("", 10_000_000)
    for number in range(3_000):
        exchange(history, number, tool=True)
    assert len(history.messages()) <= 1_000


MESSAGES = st.lists(st.sampled_from(["user", "assistant", "system", "call", "calls"]), max_size=60)


@given(MESSAGES, st.integers(40, 600))
@settings(max_examples=200)
def test_whatever_is_written_stays_within_the_budget_and_no_result_loses_its_call(roles, budget):
    history = History("", budget)
    added = []
    for number, role in enumerate(roles):
        if role == "user":
            history.add_user(f"question {number}")
        elif role.startswith("call"):
            calls = [
                ToolCall(id=f"c{number}.{part}", name="t", arguments={}) for part in range(len(role) - 3)
            ]
            results = [ChatMessage(role="tool", content="1", tool_call_id=call.id) for call in calls]
            history.extend([ChatMessage(role="assistant", tool_calls=calls), *results])
        else:
            history.extend([ChatMessage(role=role, content=f"{role} {number}")])
        added += [message for message in history.messages() if message not in added]
        left = history.messages()
        asked = [call.id for message in left for call in message.tool_calls]
        assert asked == [message.tool_call_id for message in left if message.role == "tool"]
        assert [added.index(message) for message in left] == sorted(map(added.index, left))
    while history.forget_oldest():
        pass
    last = history.messages()
    assert len([message for message in last if message.role != "tool"]) == min(len(roles), 1)


def test_text_is_not_counted_in_characters():
    assert estimate_tokens("hello there") == 4
    assert estimate_tokens("\u5929\u6c14") == 2  # Chinese: up to one for each
    assert estimate_tokens("2026112206") == 10  # each digit is one


def test_the_estimate_is_corrected_by_what_the_model_counts():
    history = History("", 1_000)
    for number in range(30):
        exchange(history, number)
    before = history.messages()
    history.calibrate(before, (), 3 * sum(8 + estimate_tokens(message.content) for message in before))
    after = history.messages()
    assert after == before[-len(after) :]
    assert len(before) / 4 < len(after) < len(before) / 2
    history.calibrate(after, (), 10)  # too little to say anything
    history.calibrate(after, (), 300)
    for number in range(30):
        exchange(history, number)
    assert len(history.messages()) == len(before)
