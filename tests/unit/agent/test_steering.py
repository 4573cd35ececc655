"""What a client decides itself: when a turn ends, when the agent answers, and what it remembers."""

from __future__ import annotations

import asyncio

import pytest
from agent_fakes import FakeCall, FakeRecognizer, calls, open_call, says, utterance

from parley.agent.config import AgentConfig
from parley.asr.messages import SpeechStartedEvent, SpeechStoppedEvent, TranscriptEvent
from parley.errors import (
    InvalidInputError,
    InvalidMessageError,
    InvalidModelOutputError,
    OverloadedError,
    ParleyError,
    UnsupportedVoiceError,
)
from parley.protocol import (
    AgentState,
    Audio,
    BargeInOptions,
    Commit,
    Discard,
    ErrorEvent,
    Interrupt,
    Interrupted,
    Playback,
    Remember,
    Respond,
    ResponseDone,
    ResponseText,
    Say,
    SilenceOptions,
    Start,
    Text,
    Tool,
    ToolRequest,
    ToolResponse,
    Transcript,
    Truncate,
    Truncated,
    TurnDecision,
    TurnMetrics,
    TurnOptions,
    Update,
    Updated,
    VadOptions,
)

MANUAL = TurnOptions(detection="manual")
STORY = "Once there was a robot. It lived by the sea. It waved at every boat."


def late_utterance(number, start_ms, end_ms, text):
    """What a recogniser says that takes its time for the final text, and when."""
    begun, stopped, final = utterance(number, start_ms, end_ms, text)
    return [begun, stopped, (stopped[0] + 500, final[1])]


def written(call) -> str:
    return "".join(event.text for event in call.outlet.of(ResponseText))


# --- ending a turn by hand ------------------------------------------------------------------


async def test_commit_ends_the_turn():
    call = FakeCall(hears=[(200, 1_000, "set a timer"), (3_000, 3_900, "for ten minutes")])
    await call.start(Start(turn=MANUAL))
    await call.until(6_000)
    assert call.outlet.of(TurnDecision) == []
    assert call.chat.requests == []
    decision = await call.request(Commit(), TurnDecision)
    await call.end(TurnMetrics)
    assert (decision.decision, decision.reason) == ("commit", "requested")
    assert call.chat.prompt()[-1] == ("user", "set a timer for ten minutes")


@pytest.mark.parametrize("turn", [MANUAL, TurnOptions(eagerness="patient"), TurnOptions(eagerness="off")])
async def test_commit_during_an_utterance_ends_it_at_once(turn):
    call = await open_call(Start(turn=turn), hears=[(200, 2_000, "set a timer for")])
    await call.until(1_500)
    decision = await call.request(Commit(), TurnDecision)
    assert call.at_ms(decision) < 1_700
    await call.end(TurnMetrics)
    assert call.chat.prompt()[-1] == ("user", "set a timer for")
    assert len(call.chat.requests) == 1


async def test_commit_without_speech_is_decided_and_not_answered():
    call = await open_call(Start(turn=MANUAL))
    await call.until(500)
    decision = await call.request(Commit(), TurnDecision)
    await call.end()
    assert decision.text == ""
    assert call.chat.requests == []


async def test_a_turn_that_is_ended_by_hand_interrupts_the_agent():
    call = await open_call(Start(turn=MANUAL, greeting=STORY), hears=[(1_000, 2_000, "what time is it")])
    await call.until(2_900)
    assert call.outlet.of(Interrupted) == []  # speech alone does not
    cut = await call.request(Commit(), Interrupted)
    await call.end(TurnMetrics, 2)
    assert cut.reason == "input"
    assert call.chat.prompt()[-1] == ("user", "what time is it")


@pytest.mark.parametrize("eagerness", ["normal", "off"])
async def test_discarded_speech_is_not_in_the_history(eagerness):
    call = FakeCall(hears=[(200, 900, "forget this"), (3_000, 3_900, "what time is it")])
    await call.start(Start(turn=TurnOptions(eagerness=eagerness)))
    await call.until(600)
    await call.request(Discard(), TurnMetrics)
    await call.end()
    assert [text for role, text in call.chat.prompt() if role == "user"] == ["what time is it"]


