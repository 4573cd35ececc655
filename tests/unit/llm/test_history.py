"""The messages that the language model gets."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from parley.chat import ChatMessage, ToolCall
from parley.checkpoint import HistoryState
from parley.llm.history import History, SummaryPlan, estimate_tokens, summary_request, summary_text
from parley.llm.messages import Priority
from parley.protocol import Tool


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


def test_messages_that_are_not_answered_are_joined():
    history = History("", 1_000)
    history.add_user("what is")
    history.add_user("the weather")
    assert [message.content for message in history.messages()] == ["what is the weather"]


def test_messages_that_are_not_answered_do_not_grow_for_ever():
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
        grow(plain, number)
        grow(tooled, number)
    assert len(tooled.messages()) < len(plain.messages())


def test_a_preview_joins_and_forgets_as_adding_would():
    history = History("be brief", 100)
    for number in range(3):
        grow(history, number)
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
        grow(history, number, tool=tool)
    system, *rest = history.messages()
    assert (system.role, rest[0].role) == ("system", "user")
    assert rest[-1].content == f"answer {len(tools) - 1}"
    asked = [call.id for message in rest for call in message.tool_calls]
    assert asked == [message.tool_call_id for message in rest if message.role == "tool"]
    kept = [message.content.split()[1] for message in rest if message.role == "user"]
    assert kept == [str(number) for number in range(len(tools) - len(kept), len(tools))]


def say(history, number):
    history.extend([ChatMessage(role="assistant", content=f"Announcement {number}: the train is late.")])


def test_unanswered_messages_are_dropped_in_time():
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


def test_exchange_of_many_answers_is_dropped_message_by_message():
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
        grow(history, number, tool=True)
    assert len(history.messages()) <= 1_000


MESSAGES = st.lists(st.sampled_from(["user", "assistant", "system", "call", "calls"]), max_size=60)


@given(MESSAGES, st.integers(40, 600))
@settings(max_examples=200)
def test_summary_stays_within_the_budget_and_keeps_calls_of_results(roles, budget):
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
        grow(history, number)
    before = history.messages()
    history.calibrate(before, (), 3 * sum(8 + estimate_tokens(message.content) for message in before))
    after = history.messages()
    assert after == before[-len(after) :]
    assert len(before) / 4 < len(after) < len(before) / 2
    history.calibrate(after, (), 10)  # too little to say anything
    history.calibrate(after, (), 300)
    for number in range(30):
        grow(history, number)
    assert len(history.messages()) == len(before)


PROMPT = "be brief"
LEAD = "What was said earlier in this conversation, in short: "


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


def test_messages_dropped_during_a_summary_stay_dropped():
    history = long_history()
    plan = history.plan_summary()
    history.forget_oldest()
    before = history.messages()
    assert not history.apply_summary(plan, "They spoke of 0.")
    assert history.messages() == before


def test_similar_exchanges_are_not_taken_for_summarised_ones():
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


def test_messages_added_during_a_summary_stay():
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
        st.tuples(st.just("plan"), st.booleans()),
        st.tuples(st.just("reset"), st.integers(0, 120)),
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
    forget = {
        "forget": lambda _: history.forget_oldest(),
        "reset": lambda length: history.reset("n" * length),
    }
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
            plan = history.plan_summary(whole=value) or plan
        elif step == "apply" and plan is not None:
            history.apply_summary(plan, "s" * value)
        elif step in forget:
            forget[step](value)
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


def test_a_text_that_does_not_fit_behind_the_unanswered_one_leaves_no_earlier_exchange():
    history = History(PROMPT, 130)
    history.add_user("u0")
    history.extend([ChatMessage(role="assistant", content="a1")])
    history.add_user("u2 " + "x" * 60)
    history.add_user("u3 " + "x" * 266)
    assert [message.content[:2] for message in history.messages()[1:]] == ["u3"]


def test_a_restored_history_is_the_same():
    before = History("system", 2_000)
    before.add_user("hello")
    before.extend([ChatMessage(role="assistant", content="Hi.")])
    after = History("another prompt", 2_000)
    after.restore(before.state())
    assert after.messages()[1:] == before.messages()[1:]
    assert after.state() == before.state()


def test_too_long_history_keeps_the_newest_messages():
    calls = [ToolCall(id="c", name="look", arguments={})]
    messages = [
        *(ChatMessage(role="user", content="word " * 20) for _ in range(500)),
        ChatMessage(role="assistant", tool_calls=calls),
        ChatMessage(role="tool", content="x " * 300, tool_call_id="c"),
        ChatMessage(role="assistant", content="Yes."),
    ]
    for budget in (64, 150, 400, 1_000):
        history = History("", budget)
        history.restore(HistoryState(messages=messages))
        kept = history.messages()
        assert kept == messages[-len(kept) :]
        assert kept[0].role != "tool"


def test_a_summary_that_is_too_long_is_left_out():
    history = History("", 400)
    history.restore(HistoryState(messages=[ChatMessage(role="user", content="hi")], summary="word " * 500))
    assert [message.role for message in history.messages()] == ["user"]
