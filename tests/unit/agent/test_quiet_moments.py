"""What waits while somebody speaks, and what the silence is counted from."""

from __future__ import annotations

import asyncio

import pytest
from agent_fakes import FakeCall, hold_call, open_call, says, utterance

from parley.agent.config import AgentConfig
from parley.asr.messages import OnsetEvent, OnsetLostEvent
from parley.protocol import (
    BargeInOptions,
    Dtmf,
    Interrupted,
    Paused,
    Resumed,
    Say,
    SilenceOptions,
    Start,
    Text,
    TurnDecision,
    TurnMetrics,
    TurnOptions,
)

STORY = "Once there was a robot in a house by the sea, and it was happy. It waved at all the boats."
NORMAL = TurnOptions(eagerness="normal")
WATCHED = SilenceOptions(prompt_after_ms=2_000, prompts=["Hello?"], hang_up_after_ms=6_000)


@pytest.mark.parametrize("lasts_ms", [32, 128])
@pytest.mark.parametrize("barge_in", [BargeInOptions(), BargeInOptions(min_words=0, min_speech_ms=50)])
async def test_sound_that_is_no_speech_only_pauses_the_agent_for_a_moment(barge_in, lasts_ms):
    call = FakeCall(hears=[(200, 1_000, "tell me a story")], answers=[says(STORY)])
    call.recognition.script += [(3_032, OnsetEvent(at_ms=3_000)), (3_032 + lasts_ms, OnsetLostEvent())]
    await call.start(Start(barge_in=barge_in))
    await call.end(TurnMetrics)
    assert call.outlet.of(Interrupted) == []
    (paused,), (resumed,) = call.outlet.of(Paused), call.outlet.of(Resumed)
    assert resumed.reason == "noise"
    assert call.at_ms(resumed) - call.at_ms(paused) < lasts_ms + 20


async def test_a_sign_of_listening_does_not_keep_the_users_own_turn_open():
    call = FakeCall(AgentConfig(eagerness="normal"))
    call.hears((200, 1_000, "set a timer for"), (1_900, 2_300, "mhm"))
    await call.start(Start(turn=NORMAL))
    await call.until(1_500)
    await call.request(Say(text="I am still here, take your time."), TurnMetrics, 2)
    await call.end()
    assert [event.decision for event in call.outlet.of(TurnDecision)][-1] == "commit"
    assert call.chat.prompt()[-1] == ("user", "set a timer for")


async def test_no_prompt_and_no_hang_up_while_the_user_speaks():
    call = await open_call(Start(silence=WATCHED), hears=[(500, 12_000, "a very long story")])
    call.send(Say(text="This call is recorded for quality reasons.", interruptible=False))
    await call.until(13_000)
    spoken = [request.text for request in call.synthesizer.requests]
    assert spoken == ["This call is recorded for quality reasons.", "Okay."]
    await call.end()
    assert call.outlet.reason == "ended"


async def test_a_prompt_does_not_break_into_a_pause_that_is_waited_for():
    call = FakeCall(hears=[(200, 1_000, "set a timer for"), (4_500, 5_000, "ten minutes")])
    turn = TurnOptions(eagerness="patient", unfinished_ms=4_500, limit_ms=6_000)
    await call.start(Start(turn=turn, silence=WATCHED))
    await call.wait_for(TurnMetrics)
    assert [request.text for request in call.synthesizer.requests] == ["Okay."]
    await call.end()
    assert call.chat.prompt()[1:] == [("user", "set a timer for ten minutes")]


async def test_speech_before_a_typed_text_joins_its_turn():
    call = await open_call(Start(turn=NORMAL), hears=[(200, 1_000, "set a timer for")])
    await call.until(1_600)
    await call.request(Text(text="ten minutes"), TurnMetrics)
    await call.until(6_000)
    await call.end()
    assert call.chat.prompt()[1:] == [("user", "set a timer for ten minutes")]
    assert call.outlet.of(Interrupted) == []
    assert len(call.chat.requests) == 1


async def test_waiting_turn_is_answered_with_the_next_one():
    call = await open_call(hears=[(500, 900, "what time is it"), (4_300, 5_200, "and where")])
    call.send(Say(text="This call is recorded for quality reasons.", interruptible=False))
    await call.request(Say(text=STORY), TurnMetrics, 3)
    await call.end()
    assert len(call.chat.requests) == 1
    assert call.chat.prompt()[-1] == ("user", "what time is it and where")


async def test_a_yes_before_the_end_of_a_question_answers_it():
    call = await hold_call(
        hears=[(200, 1_000, "hello"), (4_300, 4_700, "yes")],
        answers=[says("There is a table for two at eight, by the window. Do you want it?"), says("Good.")],
        count=2,
    )
    assert call.chat.prompt()[-1] == ("user", "yes")


async def test_unheard_greeting_leaves_no_open_question():
    call = FakeCall(hears=[(50, 600, "")])
    await call.start(Start(greeting=STORY, barge_in=BargeInOptions(min_words=0, min_speech_ms=100)))
    await call.wait_for(TurnMetrics)
    await call.until(5_000)
    await call.end()
    assert call.chat.requests == []


async def test_a_text_that_does_not_come_does_not_keep_the_agent_silent():
    call = FakeCall(hears=[(200, 1_000, "tell me a story")])
    begun, stopped, _ = utterance(2, 3_000, 3_600, "lost")
    call.recognition.script += [(3_032, OnsetEvent(at_ms=3_000)), begun, stopped]
    call.chat.answers.append(says(STORY))
    await call.start()
    resumed = await call.wait_for(Resumed)
    assert call.at_ms(resumed) < 3_900 + 1_500 + 50
    await call.end(TurnMetrics)


async def test_sound_is_one_false_alarm():
    call = FakeCall()
    call.hears((200, 1_000, "tell me a story"), (2_500, 4_500, ""), (5_000, 5_300, ""))
    call.chat.answers.append(says(STORY + " " + STORY))
    await call.start()
    await call.end(TurnMetrics)
    assert len(call.outlet.of(Resumed)) == 2


async def test_a_key_that_is_no_turn_does_not_stop_the_clock():
    call = await open_call(Start(silence=SilenceOptions(hang_up_after_ms=3_000)))
    await call.until(1_000)
    call.send(Dtmf(digits="#"))
    await call.until(4_500)
    assert call.outlet.reason == "silence"
    await call.hang_up()


async def test_the_clock_does_not_run_while_the_first_answer_is_made():
    call = FakeCall()
    call.recognition.start_s = 0.5
    call.chat.first_s = 3.0
    starting = asyncio.create_task(call.start(Start(silence=WATCHED)))
    await asyncio.sleep(0.1)
    call.send(Text(text="hello"))
    await starting
    await call.wait_for(TurnMetrics)
    assert [request.text for request in call.synthesizer.requests] == ["Okay."]