async def test_a_text_that_comes_after_the_discarding_does_not_count():
    call = FakeCall()
    call.recognition.push_s = 0.3
    call.hears((200, 900, "forget this"), (6_000, 6_900, "what time is it"))
    await call.start(Start(turn=MANUAL))
    await call.until(800)
    call.send(Discard())
    await call.until(9_000)
    await call.request(Commit(), TurnMetrics)
    await call.end()
    assert [text for role, text in call.chat.prompt() if role == "user"] == ["what time is it"]


async def test_a_turn_by_hand_is_bounded():
    call = FakeCall()
    call.hears(*((index * 2_000 + 100, index * 2_000 + 900, f"{index} {'x' * 3_000}") for index in range(5)))
    await call.start(Start(turn=MANUAL))
    await call.until(12_000)
    decision = await call.request(Commit(), TurnDecision)
    await call.end()
    assert len(decision.text) < 9_000
    assert decision.text.startswith("3 ")


@pytest.mark.parametrize("word", ["yes", "okay"])
@pytest.mark.parametrize(
    ("turn", "commit_ms"), [(MANUAL, 1_300), (MANUAL, 1_600), (MANUAL, 2_500), (TurnOptions(), 1_300)]
)
async def test_committed_backchannel_is_a_turn(word, turn, commit_ms):
    call = await open_call(Start(turn=turn, greeting=STORY), hears=[(1_000, 1_500, word)])
    await call.until(commit_ms)
    await call.request(Commit(), TurnMetrics, 2)
    await call.end()
    assert call.chat.prompt()[-1] == ("user", word)


async def test_a_cough_that_the_client_claims_does_not_stop_the_agent():
    call = FakeCall()
    call.recognition.script.extend(late_utterance(1, 1_000, 1_200, ""))
    await call.start(Start(greeting=STORY))
    await call.until(1_600)
    decision = await call.request(Commit(), TurnDecision)
    await call.end(TurnMetrics)
    assert decision.text == ""
    assert call.outlet.of(Interrupted) == []
    assert call.chat.requests == []


async def test_commit_without_scoring_is_decided():
    call = await open_call(Start(turn=TurnOptions(eagerness="off")), hears=[(200, 900, "what time is it")])
    await call.until(600)
    decision = await call.request(Commit(), TurnDecision)
    await call.wait_for(TurnMetrics)
    await call.request(Commit(), TurnDecision, 2)
    await call.end()
    assert (decision.reason, decision.text) == ("requested", "what time is it")
    assert len(call.chat.requests) == 1


async def test_speech_after_commit_is_another_turn():
    call = FakeCall()
    first, second = late_utterance(1, 500, 1_200, "first"), late_utterance(2, 1_700, 2_000, "second")
    call.recognition.script.extend(sorted([*first, *second], key=lambda scripted: scripted[0]))
    await call.start(Start(turn=MANUAL))
    await call.until(1_650)
    decision = await call.request(Commit(), TurnDecision)
    await call.until(5_000)
    later = await call.request(Commit(), TurnDecision, 2)
    await call.end(TurnMetrics, 2)
    assert (decision.text, later.text) == ("first", "second")


@pytest.mark.parametrize(
    ("turn", "text"),
    [
        (MANUAL, ""),
        (MANUAL, "forget this"),
        (TurnOptions(eagerness="normal", answer=False), "what time is it"),
    ],
)
async def test_silence_counts_after_a_turn_without_an_answer(turn, text):
    silence = SilenceOptions(hang_up_after_ms=5_000)
    call = await open_call(Start(turn=turn, silence=silence), hears=[(200, 900, text)])
    await call.until(600)
    if text == "forget this":
        call.send(Discard())
    await call.until(20_000)
    assert call.outlet.reason == "silence"


async def test_an_utterance_that_begins_while_another_is_discarded_does_not_count():
    call = FakeCall()
    stopped = SpeechStoppedEvent(utterance=1, at_ms=400, detected_at_ms=400)
    text = TranscriptEvent(utterance=1, text="forget this", is_final=True, confidence=0.9)
    call.recognition.on_flush = [SpeechStartedEvent(utterance=1, at_ms=100), stopped, text]
    await call.start()
    await call.until(400)
    call.send(Discard())
    await call.until(4_000)
    await call.end()
    assert call.chat.requests == []


