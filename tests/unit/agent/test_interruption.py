"""The user speaks while the agent thinks or speaks."""

from __future__ import annotations

import pytest
from agent_fakes import FakeCall, calls, says

from parley.agent.config import AgentConfig
from parley.protocol import (
    Audio,
    Interrupted,
    Playback,
    ResponseDone,
    SpeechStarted,
    Start,
    Tool,
    ToolRequest,
    ToolResponse,
    TurnMetrics,
)

STORY = "Once there was a robot in a house by the sea, and it was happy. It waved at all the boats."


async def interrupted_at(ms: int, answer: str = STORY, **settings) -> FakeCall:
    """A call in which the user's second utterance is noticed ``ms`` after the first was final."""
    call = FakeCall(**settings)
    onset = 1_312 + ms - 96
    call.hears((200, 1_000, "tell me a story"), (onset, onset + 500, "stop"))
    call.chat.answers += [says(answer), says("Okay.")]
    await call.start()
    await call.wait_for(TurnMetrics, 2)
    await call.end()
    return call


async def test_while_the_model_writes_its_first_word():
    call = await interrupted_at(15)
    (cut,) = call.outlet.of(Interrupted)
    assert (cut.turn, cut.played_ms, cut.spoken_text) == (1, 0, "")
    assert call.outlet.of(TurnMetrics)[0].interrupted
    assert [name.rsplit("-", 1)[1] for name in call.chat.aborted] == ["llm0"]
    # Nobody answered the first question: the model sees both as one message.
    assert call.chat.prompt()[1:] == [("user", "tell me a story stop")]


async def test_while_the_first_segment_is_synthesised():
    call = FakeCall()
    call.synthesizer.first_s = 0.5
    call.hears((200, 1_000, "hello"), (1_500, 2_000, "wait"))
    call.chat.answers += [says("Hello! How can I help you?"), says("Okay.")]
    await call.start()
    await call.wait_for(TurnMetrics, 2)
    await call.end()
    assert call.outlet.of(Interrupted)[0].spoken_text == ""
    assert all(audio.turn == 2 for audio in call.outlet.of(Audio))
    assert len(call.synthesizer.aborted) == 1
    assert call.chat.prompt()[1:] == [("user", "hello wait")]


async def test_in_the_middle_of_a_word_only_what_was_heard_is_remembered():
    call = await interrupted_at(1_000)
    (cut,) = call.outlet.of(Interrupted)
    heard = cut.spoken_text
    assert STORY.startswith(heard)
    # The first audio came 150 ms after the final transcript; 50 ms per character were played.
    assert 0 < len(heard) <= cut.played_ms / 50 + 6
    assert abs(len(heard) - cut.played_ms / 50) <= 6
    assert call.chat.prompt()[1:] == [
        ("user", "tell me a story"),
        ("assistant", f"{heard}…"),
        ("user", "stop"),
    ]


async def test_the_model_and_the_voice_are_told_to_stop():
    call = FakeCall()
    call.chat.token_s = 0.2
    call.hears((200, 1_000, "tell me a story"), (3_500, 4_000, "stop"))
    call.chat.answers += [says(STORY), says("Okay.")]
    await call.start()
    await call.wait_for(Interrupted)
    assert call.chat.running or call.chat.aborted
    await call.wait_for(TurnMetrics, 2)
    await call.end()
    assert len(call.chat.aborted) == 1


async def test_after_the_last_audio_was_sent_but_before_it_was_played():
    call = FakeCall()
    call.hears((200, 1_000, "hello"), (2_200, 2_700, "stop"))
    call.chat.answers += [says("Hello, how are you today?"), says("Okay.")]
    await call.start()
    (done, cut) = (await call.wait_for(ResponseDone), await call.wait_for(Interrupted))
    await call.wait_for(TurnMetrics, 2)
    await call.end()
    assert call.at_ms(done) < call.at_ms(cut)
    assert cut.response_id == done.response_id
    assert 0 < cut.played_ms < done.audio_ms
    assert "Hello, how are you today?".startswith(cut.spoken_text)
    assert call.chat.prompt()[2] == ("assistant", f"{cut.spoken_text}…")


async def test_an_answer_that_was_heard_to_its_end_is_not_interrupted():
    call = FakeCall()
    call.hears((200, 1_000, "hello"), (4_000, 4_500, "thanks"))
    call.chat.answers += [says("Hello, how are you?"), says("Okay.")]
    await call.start()
    await call.wait_for(TurnMetrics, 2)
    await call.end()
    assert call.outlet.of(Interrupted) == []
    assert call.chat.prompt()[2] == ("assistant", "Hello, how are you?")


