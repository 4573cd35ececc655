"""Sessions with ``facts``: what the model has from no source is neither shown, spoken nor remembered."""

from __future__ import annotations

import pytest
from agent_fakes import FakeCall, FakeChat, calls, hold_call, open_call, says, spoken
from test_resume import answering, progress, resumed

from parley.agent.config import AgentConfig
from parley.errors import InvalidModelOutputError
from parley.llm.messages import Completed, TextDelta
from parley.protocol import (
    AgentState,
    Interrupted,
    Remember,
    ResponseText,
    Say,
    Start,
    Text,
    Tool,
    ToolRequest,
    ToolResponse,
    TurnMetrics,
    Update,
    Updated,
)

PROMPT = "You are Bella Vista, a restaurant. Open from 12:00 to 22:00."
HEDGE = AgentConfig().hedge
STRICT = Start(system_prompt=PROMPT, facts="strict")


async def ask(*answers, words="when do you close", start=STRICT, config=None) -> FakeCall:
    """A call in which the user has asked one thing."""
    return await hold_call(start, config=config, hears=[(200, 1_000, words)], answers=answers)


def shown(call: FakeCall) -> str:
    return "".join(event.text for event in call.outlet.of(ResponseText))


def figures(call: FakeCall) -> TurnMetrics:
    return call.outlet.of(TurnMetrics)[-1]


async def remembered(call: FakeCall) -> list[tuple[str, str]]:
    """What the language model reads of the conversation in the next turn."""
    call.send(Text(text="thanks"))
    await call.end(TurnMetrics, 2)
    return call.chat.prompt()


async def test_answer_with_figures_of_the_prompt_is_said():
    call = await ask(says("We close at ten in the evening."))
    assert spoken(call) == ["We close at ten in the evening."]
    assert figures(call).held_back == []


async def test_figure_from_nowhere_is_asked_for_once_more():
    call = await ask(says("We close at 23:30. Come soon."), says("We close at 22:00."))
    assert spoken(call) == ["We close at 22:00."]
    assert shown(call) == "We close at 22:00."
    assert "'23:30'" in call.chat.prompt()[-1][1]
    assert call.chat.aborted, "the rest of the first answer is of no use"
    assert (figures(call).held_back, figures(call).hedged) == (["time"], False)


async def test_sentences_before_the_figure_are_said_at_once():
    answer = says("We are open today. We close at 23:30.")
    call = await ask(answer, says("You can come until 22:00."))
    assert spoken(call) == ["We are open today.", "You can come until 22:00."]
    assert shown(call) == "We are open today. You can come until 22:00."


async def test_figure_that_comes_twice_is_hedged():
    call = await ask(says("It costs €12."), says("Sure. It costs twelve euros."))
    assert spoken(call) == ["Sure.", HEDGE]
    assert shown(call) == f"Sure. {HEDGE}"
    assert (figures(call).held_back, figures(call).hedged) == (["price", "price"], True)
    assert len(call.chat.requests) == 2
    assert call.outlet.codes == []


async def test_held_back_text_is_not_in_the_history():
    call = await open_call(STRICT, hears=[(200, 1_000, "what is it")], answers=[says("It costs €12.")] * 2)
    await call.wait_for(TurnMetrics)
    messages = await remembered(call)
    assert [text for role, text in messages if role == "assistant"] == [HEDGE]
    assert not any("12." in text for _, text in messages[1:])


async def test_sentence_comes_before_the_answer_is_complete():
    """Each segment is sent when it has passed, not when the answer is over."""
    call = await open_call(STRICT, hears=[(200, 1_000, "tell me")])
    call.chat.token_s = 1.0
    call.chat.answers.append(says("We are open. You can come at noon. Please do come."))
    first = await call.wait_for(ResponseText)
    assert first.text == "We are open."
    assert call.chat.running
    await call.end(TurnMetrics)