async def test_a_recogniser_that_is_too_busy_to_end_an_utterance_is_asked_again(monkeypatch):
    flush, busy = FakeRecognizer.flush, [OverloadedError("busy")]

    async def flush_later(self):
        if busy:
            raise busy.pop()
        return await flush(self)

    monkeypatch.setattr(FakeRecognizer, "flush", flush_later)
    call = await open_call(Start(turn=MANUAL), hears=[(200, 2_000, "set a timer for ten minutes")])
    await call.until(1_500)
    await call.request(Commit(), TurnMetrics)
    await call.end()
    assert call.chat.prompt()[-1] == ("user", "set a timer for ten minutes")
    assert call.outlet.codes == []


# --- speech that does not interrupt ---------------------------------------------------------


async def test_without_barge_in_the_answer_comes_afterwards():
    call = FakeCall(hears=[(1_000, 2_000, "what time is it")])
    await call.start(Start(greeting=STORY, barge_in=BargeInOptions(enabled=False)))
    await call.end(TurnMetrics, 2)
    assert call.outlet.of(Interrupted) == []
    greeting, answer = call.outlet.of(ResponseDone)
    assert greeting.audio_ms >= 50 * len(STORY.replace(". ", ".")) - 3
    assert answer.response_id != greeting.response_id
    assert call.chat.prompt()[-2:] == [("assistant", STORY), ("user", "what time is it")]


# --- answering when asked -------------------------------------------------------------------


async def test_a_turn_is_answered_when_the_client_asks_for_it():
    call = FakeCall(hears=[(200, 1_000, "what time is it")])
    await call.start(Start(turn=TurnOptions(eagerness="normal", answer=False)))
    await call.until(4_000)
    assert call.chat.requests == []
    assert call.outlet.of(TurnDecision)[-1].decision == "commit"
    await call.request(Respond(), TurnMetrics)
    await call.end()
    assert call.chat.prompt()[-1] == ("user", "what time is it")


async def test_the_agent_may_speak_first():
    call = await open_call(Start(system_prompt="Be kind."))
    await call.request(Respond(system_prompt="Greet the user."), TurnMetrics)
    await call.request(Text(text="hello"), TurnMetrics, 2)
    await call.end()
    assert call.chat.prompt(0) == [("system", "Greet the user.")]
    assert call.chat.prompt(1) == [("system", "Be kind."), ("assistant", "Okay."), ("user", "hello")]


async def test_an_answer_without_tools():
    call = await open_call(Start(tools=[Tool(name="get_weather")]))
    await call.request(Respond(use_tools=False), TurnMetrics)
    await call.request(Respond(), TurnMetrics, 2)
    await call.end()
    assert [len(request.tools) for request in call.chat.requests] == [0, 1]


async def test_answer_begins_with_the_call_that_it_must_make():
    weather = Tool(name="get_weather")
    call = await open_call(Start(tools=[weather, Tool(name="stop")], must_call="*"))
    call.chat.answers += [calls(("get_weather", {})), says("It rains.")]
    call.send(Text(text="hello"))
    asked = await call.wait_for(ToolRequest)
    call.send(ToolResponse(call_id=asked.call_id, output={}))
    await call.wait_for(TurnMetrics)
    call.send(Update(must_call="stop"))
    await call.wait_for(Updated)
    for number, respond in enumerate((Respond(must_call=""), Respond(use_tools=False)), 2):
        await call.request(respond, TurnMetrics, number)
    await call.end()
    assert [request.must_call for request in call.chat.requests] == ["*", "", "", ""]
    assert len(call.chat.requests[0].tools) == 2


async def test_call_that_is_not_written_fails_the_answer():
    call = await open_call(Start(tools=[Tool(name="get_weather")]))
    call.chat.answers += [[InvalidModelOutputError("no call")]] * 2
    await call.request(Respond(must_call="get_weather"), TurnMetrics)
    await call.end()
    assert [request.must_call for request in call.chat.requests] == ["get_weather"] * 2
    assert [event.code for event in call.outlet.of(ErrorEvent)] == ["invalid_model_output"]