async def test_playback_marks_say_what_was_heard():
    call = FakeCall()
    call.hears((200, 1_000, "tell me a story"), (3_500, 4_000, "stop"))
    call.chat.answers += [says(STORY), says("Okay.")]
    await call.start()
    audio = await call.wait_for(Audio)
    # The client's loudspeaker is slow: after two seconds it has played "Once".
    for step in range(1, 11):
        await call.until(call.at_ms(audio) + 200 * step)
        call.send(Playback(response_id=audio.response_id, played_ms=20 * step))
    cut = await call.wait_for(Interrupted)
    await call.wait_for(TurnMetrics, 2)
    await call.end()
    assert cut.played_ms <= 450
    assert cut.spoken_text in ("Once", "Once there")


async def test_marks_of_another_response_are_ignored():
    call = FakeCall()
    call.hears((200, 1_000, "hello"))
    await call.start()
    call.send(Playback(response_id="nonsense", played_ms=100))
    await call.wait_for(TurnMetrics)
    await call.end()
    assert call.outlet.codes == []


async def test_a_voice_without_word_marks_is_cut_by_time():
    call = FakeCall()
    call.synthesizer.marks = False
    call.hears((200, 1_000, "tell me a story"), (2_300, 2_800, "stop"))
    call.chat.answers += [says(STORY), says("Okay.")]
    await call.start()
    cut = await call.wait_for(Interrupted)
    await call.wait_for(TurnMetrics, 2)
    await call.end()
    assert 0 < len(cut.spoken_text) < len(STORY)
    assert STORY.startswith(cut.spoken_text)


async def test_noise_does_not_lose_the_question():
    call = FakeCall()
    call.hears((200, 1_000, "hello"), (1_300, 1_500, ""))
    call.chat.answers += [says("Hello! How can I help you?"), says("Hello again!")]
    await call.start()
    await call.wait_for(ResponseDone)
    await call.wait_for(TurnMetrics, 2)
    await call.end()
    # The answer that nobody heard is given anew, to the same question.
    assert call.chat.prompt()[1:] == [("user", "hello")]
    assert [metrics.interrupted for metrics in call.outlet.of(TurnMetrics)] == [True, False]
    assert call.outlet.states[-1] == "listening"


async def test_noise_in_the_middle_of_an_answer_ends_it():
    call = FakeCall()
    call.hears((200, 1_000, "tell me a story"), (2_500, 2_800, ""))
    call.chat.answers.append(says(STORY))
    await call.start()
    await call.wait_for(Interrupted)
    await call.until(6_000)
    await call.end()
    assert call.outlet.states[-1] == "listening"
    assert len(call.chat.requests) == 1


@pytest.mark.parametrize("answered", [False, True])
async def test_what_a_tool_did_stays_done(answered):
    call = FakeCall()
    call.hears((200, 1_000, "set a timer"), (2_300, 2_800, "and hello"))
    call.chat.answers += [calls(("set_timer", {"minutes": 5})), says(STORY), says("Hello.")]
    if not answered:
        call.chat.answers.remove(call.chat.answers[1])
    await call.start(Start(tools=[Tool(name="set_timer")]))
    request = await call.wait_for(ToolRequest)
    if answered:
        call.send(ToolResponse(call_id=request.call_id, output={"ok": True}))
    await call.wait_for(SpeechStarted, 2)
    if not answered:
        call.send(ToolResponse(call_id=request.call_id, output={"ok": True}))
    await call.wait_for(ResponseDone)
    await call.end()
    roles = [role for role, _ in call.chat.prompt()]
    if answered:
        assert roles[:4] == ["system", "user", "assistant", "tool"]
        assert roles[-1] == "user"
        assert call.outlet.codes == []
    else:
        assert call.chat.prompt()[1:] == [("user", "set a timer and hello")]
        assert call.outlet.codes == ["unknown_tool_call"]


async def test_a_longer_lead_does_not_change_what_was_heard():
    cuts = [
        (await interrupted_at(1_000, config=AgentConfig(lead_ms=lead))).outlet.of(Interrupted)[0]
        for lead in (100, 600)
    ]
    assert cuts[0].spoken_text == cuts[1].spoken_text