@pytest.mark.parametrize(
    "answer",
    ["So seven people tomorrow.", "Noted: Maria Lopez.", "I have AB-123 here.", "A table for 7, right?"],
)
async def test_words_of_the_user_are_a_source(answer):
    words = "a table for seven my name is maria lopez and the code is AB-123 tomorrow"
    call = await ask(says(answer), words=words)
    assert " ".join(spoken(call)) == answer


async def test_values_that_are_nested_deeply_are_a_source():
    call = await ask(says("Table seven it is."), words="[" * 900 + "7" + "]" * 900)
    assert spoken(call) == ["Table seven it is."]


async def test_results_of_tools_are_a_source_and_arguments_of_the_model_are_none():
    start = Start(system_prompt=PROMPT, facts="strict", tools=[Tool(name="find_table")])
    answers = [
        calls(("find_table", {"time": "18:15"})),
        says("There is one at 18:15."),
        says("There is one at a quarter to eight."),
    ]
    call = await open_call(start, hears=[(200, 1_000, "a table please")], answers=answers)
    request = await call.wait_for(ToolRequest)
    call.send(ToolResponse(call_id=request.call_id, output={"free": ["19:45"]}))
    await call.end(TurnMetrics)
    assert spoken(call) == ["There is one at a quarter to eight."]


async def test_tool_may_be_called_after_a_correction():
    start = Start(system_prompt=PROMPT, facts="strict", tools=[Tool(name="find_table")])
    answers = [says("There is one at 18:15."), calls(("find_table", {})), says("At 19:45.")]
    call = await open_call(start, hears=[(200, 1_000, "a table please")], answers=answers)
    request = await call.wait_for(ToolRequest)
    call.send(ToolResponse(call_id=request.call_id, output="19:45"))
    await call.end(TurnMetrics)
    assert spoken(call) == ["At 19:45."]


async def test_texts_of_the_client_are_spoken_unchecked_and_are_a_source():
    call = await open_call(STRICT, answers=[says("Lunch is 15 euros."), says("Ask for Giulia.")])
    call.send(Say(text="Today lunch costs 15 euros."))
    call.send(Remember(role="system", text="The manager is Giulia."))
    await call.wait_for(TurnMetrics)
    call.send(Text(text="how much"))
    await call.wait_for(TurnMetrics, 2)
    call.send(Text(text="who do I ask"))
    await call.end(TurnMetrics, 3)
    assert spoken(call) == ["Today lunch costs 15 euros.", "Lunch is 15 euros.", "Ask for Giulia."]


async def test_greeting_is_a_source():
    call = await open_call(
        Start(facts="strict", system_prompt="", greeting="This is Luigi."),
        answers=[says("My name is Luigi.")],
    )
    await call.wait_for(TurnMetrics)
    call.send(Text(text="who are you"))
    await call.end(TurnMetrics, 2)
    assert spoken(call)[-1] == "My name is Luigi."


async def test_own_answers_are_no_source():
    """What was said before ``facts`` was switched on may be made up."""
    call = await open_call(Start(system_prompt=PROMPT), answers=[says("It costs €12.")])
    call.send(Text(text="how much"))
    await call.wait_for(TurnMetrics)
    await call.request(Update(facts="strict"), Updated)
    call.chat.answers += [says("It costs €12.")] * 2
    call.send(Text(text="how much was it"))
    await call.end(TurnMetrics, 2)
    assert spoken(call) == ["It costs €12.", HEDGE]


async def test_words_of_the_user_stay_known_when_the_history_forgets_them():
    call = await open_call(
        STRICT, config=AgentConfig(context_tokens=700, max_answer_tokens=64), answers=[says("Okay.")] * 8
    )
    call.send(Text(text="my code is AB-123"))
    await call.wait_for(TurnMetrics)
    for count in range(6):
        call.send(Text(text=f"{'so much to say ' * 20} {count}"))
        await call.wait_for(TurnMetrics, count + 2)
    assert not any("AB-123" in text for _, text in call.chat.prompt())
    call.chat.answers.clear()
    call.chat.answers.append(says("The code is AB-123."))
    call.send(Text(text="what was my code"))
    await call.end(TurnMetrics, 8)
    assert spoken(call)[-1] == "The code is AB-123."