async def test_call_that_cannot_be_forced_is_an_error_of_the_answer():
    call = await open_call(Start(tools=[Tool(name="get_weather")]))
    call.chat.answers += [[InvalidMessageError("not guided")]]
    await call.request(Respond(must_call="stop"), TurnMetrics)
    await call.end()
    assert [event.code for event in call.outlet.of(ErrorEvent)] == ["inference_failed"]


@pytest.mark.parametrize("must_call", ["*", "get_weather"])
async def test_must_call_without_the_tool_is_refused(must_call):
    call = await open_call(Start(tools=[Tool(name="stop")] if must_call != "*" else []))
    error = await call.request(Update(must_call=must_call), ErrorEvent)
    await call.end()
    assert error.code == "invalid_message"
    assert "must_call" in error.message


async def test_typed_text_is_remembered_like_speech():
    call = await open_call(Start(system_prompt="", turn=TurnOptions(answer=False)))
    call.send(Text(text="hello"))
    await call.until(2_000)
    assert call.chat.requests == []
    await call.request(Respond(), TurnMetrics)
    await call.end()
    assert call.chat.prompt() == [("user", "hello")]


@pytest.mark.parametrize("typed", [True, False])
async def test_a_text_that_cannot_be_interrupted_is_spoken_after_a_turn_without_an_answer(typed):
    hears = [] if typed else [(1_500, 2_500, "what time is it in lima")]
    call = await open_call(Start(turn=TurnOptions(eagerness="normal", answer=False)), hears=hears)
    call.send(Say(text=STORY))
    call.send(Say(text="This call is recorded.", interruptible=False))
    await call.until(1_000)
    if typed:
        call.send(Text(text="hello"))
    await call.wait_for(Interrupted)
    await call.wait_for(TurnMetrics, 2)
    await call.end()
    assert [request.text for request in call.synthesizer.requests][-1] == "This call is recorded."


async def test_remembered_message_is_not_answered():
    call = await open_call(Start(system_prompt=""))
    call.send(Remember(role="user", text="My name is Anna."))
    call.send(Remember(role="assistant", text="Hello Anna."))
    call.send(Remember(role="system", text="Anna is a doctor."))
    await call.until(1_000)
    assert call.chat.requests == []
    await call.request(Text(text="who am I"), TurnMetrics)
    await call.end()
    assert call.chat.prompt() == [
        ("user", "My name is Anna."),
        ("assistant", "Hello Anna."),
        ("system", "Anna is a doctor."),
        ("user", "who am I"),
    ]


async def test_message_remembered_during_an_answer_follows_it():
    call = FakeCall(answers=[calls(("get_weather", {}))])
    await call.start(Start(system_prompt="", tools=[Tool(name="get_weather")]))
    request = await call.request(Text(text="weather"), ToolRequest)
    call.send(Remember(role="user", text="I like rain."))
    await call.request(ToolResponse(call_id=request.call_id, output="rain"), TurnMetrics)
    await call.request(Text(text="and now"), TurnMetrics, 2)
    await call.end()
    assert [role for role, _ in call.chat.prompt(1)] == ["user", "assistant", "tool"]
    assert call.chat.prompt(2)[-2:] == [("assistant", "Okay."), ("user", "I like rain. and now")]


# --- stopping and correcting ----------------------------------------------------------------


async def test_the_client_stops_the_agent_and_what_waits():
    call = await open_call(Start(greeting=STORY))
    call.send(Say(text="One more thing.", interruptible=False))
    await call.until(1_500)
    cut = await call.request(Interrupt(), Interrupted)
    await call.until(4_000)
    await call.end()
    assert cut.reason == "client"
    assert cut.spoken_text
    assert STORY.startswith(cut.spoken_text)
    assert len(call.outlet.of(TurnMetrics)) == 1
    assert call.outlet.states[-1] == "listening"


