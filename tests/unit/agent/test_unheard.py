"""What an interrupted answer was still to say, and what becomes of it."""

from __future__ import annotations

import pytest
from agent_fakes import FakeCall, calls, open_call, says, spoken
from moving_client import Kept

from parley.agent.unheard import Unheard, find_unheard
from parley.chat import ChatMessage
from parley.protocol import (
    Interrupted,
    Respond,
    ResponseDone,
    Start,
    Text,
    Tool,
    ToolRequest,
    ToolResponse,
    Truncate,
    Truncated,
    TurnMetrics,
    TurnOptions,
    Update,
)

STORY = "Once there was a robot. It lived by the sea. It waved at every boat."
START = Start(system_prompt="", checkpoints=True, tools=[Tool(name="get_time")])


@pytest.mark.parametrize(
    ("written", "heard", "rest"),
    [
        (STORY, "Once there was…", "a robot. It lived by the sea. It waved at every boat."),
        (STORY, "Once there was a robot…", "It lived by the sea. It waved at every boat."),
        (STORY, STORY, None),
        ("It costs **ten euros**, and the `sea` is near.", "It costs ten…", "euros, and the sea is near."),
        ("It costs €12.50, or (on Mondays) €9.", "It costs…", "€12.50, or (on Mondays) €9."),
        ("One. Two. And the thi", "One…", "Two."),
        ("One. And the thi", "One…", None),
        ("One, and two. Three is cut…", "One…", "and two."),
        ("Something else.", "Once there was…", None),
        ("Nine.", "", "Nine."),
        ("Bye 🙂", "Bye", None),
    ],
)
def test_rest_begins_with_the_first_word_that_was_not_heard_and_ends_with_a_sentence(written, heard, rest):
    found = find_unheard([written], [ChatMessage(role="assistant", content=heard)])
    assert (found and found.text) == rest


@pytest.mark.parametrize(
    ("heard", "asks"),
    [
        ("We have…", False),
        ("We have a table…", True),
        ("We have a table. Would you…", True),
        ("We have a table. Would you take it…", True),
        ("We have a table. Would you take it? It is…", False),
    ],
)
def test_question_that_was_cut_or_is_beside_the_cut_is_noticed(heard, asks):
    written = "We have a table. Would you take it? It is by the window."
    found = find_unheard([written], [ChatMessage(role="assistant", content=heard)])
    assert isinstance(found, Unheard)
    assert found.asks == asks


def test_rest_of_several_rounds_is_that_of_the_last():
    messages = [ChatMessage(role="assistant", content="One moment."), ChatMessage(role="tool", content="{}")]
    found = find_unheard(["One moment.", "It is noon."], messages)
    assert found == Unheard("It is noon.", asks=False)


# --- calls --------------------------------------------------------------------------------


async def cut_at(ms: int, *answers, start: Start = START) -> FakeCall:
    """A call in which a story is heard for so long, and then a text is typed that the tests send."""
    call = await open_call(start, answers=[says(STORY), *answers], microphone=True)
    call.send(Text(text="a story"))
    await call.until(ms)
    return call


def notes(call: FakeCall, index: int = -1) -> list[str]:
    return [text for role, text in call.chat.prompt(index) if role == "system"]


async def say(call: FakeCall, text: str) -> None:
    count = len(call.outlet.of(TurnMetrics))
    await call.request(Text(text=text), TurnMetrics, count + (1 if count else 2))


async def test_model_is_told_what_was_not_heard_and_the_history_is_not():
    call = await cut_at(1_100, says("It had none."), says("Bye."))
    await say(call, "What was its name?")
    heard = call.outlet.of(Interrupted)[0].spoken_text
    assert STORY.startswith(heard)
    asked, cut, note, said = call.chat.prompt()
    assert (asked, cut, said) == (
        ("user", "a story"),
        ("assistant", f"{heard.rstrip('.')}…"),
        ("user", "What was its name?"),
    )
    assert note[0] == "system"
    assert STORY[len(heard) :].lstrip(" .") in note[1]
    await say(call, "Thanks, bye.")
    assert notes(call) == []
    assert call.chat.prompt()[:2] == [asked, cut]  # what the cache has
    await call.end()


@pytest.mark.parametrize("text", ["Yes, go on.", "Okay.", "Mhm."])
async def test_who_lets_it_go_on_hears_the_rest_without_the_model(text):
    call = await cut_at(1_100)
    before = len(spoken(call))
    await say(call, text)
    heard = call.outlet.of(Interrupted)[0].spoken_text
    rest = STORY[len(heard) :].lstrip(" .")
    assert len(call.chat.requests) == 1
    assert " ".join(spoken(call)[before:]) == rest
    await say(call, "And then?")
    assert call.chat.prompt() == [
        ("user", "a story"),
        ("assistant", f"{heard.rstrip('.')}…"),
        ("user", text),
        ("assistant", rest),
        ("user", "And then?"),
    ]
    await call.end()


async def test_who_says_wait_and_then_go_on_hears_the_rest():
    call = await cut_at(1_100, says("Sure."))
    await say(call, "Wait.")
    assert notes(call) == []
    await say(call, "Okay, go on.")
    assert len(call.chat.requests) == 2
    assert spoken(call)[-1].endswith("every boat.")
    await call.end()


@pytest.mark.parametrize("text", ["Wait.", "Stop.", "No."])
async def test_plain_okay_behind_a_command_is_no_demand(text):
    call = await cut_at(1_100, says("Sure."), says("Good."))
    await say(call, text)
    await say(call, "Okay.")
    assert len(call.chat.requests) == 3
    assert notes(call) == []
    await call.end()