async def test_session_of_text_is_checked_too():
    call = await ask(
        says("It costs €12."), says("I do not know."), start=Start(facts="strict", output="text")
    )
    assert shown(call) == "I do not know."


async def test_without_facts_nothing_is_held_back():
    call = await ask(says("It costs €12."), start=Start(system_prompt=PROMPT))
    assert spoken(call) == ["It costs €12."]


async def test_hedge_is_of_the_language_of_the_session():
    start = Start(language="de", facts="strict", system_prompt=PROMPT)
    call = await ask(says("Das kostet 12 Euro."), says("Das kostet 12 Euro."), start=start)
    assert spoken(call) == ["Da bin ich mir nicht sicher, und ich möchte nicht raten."]


async def test_without_a_hedge_the_answer_fails():
    call = await ask(*[says("It costs €12.")] * 3, config=AgentConfig(hedge=""))
    assert spoken(call) == [AgentConfig().apology]
    assert call.outlet.codes == ["no_answer"]


async def test_interruption_during_a_correction_keeps_what_was_played():
    call = await open_call(STRICT, hears=[(200, 1_000, "tell me")])
    call.chat.answers += [says("We are open today. It costs €12."), says("Please do come and see us.")]
    await call.wait_for(AgentState, 3)
    call.send(Text(text="wait"))
    await call.wait_for(Interrupted)
    await call.end(TurnMetrics, 2)
    said = [text for role, text in call.chat.prompt() if role == "assistant"]
    assert not any("12" in text for text in said)


async def test_answer_that_goes_on_elsewhere_is_checked_there():
    chat = FakeChat()
    chat.answers += [says(" We close at 23:30."), says("We close at 22:00.")]
    call = await resumed(answering(progress=progress(text="We are open today.")), chat=chat, start=STRICT)
    await call.end(TurnMetrics)
    assert spoken(call) == ["We are open today.", "We close at 22:00."]
    assert [request.prefix for request in chat.requests] == ["We are open today.", ""]
    assert shown(call) == " We close at 22:00."


# --- tool calls that are written as text ---------------------------------------------------------


async def test_stray_call_is_not_spoken_and_asked_for_again():
    start = Start(tools=[Tool(name="get_weather")])
    answers = [
        says('One second. {"name": "get_weather", "arguments": {}}'),
        calls(("get_weather", {})),
        says("It is sunny."),
    ]
    call = await open_call(start, hears=[(200, 1_000, "what's the weather")], answers=answers)
    request = await call.wait_for(ToolRequest)
    call.send(ToolResponse(call_id=request.call_id, output="sunny"))
    await call.end(TurnMetrics)
    assert spoken(call) == ["One second.", "It is sunny."]
    assert "{" not in shown(call)
    assert figures(call).held_back == ["call"]


async def test_answer_of_nothing_but_a_stray_call_is_no_answer():
    call = await ask(says("get_weather(city='Paris')"), says("I cannot say."), start=Start())
    assert spoken(call) == ["I cannot say."]


async def test_session_of_text_may_show_json():
    call = await ask(says('{"a": 1}'), start=Start(output="text"))
    assert shown(call) == '{"a": 1}'


async def test_unreadable_call_behind_words_is_still_corrected():
    unreadable = [TextDelta(text="We close at 22:00."), InvalidModelOutputError("no name")]
    start = Start(system_prompt=PROMPT, facts="strict", tools=[Tool(name="get_weather")])
    call = await ask(unreadable, says("Come soon."), start=start)
    assert spoken(call) == ["We close at 22:00.", "Come soon."]


async def test_end_of_an_answer_that_was_cut_off_is_not_shown():
    cut = [*says("We are open. You can come at")[:-1], Completed(finish_reason="length", prompt_tokens=1)]
    call = await open_call(STRICT, hears=[(200, 1_000, "tell me")], answers=[cut])
    await call.wait_for(TurnMetrics)
    messages = await remembered(call)
    assert shown(call).startswith("We are open.")
    assert "come at" not in shown(call)
    assert ("assistant", "We are open.…") in messages