@pytest.mark.parametrize("by_truncation", [False, True])
async def test_stopping_one_response_keeps_a_requested_one(by_truncation):
    call = await open_call(Start(greeting=STORY), answers=[says("Tokyo.")])
    first = (await call.wait_for(Audio)).response_id
    call.send(Respond())
    call.send(Truncate(response_id=first, played_ms=20) if by_truncation else Interrupt(response_id=first))
    done = await call.end(ResponseDone)
    assert [event.turn for event in call.outlet.of(Interrupted)] == [1]
    assert done.turn == 2


async def test_interrupt_by_the_client_stops_an_uninterruptible_text():
    call = await open_call()
    call.send(Say(text=STORY, interruptible=False))
    await call.until(1_000)
    await call.request(Interrupt(), Interrupted)


@pytest.mark.parametrize("message", [Interrupt(), Text(text="hello")])
async def test_speech_over_a_stopped_agent_is_a_turn(message):
    call = await open_call(Start(greeting=STORY), hears=[(1_000, 1_400, "yes")])
    await call.until(1_150)
    call.send(message)
    await call.until(6_000)
    await call.end()
    assert call.chat.prompt()[-1][1].endswith("yes")


async def test_another_response_is_not_stopped():
    call = await open_call(Start(greeting="Hello there."))
    await call.wait_for(Audio)
    done = await call.request(Interrupt(response_id="another"), TurnMetrics)
    call.send(Interrupt())  # there is nothing to stop
    await call.end()
    assert not done.interrupted
    assert call.outlet.codes == []


async def test_an_answer_that_is_over_is_cut_to_what_was_heard():
    call = await open_call(Start(system_prompt=""), answers=[says(STORY)])
    done = await call.request(Text(text="a story"), ResponseDone)
    await call.wait_for(TurnMetrics)
    corrected = await call.request(Truncate(response_id=done.response_id, played_ms=900), Truncated)
    await call.request(Text(text="stop"), TurnMetrics, 2)
    await call.end()
    assert corrected.spoken_text == "Once there was a"
    assert call.chat.prompt() == [
        ("user", "a story"),
        ("assistant", "Once there was a…"),
        ("user", "stop"),
    ]


async def test_an_answer_of_which_nothing_was_heard_is_forgotten():
    call = await open_call(Start(system_prompt="", greeting="Hello there."))
    done = await call.wait_for(ResponseDone)
    await call.wait_for(TurnMetrics)
    await call.request(Truncate(response_id=done.response_id, played_ms=0), Truncated)
    await call.request(Text(text="hello"), TurnMetrics, 2)
    await call.end()
    assert call.chat.prompt() == [("user", "hello")]


async def test_an_interrupted_answer_is_corrected_in_both_directions():
    call = await open_call(Start(system_prompt="", greeting=STORY))
    await call.until(2_000)
    cut = await call.request(Interrupt(), Interrupted)
    for played_ms, heard in ((200, "Once"), (800, "Once there was a")):
        call.send(Truncate(response_id=cut.response_id, played_ms=played_ms))
        await asyncio.sleep(0.01)
        assert call.outlet.of(Truncated)[-1].spoken_text == heard
    await call.request(Text(text="hello"), TurnMetrics, 2)
    await call.end()
    assert call.chat.prompt() == [("assistant", "Once there was a…"), ("user", "hello")]


async def test_an_answer_that_is_being_said_is_stopped_by_its_correction():
    call = await open_call(Start(greeting=STORY))
    audio = await call.wait_for(Audio)
    await call.until(1_500)
    cut = await call.request(Truncate(response_id=audio.response_id, played_ms=600), Interrupted)
    corrected = await call.end(Truncated)
    assert cut.reason == "client"
    assert corrected.played_ms == 600
    assert corrected.spoken_text == "Once there"


@pytest.mark.parametrize("played_ms", [-5, 10**9])
async def test_a_correction_is_within_the_answer(played_ms):
    call = await open_call(Start(greeting="Hello there."))
    done = await call.wait_for(ResponseDone)
    corrected = await call.request(Truncate(response_id=done.response_id, played_ms=played_ms), Truncated)
    await call.end()
    assert 0 <= corrected.played_ms <= done.audio_ms