@pytest.mark.parametrize("text", ["1", "Got it.", "I already know that.", "Tell me a joke.", "Okay, bye."])
async def test_who_turns_to_something_else_does_not_hear_the_rest(text):
    call = await cut_at(1_100, says("Well."))
    await say(call, text)
    assert len(call.chat.requests) == 2
    assert spoken(call)[-1] == "Well."
    await call.end()


async def test_answer_to_a_clients_own_prompt_is_that_of_the_model_alone():
    call = await cut_at(1_100, says("No."))
    call.send(Update(turn=TurnOptions(answer=False)))
    await call.request(Text(text="What was its name?"), Interrupted)
    await call.request(Respond(system_prompt="In one word."), TurnMetrics, 2)
    assert spoken(call)[-1] == "No."
    await call.end()


async def test_rest_is_forgotten_with_the_next_answer():
    call = await cut_at(1_100, says("It had none."), says("I see."))
    await say(call, "What was its name?")
    await say(call, "Go on.")
    assert len(call.chat.requests) == 3
    assert notes(call) == []
    await call.end()


async def test_okay_to_a_question_that_was_cut_is_for_the_model():
    call = await open_call(
        START, answers=[says("Shall I tell you a story of the sea, or not?"), says("Good.")]
    )
    call.send(Text(text="hello"))
    await call.until(1_100)
    await say(call, "Okay.")
    assert len(call.chat.requests) == 2
    assert notes(call) == []
    await call.end()


async def test_rest_of_a_truncated_answer_is_what_the_client_did_not_play():
    call = await open_call(START, answers=[says(STORY)])
    await call.request(Text(text="a story"), TurnMetrics)
    done = call.outlet.of(ResponseDone)[0]
    cut = await call.request(Truncate(response_id=done.response_id, played_ms=900), Truncated)
    assert cut.spoken_text == "Once there was a"
    count = len(call.outlet.of(TurnMetrics))
    await call.request(Text(text="Go on."), TurnMetrics, count + 1)
    assert len(call.chat.requests) == 1
    assert spoken(call)[-1].endswith("every boat.")
    await call.end()


async def test_rest_goes_to_the_next_server():
    call = await cut_at(1_100, says("It had none."))
    call.send(Text(text="Stop."))
    await call.wait_for(Interrupted)
    await call.end()
    kept = Kept.of(call.outlet.sent)
    following = FakeCall(session_id="next", answers=[says("Okay.")])
    await following.start(Start(system_prompt="", checkpoints=True, resume=kept.resume()))
    await following.wait_for(TurnMetrics)
    following.send(Text(text="Go on."))
    await following.wait_for(TurnMetrics, 2)
    assert len(following.chat.requests) == 1
    assert spoken(following)[-1].endswith("every boat.")
    await following.end()


async def test_answer_behind_a_tools_result_keeps_its_rest():
    start = Start(system_prompt="", tools=[Tool(name="get_time")])
    call = await open_call(start, answers=[calls(("get_time", {})), says("It is noon. The sun is high up.")])
    call.send(Text(text="What time is it?"))
    request = await call.wait_for(ToolRequest)
    call.send(ToolResponse(call_id=request.call_id, output={"time": "noon"}))
    await call.until(1_000)
    await say(call, "Go on.")
    assert len(call.chat.requests) == 2
    assert spoken(call)[-1].endswith("high up.")
    await call.end()


# --- taking up ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "taken"),
    [
        ("What was its name?", True),
        ("Was it the same sea?", True),
        ("I had a robot too.", True),
        ("What is the weather like?", False),
        ("No, I asked for a joke.", False),
        ("I know, thank you.", False),
        ("Okay, thanks, that's all.", False),
    ],
)
async def test_rest_is_taken_up_behind_the_answer_where_it_is_of_use(text, taken):
    call = await cut_at(1_100, says("Well."))
    await say(call, text)
    heard = call.outlet.of(Interrupted)[0].spoken_text
    rest = STORY[len(heard) :].lstrip(" .")
    answer = history(call)[-1]
    assert answer == (
        "Well. " + (rest if rest[0].isupper() else f"As I was saying… {rest}") if taken else "Well."
    )
    await call.end()


async def test_rest_that_the_model_has_said_is_not_said_twice():
    call = await cut_at(1_100, says("It lived by the sea, and waved at every boat, that robot."))
    await say(call, "What was its name?")
    assert history(call)[-1] == "It lived by the sea, and waved at every boat, that robot."
    await call.end()


async def test_question_of_the_model_is_not_buried_by_the_rest():
    call = await cut_at(1_100, says("Which one?"))
    await say(call, "What was its name?")
    assert history(call)[-1] == "Which one?"
    await call.end()


async def test_rest_of_a_greeting_is_of_no_use():
    start = Start(system_prompt="", greeting="Welcome to the station. I know all trains by heart.")
    call = await open_call(start, answers=[says("At nine.")])
    await call.until(800)
    await call.request(Text(text="When does it leave?"), TurnMetrics, 2)
    assert notes(call) == []
    assert history(call)[-1] == "At nine."
    await call.end()


async def test_rest_that_is_cut_again_is_taken_up_again():
    call = await cut_at(1_100, says("It had none."), says("Yes."))
    call.send(Text(text="What was its name?"))
    await call.until(2_600)
    await call.request(Text(text="Go on."), TurnMetrics, 3)
    first, second = (one.spoken_text for one in call.outlet.of(Interrupted))
    assert len(call.chat.requests) == 2
    assert history(call)[-1].endswith("every boat.")
    assert not second or first not in history(call)[-1]
    await call.end()


def history(call: FakeCall) -> list[str]:
    (session,) = call.host._sessions.values()
    return [one.content for one in session._conversation.agent_turns.history.messages]
