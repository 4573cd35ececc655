"""What is summarised, and what becomes of the summary."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from parley.llm.history import History, estimate_tokens
from parley.llm.messages import ChatMessage, Priority, ToolCall
from parley.llm.summaries import SummaryPlan, summary_request, summary_text

PROMPT = "be brief"
LEAD = "What was said earlier in this conversation, in short: "


def grow(history, number, *, tool=False, size=60):
    history.add_user(f"question {number} " + "x" * size)
    call = ToolCall(id=f"c{number}", name="look_up", arguments={"n": number})
    if tool:
        history.extend(
            [
                ChatMessage(role="assistant", tool_calls=[call]),
                ChatMessage(role="tool", content=str(number), tool_call_id=call.id),
            ]
        )
    history.extend([ChatMessage(role="assistant", content=f"answer {number}")])


def long_history(budget=400, exchanges=8):
    history = History(PROMPT, budget)
    for number in range(exchanges):
        grow(history, number, tool=number % 2 == 0)
        if history.plan_summary():
            break
    return history


def texts(history):
    return [message.content for message in history.messages() if message.role == "user"]


def test_a_short_conversation_is_not_summarised():
    history = History(PROMPT, 10_000)
    for number in range(10):
        grow(history, number)
    assert history.plan_summary() is None


def test_the_oldest_exchanges_are_replaced_and_the_newest_stay_word_for_word():
    history = long_history()
    before = history.messages()
    plan = history.plan_summary()
    assert history.messages() == before  # a plan changes nothing
    assert plan.messages == tuple(before[1 : 1 + len(plan.messages)])
    assert before[1 + len(plan.messages)].role == "user"
    assert history.apply_summary(plan, " They spoke\n of 0 and 1. ")
    system, *rest = history.messages()
    assert (system.role, system.content) == ("system", f"{PROMPT}\n\n{LEAD}They spoke of 0 and 1.")
    assert rest == before[1 + len(plan.messages) :] != []
    assert history.plan_summary() is None


def test_a_summary_becomes_part_of_the_next_one():
    history = long_history()
    history.apply_summary(history.plan_summary(), "They spoke of 0.")
    number = 100
    while (plan := history.plan_summary()) is None:
        grow(history, number)
        number += 1
    assert plan.summary == LEAD + "They spoke of 0."
    assert history.apply_summary(plan, "They spoke of much.")
    assert history.messages()[0].content == f"{PROMPT}\n\n{LEAD}They spoke of much."


def test_what_was_forgotten_meanwhile_does_not_come_back():
    history = long_history()
    plan = history.plan_summary()
    history.forget_oldest()
    before = history.messages()
    assert not history.apply_summary(plan, "They spoke of 0.")
    assert history.messages() == before


def test_exchanges_that_only_look_the_same_are_not_taken_for_those_that_were_forgotten():
    history = History("", 300)
    for _ in range(4):
        history.add_user("yes")
        history.extend([ChatMessage(role="assistant", content="x" * 120)])
    plan = history.plan_summary()
    history.forget_oldest()
    history.add_user("yes")
    history.extend([ChatMessage(role="assistant", content="x" * 120)])
    assert tuple(history.messages()[: len(plan.messages)]) == plan.messages
    assert not history.apply_summary(plan, "Yes, yes.")


def test_what_was_added_meanwhile_stays():
    history = long_history()
    plan = history.plan_summary()
    history.add_user("and now")
    assert history.apply_summary(plan, "Before.")
    assert history.messages()[-1].content == "and now"


def test_a_summary_counts_only_once():
    history = long_history()
    plan = history.plan_summary()
    assert history.apply_summary(plan, "Before.")
    assert not history.apply_summary(plan, "Before.")


def test_useless_summaries_are_refused():
    history = long_history()
    plan, before = history.plan_summary(), history.messages()
    assert not history.apply_summary(plan, " \n")
    assert not history.apply_summary(plan, "x" * 1_000)
    assert history.messages() == before


def test_the_summary_is_forgotten_last():
    history = long_history()
    history.apply_summary(history.plan_summary(), "Before.")
    while len(history.messages()) > 2:
        assert history.forget_oldest()
    assert "Before." in history.messages()[0].content
    assert history.forget_oldest()
    assert history.messages()[0].content == PROMPT
    assert not history.forget_oldest()


def test_without_a_system_prompt_the_summary_is_one():
    history = History("", 300)
    for number in range(8):
        grow(history, number)
        plan = history.plan_summary()
        if plan:
            history.apply_summary(plan, "Before.")
            break
    assert [message.role for message in history.messages()[:2]] == ["system", "user"]


def test_the_request_tells_all_and_is_the_least_urgent():
    call = ToolCall(id="c", name="get_time", arguments={"city": "Paris"})
    plan = SummaryPlan(
        4,
        (
            ChatMessage(role="user", content="what time is it in paris"),
            ChatMessage(role="assistant", tool_calls=[call]),
            ChatMessage(role="tool", content='"10:30"', tool_call_id="c"),
            ChatMessage(role="assistant", content="It's half past…"),
        ),
        summary_text("Hellos."),
    )
    request = summary_request(plan, "s-1")
    assert request.messages[1].content.splitlines() == [
        LEAD + "Hellos.",
        "user: what time is it in paris",
        'assistant called get_time({"city":"Paris"})',
        'get_time returned: "10:30"',
        "assistant: It's half past…",
    ]
    assert [message.role for message in request.messages] == ["system", "user"]
    assert (request.priority, request.tools) == (Priority.BACKGROUND, [])


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("user"), st.integers(0, 300)),
        st.tuples(st.just("answer"), st.booleans()),
        st.tuples(st.just("plan"), st.none()),
        st.tuples(st.just("apply"), st.integers(0, 120)),
        st.tuples(st.just("forget"), st.none()),
        st.tuples(st.just("preview"), st.integers(0, 300)),
    ),
    max_size=60,
)


def cost(messages):
    total = 0
    for message in messages:
        calls = (
            f'[{{"id":"{message.tool_calls[0].id}","name":"t","arguments":{{}}}}]'
            if message.tool_calls
            else ""
        )
        total += 8 + estimate_tokens(message.content + calls)
    return total


@given(STEPS, st.integers(60, 600))
def test_whatever_happens_the_history_is_sound(steps, budget):
    history = History(PROMPT, budget)
    plan, newest, asked, said = None, None, False, []
    for count, (step, value) in enumerate(steps):
        if step == "user":
            newest = f"u{count} " + "x" * value
            history.add_user(newest)
            said.append(f"u{count}")
            asked = True
        elif step == "answer" and asked:
            call = ToolCall(id=f"c{count}", name="t", arguments={})
            tool = ChatMessage(role="tool", content="1", tool_call_id=call.id)
            spoken = ChatMessage(role="assistant", content=f"a{count}")
            history.extend(
                [ChatMessage(role="assistant", tool_calls=[call]), tool, spoken] if value else [spoken]
            )
            asked = False
        elif step == "plan":
            plan = history.plan_summary() or plan
        elif step == "apply" and plan is not None:
            history.apply_summary(plan, "s" * value)
        elif step == "forget":
            history.forget_oldest()
        elif step == "preview":
            before = history.messages()
            seen = history.preview(f"p{count} " + "x" * value)
            assert seen[-1].content.split()[-2 if value else -1] == f"p{count}"
            assert history.messages() == before

        system, *rest = history.messages()
        assert system.content.startswith(PROMPT)
        called = [call.id for message in rest for call in message.tool_calls]
        assert called == [message.tool_call_id for message in rest if message.role == "tool"]
        if rest:
            assert rest[0].role != "tool"
        if asked:
            assert rest[-1].role == "user"
            assert rest[-1].content.endswith(newest)
        # What is left is the newest part of what was said: nothing lost from its middle, nothing back.
        left = [word for message in rest if message.role == "user" for word in message.content.split()]
        left = [word for word in left if word.startswith("u")]
        assert left == said[len(said) - len(left) :]
        groups = sum(message.role != "tool" for message in rest)
        summary = len(system.content) > len(PROMPT)
        assert cost(history.messages()) <= budget + 2 or (groups <= 1 and not summary)