async def test_an_answer_that_was_begun_early_knows_of_the_correction():
    call = FakeCall(hears=[(5_000, 5_900, "go on")])
    await call.start(Start(greeting=STORY, turn=TurnOptions(eagerness="normal", complete_ms=700)))
    await call.until(6_320)
    assert len(call.chat.requests) == 1
    done = call.outlet.of(ResponseDone)[0]
    await call.request(Truncate(response_id=done.response_id, played_ms=900), TurnMetrics, 2)
    await call.end()
    assert ("assistant", "Once there was a…") in call.chat.prompt()
    assert call.speculated == ["discarded"]


async def test_a_correction_that_cannot_be_stops_nothing():
    call = FakeCall(answers=[says(STORY)])
    call.chat.token_s = 0.1
    await call.start(Start(output="text"))
    writing = await call.request(Text(text="a story"), ResponseText)
    await call.request(Truncate(response_id=writing.response_id, played_ms=0), ResponseDone)
    await call.end()
    assert call.outlet.codes == ["invalid_message"]
    assert call.outlet.of(Interrupted) == []


async def test_only_the_last_answers_can_be_corrected():
    call = await open_call()
    for _ in range(17):
        await call.request(Say(text="So."), TurnMetrics, len(call.outlet.of(TurnMetrics)) + 1)
    first, second = call.outlet.of(ResponseDone)[:2]
    call.send(Truncate(response_id=first.response_id, played_ms=0))
    await call.request(Truncate(response_id=second.response_id, played_ms=0), Truncated)
    await call.end()
    assert call.outlet.codes == ["invalid_message"]


# --- changing a session ---------------------------------------------------------------------


async def test_a_new_prompt_and_new_tools_count_from_the_next_answer_on():
    call = await open_call(Start(system_prompt="Be brief.", tools=[Tool(name="get_weather")]))
    await call.request(Text(text="hello"), TurnMetrics)
    await call.request(Update(system_prompt="Be kind.", tools=[Tool(name="get_time")]), Updated)
    call.chat.answers.append(calls(("get_time", {})))
    request = await call.request(Text(text="what time is it"), ToolRequest)
    await call.request(ToolResponse(call_id=request.call_id, output="noon"), TurnMetrics, 2)
    await call.end()
    assert request.name == "get_time"
    assert call.chat.prompt(1)[0] == ("system", "Be kind.")
    assert [tool.name for tool in call.chat.requests[1].tools] == ["get_time"]
    assert [warmed.messages[0].content for warmed in call.chat.warmed] == [
        "Be brief.",
        "Be kind.",
    ]
    assert len({warmed.request_id for warmed in call.chat.warmed}) == 2


async def test_omitted_fields_of_an_update_stay():
    call = await open_call(Start(system_prompt="Be brief.", voice="high"))
    await call.request(Update(exaggeration=1.0), Updated)
    await call.request(Text(text="hello"), TurnMetrics)
    await call.request(Update(voice=None), Updated, 2)
    await call.request(Text(text="hello"), TurnMetrics, 2)
    await call.end()
    first, second = call.synthesizer.requests
    assert (first.voice, first.exaggeration) == ("high", 1.0)
    assert (second.voice, second.exaggeration) == (None, 1.0)
    assert call.chat.prompt()[0] == ("system", "Be brief.")
    assert len(call.chat.warmed) == 1


async def test_an_answer_under_way_goes_on_as_it_began():
    call = await open_call(Start(voice="low"), answers=[says(STORY)])
    await call.request(Text(text="a story"), Audio)
    await call.request(Update(voice="high"), TurnMetrics)
    await call.end()
    assert {request.voice for request in call.synthesizer.requests} == {"low"}


@pytest.mark.parametrize(
    ("update", "code"),
    [
        (Update(voice="missing"), "unsupported_voice"),
        (Update(turn=TurnOptions(limit_ms=-1)), "invalid_message"),
        (Update(vad=VadOptions(threshold=7.0)), "invalid_message"),
        (Update(tools=[Tool(name="1 2")]), "invalid_message"),
        (Update(system_prompt="x" * 50_000), "invalid_message"),
    ],
)
async def test_a_change_that_cannot_be_changes_nothing(update, code):
    call = await open_call(Start(system_prompt="Be brief."))
    call.send(update)
    await call.request(Text(text="hello"), TurnMetrics)
    await call.end()
    assert call.outlet.codes == [code]
    assert call.outlet.of(Updated) == []
    assert call.chat.prompt()[0] == ("system", "Be brief.")


async def test_a_voice_that_may_be_gone_is_looked_for_first_and_the_order_is_kept():
    call = FakeCall()
    call.synthesizer.voices = None
    call.synthesizer.stored = {"anna": 0.5, "bert": UnsupportedVoiceError("no bert")}
    await call.start()
    call.send(Update(voice="anna"))
    call.send(Update(system_prompt="Be kind."))
    call.send(Update(voice="bert"))
    await call.until(300)
    assert call.outlet.of(Updated) == []
    await call.wait_for(ErrorEvent)
    await call.request(Text(text="hello"), TurnMetrics)
    await call.end()
    assert len(call.outlet.of(Updated)) == 2
    assert call.outlet.codes == ["unsupported_voice"]
    assert [request.voice for request in call.synthesizer.requests] == ["anna"]
    assert call.chat.prompt()[0] == ("system", "Be kind.")


async def test_too_many_changes_cannot_wait():
    call = FakeCall()
    call.synthesizer.voices = None
    call.synthesizer.stored = {"anna": 1.0}
    await call.start()
    for _ in range(30):
        call.send(Update(voice="anna"))
    await call.end()
    assert set(call.outlet.codes) == {"overloaded"}


def with_tools(number: int) -> Update:
    """An update of about 3 kB, unlike all others."""
    return Update(
        tools=[Tool(name=f"tool_{number}", parameters={"properties": {f"p{n}": {} for n in range(250)}})]
    )


async def test_flood_of_updates_is_validated_at_a_limited_rate_in_its_order():
    call = FakeCall()
    call.chat.warm_up_s = 5.0
    running, accepted = [], []
    await call.start()
    for number in range(400):
        refused = len(call.outlet.codes)
        call.send(with_tools(number))
        if len(call.outlet.codes) == refused:
            accepted.append(f"tool_{number}")
        await asyncio.sleep(0.01)
        running.append(len(call.chat.running))
    applied = len(call.outlet.of(Updated))
    await call.wait_for(Updated, len(accepted))
    await call.request(Text(text="hello"), TurnMetrics)
    await call.end()
    assert applied < 100
    assert set(call.outlet.codes) == {"overloaded"}
    assert all(error.retry_after_ms >= 1_000 for error in call.outlet.of(ErrorEvent))
    assert max(running) == 1
    assert call.chat.requests[0].tools[0].name == accepted[-1]


async def test_update_after_a_flood_is_applied_at_once_again():
    call = await open_call()
    for number in range(100):
        call.send(with_tools(number))
    await call.until(60_000)
    before = len(call.outlet.of(Updated))
    call.send(with_tools(100))
    assert len(call.outlet.of(Updated)) == before + 1


async def test_other_patience_counts_from_the_next_turn_on():
    call = FakeCall(hears=[(200, 1_000, "hello"), (4_000, 5_000, "hello again")])
    await call.start(Start(turn=TurnOptions(eagerness="normal", complete_ms=2_000)))
    await call.until(1_600)
    await call.request(Update(turn=TurnOptions(eagerness="normal", complete_ms=600)), TurnMetrics, 2)
    await call.end()
    waits = [event.needed_ms for event in call.outlet.of(TurnDecision) if event.decision == "wait"]
    assert waits == [2_000, 600]


@pytest.mark.parametrize("said", ["", "what time is it"])
async def test_a_turn_by_hand_that_is_no_longer_ended_by_hand_is_judged(said):
    call = await open_call(Start(turn=MANUAL), hears=[(200, 900, said), (5_000, 6_000, "hello")])
    await call.until(3_000)
    await call.request(Update(turn=TurnOptions(eagerness="normal")), TurnMetrics, 2 if said else 1)
    await call.end()
    assert [text for role, text in call.chat.prompt() if role == "user"] == [*filter(None, [said]), "hello"]


async def test_a_turn_that_has_begun_ends_as_it_would_have():
    call = FakeCall()
    call.recognition.script.extend(late_utterance(1, 500, 1_200, "what time is it"))
    await call.start(Start(turn=TurnOptions(eagerness="off")))
    await call.until(1_700)
    await call.request(Update(turn=TurnOptions(eagerness="normal")), TurnMetrics)
    await call.end()
    assert call.chat.prompt()[-1] == ("user", "what time is it")


async def test_a_change_that_fails_does_not_take_others_with_it():
    call = FakeCall()
    call.synthesizer.voices = None
    call.synthesizer.stored = {}  # asking for a voice fails unexpectedly
    await call.start()
    call.send(Update(voice="anna"))
    await call.request(Update(exaggeration=1.0), Updated)
    await call.end()
    assert call.outlet.codes == [ParleyError.code]


async def test_the_recogniser_listens_anew_between_two_utterances():
    call = await open_call(hears=[(200, 1_000, "hello"), (5_000, 6_000, "hello again")])
    await call.until(600)
    call.send(Update(phrases=["Anna"], vad=VadOptions(threshold=0.7)))
    await call.until(900)
    assert len(call.recognition.streams) == 1
    await call.wait_for(TurnMetrics, 1)
    await call.until(4_000)
    assert len(call.recognition.streams) == 2
    assert call.recognition.streams[1].options.phrases == ["Anna"]
    assert call.recognition.streams[1].options.vad.threshold == 0.7


async def test_phrases_that_the_recogniser_refuses_are_not_kept():
    call = await open_call()
    call.recognition.refusals.append(InvalidInputError("too many phrases"))
    await call.request(Update(phrases=["Anna"]), ErrorEvent)
    await call.until(1_000)
    assert call.recognition.streams[-1].options.phrases == []
    await call.end()
    assert call.outlet.codes == ["invalid_input"]


async def test_patience_with_silence_may_change():
    call = await open_call()
    call.send(Update(silence=SilenceOptions(prompt_after_ms=1_000, prompts=["Still there?"])))
    await call.end(TurnMetrics)
    assert written(call) == "Still there?"


# --- text instead of speech -----------------------------------------------------------------


async def test_answers_may_be_written_only():
    call = await open_call(Start(system_prompt="", output="text"), answers=[says(STORY)])
    done = await call.request(Text(text="a story"), ResponseDone)
    await call.wait_for(TurnMetrics)
    await call.request(Text(text="go on"), TurnMetrics, 2)
    await call.end()
    assert done.audio_ms == 0
    assert call.synthesizer.requests == []
    assert call.outlet.of(Audio) == []
    assert AgentState(state="speaking") not in call.outlet.events
    assert call.chat.prompt() == [("user", "a story"), ("assistant", STORY), ("user", "go on")]


async def test_stopped_text_answer_keeps_the_sent_text():
    call = FakeCall(answers=[says(STORY)])
    call.chat.token_s = 0.1
    await call.start(Start(system_prompt="", output="text"))
    await call.request(Text(text="a story"), ResponseText, 4)
    cut = await call.request(Interrupt(), Interrupted)
    await call.request(Text(text="go on"), TurnMetrics, 2)
    call.send(Truncate(response_id=cut.response_id, played_ms=0))
    await call.end()
    assert cut.spoken_text.strip() == "Once there was a"
    assert call.chat.prompt()[1] == ("assistant", "Once there was a")
    assert call.outlet.codes == ["invalid_message"]  # it has no audio


async def test_speech_and_writing_may_change_places():
    call = await open_call(Start(output="text"), config=AgentConfig())
    await call.request(Text(text="hello"), TurnMetrics)
    call.send(Update(output="audio"))
    await call.request(Text(text="hello"), TurnMetrics, 2)
    await call.end()
    assert len(call.synthesizer.requests) == 1


async def test_marks_of_a_stopped_answer_are_late_and_not_wrong():
    call = await open_call(Start(greeting=STORY))
    audio = await call.wait_for(Audio)
    call.send(Interrupt())
    call.send(Playback(response_id=audio.response_id, played_ms=5))
    await call.end()
    assert call.outlet.codes == []
    assert [event for event in call.outlet.of(Transcript) if event.is_final] == []
