"""The user speaks while the agent thinks or speaks."""

from __future__ import annotations

import asyncio

import msgspec
import numpy as np
import pytest
from agent_fakes import CHUNK_MS, FakeCall, all_of_utterance, calls, open_call, says

from parley.agent.config import AgentConfig, AgentDeadlines
from parley.errors import InferenceError
from parley.protocol import (
    AgentState,
    Audio,
    BargeInOptions,
    Closed,
    Connected,
    Dtmf,
    Interrupted,
    Paused,
    Playback,
    ResponseDone,
    Resumed,
    Say,
    SilenceOptions,
    SpeechIgnored,
    Start,
    Text,
    Tool,
    ToolCancelled,
    ToolRequest,
    ToolResponse,
    Transcript,
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
    await call.end(TurnMetrics, 2)
    return call


async def test_while_the_model_writes_its_first_word():
    call = await interrupted_at(15)
    (cut,) = call.outlet.of(Interrupted)
    assert (cut.turn, cut.played_ms, cut.spoken_text) == (1, 0, "")
    assert call.outlet.of(TurnMetrics)[0].interrupted
    assert [name.rsplit("-", 1)[1] for name in call.chat.aborted] == ["llm0"]
    # The first question was not answered: the model sees both as one message.
    assert call.chat.prompt()[1:] == [("user", "tell me a story stop")]


async def test_while_the_first_segment_is_synthesised():
    call = FakeCall()
    call.synthesizer.first_s = 0.5
    call.hears((200, 1_000, "hello"), (1_500, 2_000, "wait"))
    call.chat.answers += [says("Hello! How can I help you?"), says("Okay.")]
    await call.start()
    await call.end(TurnMetrics, 2)
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


async def test_after_the_last_audio_was_sent_but_before_it_was_played():
    call = FakeCall()
    call.hears((200, 1_000, "hello"), (2_200, 2_700, "stop"))
    call.chat.answers += [says("Hello, how are you today?"), says("Okay.")]
    await call.start()
    (done, cut) = (await call.wait_for(ResponseDone), await call.wait_for(Interrupted))
    await call.end(TurnMetrics, 2)
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
    await call.end(TurnMetrics, 2)
    assert call.outlet.of(Interrupted) == []
    assert call.chat.prompt()[2] == ("assistant", "Hello, how are you?")


async def test_playback_marks_say_what_was_heard():
    call = await open_call(
        hears=[(200, 1_000, "tell me a story"), (3_500, 4_000, "stop")], answers=[says(STORY), says("Okay.")]
    )
    audio = await call.wait_for(Audio)
    # The client's loudspeaker is slow: after two seconds it has played "Once".
    for step in range(1, 11):
        await call.until(call.at_ms(audio) + 200 * step)
        call.send(Playback(response_id=audio.response_id, played_ms=20 * step))
    cut = await call.wait_for(Interrupted)
    await call.end(TurnMetrics, 2)
    assert cut.played_ms <= 450
    assert cut.spoken_text in ("Once", "Once there")


async def test_a_voice_without_word_marks_is_cut_by_time():
    call = FakeCall()
    call.synthesizer.marks = False
    call.hears((200, 1_000, "tell me a story"), (2_300, 2_800, "stop"))
    call.chat.answers += [says(STORY), says("Okay.")]
    await call.start()
    cut = await call.wait_for(Interrupted)
    await call.end(TurnMetrics, 2)
    assert 0 < len(cut.spoken_text) < len(STORY)
    assert STORY.startswith(cut.spoken_text)


async def test_noise_does_not_lose_the_question():
    call = await open_call(
        hears=[(200, 1_000, "hello"), (1_300, 1_500, "")], answers=[says("Hello! How can I help you?")]
    )
    await call.wait_for(ResponseDone)
    await call.end(TurnMetrics)
    assert call.chat.prompt()[1:] == [("user", "hello")]
    assert call.outlet.of(Interrupted) == []
    assert [request.text for request in call.synthesizer.requests] == ["Hello!", "How can I help you?"]


async def heard_over_the_story(start_ms, end_ms, text, *, start=None, answer=STORY, config=None):
    """A call in which something is heard while the agent tells a story, from about 1.3 s on."""
    call = FakeCall(config)
    call.hears((200, 1_000, "tell me a story"), (start_ms, end_ms, text))
    call.chat.answers += [says(answer), says("Okay.")]
    await call.start(start)
    await call.wait_for(TurnMetrics)
    await call.until(16_000)
    await call.end()
    return call


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "no_words"),
        ("mhm", "backchannel"),
        ("Yeah, okay.", "backchannel"),
        ("once there was a robot", "echo"),
    ],
)
async def test_false_interruption_only_pauses_the_agent(text, reason):
    call = await heard_over_the_story(3_000, 3_600, text)
    (paused,), (resumed,) = call.outlet.of(Paused), call.outlet.of(Resumed)
    assert (resumed.reason, resumed.text) == (reason, text)
    assert call.at_ms(paused) < 3_000 + 32 + 25
    assert call.at_ms(resumed) < 3_600 + 300 + 45
    assert call.outlet.of(Interrupted) == []
    silent = [
        sent.event
        for sent in call.outlet.sent
        if isinstance(sent.event, Audio)
        and call.at_ms(paused) < (sent.at - call.began) * 1000 < call.at_ms(resumed)
    ]
    assert silent == []
    # All of the story was spoken once, and only it is remembered.
    assert " ".join(event.text for event in call.outlet.of(Audio) if event.text) == STORY
    assert len(call.chat.requests) == 1
    session_length = call.outlet.of(ResponseDone)[0].audio_ms
    (metrics,) = call.outlet.of(TurnMetrics)
    paused_ms = call.at_ms(resumed) - call.at_ms(paused)
    assert call.at_ms(metrics) - call.at_ms(call.outlet.of(Audio)[0]) == pytest.approx(
        session_length + paused_ms, abs=30
    )


def echo_of(call, delay_ms=120, attenuation=0.05):
    """What the agent says, as the microphone hears it: it plays on, whatever the server says."""

    def hear(at_ms):
        sound = np.zeros(CHUNK_MS * 16, np.int16)
        begin = next((call.at_ms(event) for event in call.outlet.of(Audio)), None)
        if begin is not None:
            pieces = [sent.audio for sent in call.outlet.sent if isinstance(sent.event, Audio)]
            played = (np.concatenate(pieces) * attenuation).astype(np.int16)
            start = round((at_ms - delay_ms - begin) * 16)
            if start >= 0:
                piece = played[start : start + len(sound)]
                sound[: len(piece)] = piece
        return sound.tobytes()

    return hear


@pytest.mark.parametrize("has_echo", [True, False])
async def test_the_agents_own_sound_is_no_interruption_whatever_is_understood(has_echo):
    call = FakeCall()
    call.synthesizer.loudness = 8_000
    call.hears((200, 1_000, "tell me a story"), (2_500, 4_000, "what is the weather in rome"))
    call.chat.answers += [says(STORY), says("Okay.")]
    if has_echo:
        call.room = echo_of(call)
    await call.start(Start(output_sample_rate=16_000, barge_in=BargeInOptions(pause_playback=False)))
    await call.end(TurnMetrics, 1 if has_echo else 2)
    assert len(call.outlet.of(Interrupted)) == (0 if has_echo else 1)
    assert len(call.chat.requests) == (1 if has_echo else 2)


@pytest.mark.parametrize(("before", "stopped"), [("once there was a robot", 0), ("mhm", 1)])
async def test_single_word_over_an_agent_that_hears_itself_is_none(before, stopped):
    call = FakeCall()
    call.hears((200, 1_000, "tell me a story"), (2_500, 3_000, before), (4_200, 5_200, "but"))
    call.chat.answers += [says(STORY), says("Okay.")]
    await call.start()
    await call.until(9_000)
    await call.end()
    assert len(call.outlet.of(Interrupted)) == stopped


@pytest.mark.parametrize("has_echo", [True, False])
async def test_an_echo_is_still_known_when_its_text_comes_after_the_answer_is_over(has_echo):
    call = FakeCall()
    call.synthesizer.loudness = 8_000
    # The answer lasts from about 1.4 to 2.6 seconds.
    call.hears((200, 1_000, "tell me a story"), (1_600, 2_700, "what is the weather in rome"))
    call.chat.answers += [says("A short tale of a robot."), says("Okay.")]
    if has_echo:
        call.room = echo_of(call)
    await call.start(Start(output_sample_rate=16_000, barge_in=BargeInOptions(pause_playback=False)))
    await call.until(5_000)
    await call.end()
    assert len(call.chat.requests) == (1 if has_echo else 2)


async def test_noise_that_goes_on_does_not_keep_the_agent_silent():
    call = await heard_over_the_story(3_000, 9_000, "")
    (resumed,) = call.outlet.of(Resumed)
    assert call.at_ms(resumed) == pytest.approx(3_032 + 1_500, abs=45)
    assert call.outlet.of(Interrupted) == []


async def test_agent_in_noise_waits_for_words():
    call = FakeCall()
    noises = [(2_500 + 900 * n, 2_600 + 900 * n, "") for n in range(3)]
    call.hears((200, 1_000, "tell me a story"), *noises, (5_600, 6_400, "tell me another one"))
    call.chat.answers += [says(STORY), says("Okay.")]
    await call.start()
    cut = await call.wait_for(Interrupted)
    await call.end(TurnMetrics, 2)
    assert len(call.outlet.of(Paused)) == 2
    assert call.at_ms(cut) == pytest.approx(5_900, abs=45)


async def test_stop_is_a_command_at_any_length():
    call = await heard_over_the_story(3_000, 3_120, "stop", start=Start(barge_in=BargeInOptions(min_words=3)))
    (cut,) = call.outlet.of(Interrupted)
    assert cut.reason == "command"
    assert call.chat.prompt()[-1] == ("user", "stop")


@pytest.mark.parametrize(
    ("options", "text", "reason"),
    [
        (BargeInOptions(min_words=3), "another story", "too_few_words"),
        (BargeInOptions(min_speech_ms=1_000), "another story", "too_short"),
    ],
)
async def test_a_session_says_what_an_interruption_is(options, text, reason):
    call = await heard_over_the_story(3_000, 3_600, text, start=Start(barge_in=options))
    assert [event.reason for event in call.outlet.of(Resumed)] == [reason]
    assert call.outlet.of(Interrupted) == []


async def test_speech_alone_may_be_an_interruption():
    options = BargeInOptions(min_words=0, min_speech_ms=400)
    call = await heard_over_the_story(3_000, 4_000, "", start=Start(barge_in=options))
    (cut,) = call.outlet.of(Interrupted)
    assert cut.reason == "speech"
    assert call.at_ms(cut) == pytest.approx(3_000 + 400, abs=80)
    assert len(call.chat.requests) == 1


async def test_a_client_that_cannot_pause_hears_of_no_pause():
    options = BargeInOptions(pause_playback=False)
    call = await heard_over_the_story(3_000, 3_200, "mhm", start=Start(barge_in=options))
    assert call.outlet.of(Paused) + call.outlet.of(Resumed) == []
    # It played what it had meanwhile, which was half a second: nothing was lost by the pause.
    (metrics,), (done,) = call.outlet.of(TurnMetrics), call.outlet.of(ResponseDone)
    assert call.at_ms(metrics) - call.at_ms(call.outlet.of(Audio)[0]) < done.audio_ms + 200
    assert " ".join(event.text for event in call.outlet.of(Audio) if event.text) == STORY


@pytest.mark.parametrize(("start_ms", "answer"), [(3_300, STORY[:41] + "?"), (3_250, STORY[:41] + ".")])
async def test_yes_is_an_answer_to_a_question_and_at_the_end(start_ms, answer):
    call = await heard_over_the_story(start_ms, start_ms + 500, "yes", answer=answer)
    assert call.chat.prompt()[-1] == ("user", "yes")


async def test_signs_of_listening_as_an_answer_ends_are_no_turn():
    call = await heard_over_the_story(3_250, 3_750, "okay I see", answer=STORY[:41] + ".")
    assert len(call.chat.requests) == 1
    assert [event.text for event in call.outlet.of(Resumed)] == ["okay I see"]


@pytest.mark.parametrize(("answer", "turns"), [("It is so.", 1), ("Is it so?", 2)])
async def test_hum_in_silence_answers_a_question_only(answer, turns):
    call = await heard_over_the_story(6_000, 6_400, "Mm-hmm.", answer=answer)
    assert len(call.chat.requests) == turns
    assert len(call.outlet.of(SpeechIgnored)) == 2 - turns


@pytest.mark.parametrize(
    ("answer", "text", "confidence", "turns"),
    [
        ("It is so.", "Yeah.", 0.5, 1),
        ("It is so.", "Yeah.", 0.9, 2),
        ("It is so.", "Rome.", 0.5, 2),
        ("Say yeah or no.", "Yeah.", 0.5, 2),
        ("Is it so? It costs ten.", "Yeah.", 0.5, 2),
    ],
)
async def test_doubtful_agreement_that_was_not_asked_for_is_no_turn(answer, text, confidence, turns):
    call = FakeCall(hears=[(200, 1_000, "tell me a story")], answers=[says(answer), says("Good.")])
    for at_ms, event in all_of_utterance(2, 6_000, 6_300, text):
        doubted = hasattr(event, "confidence")
        call.recognition.script.append(
            (at_ms, msgspec.structs.replace(event, confidence=confidence) if doubted else event)
        )
    await call.start()
    await call.until(9_000)
    await call.end()
    assert len(call.chat.requests) == turns


async def test_hum_that_cuts_a_question_answers_it():
    call = await heard_over_the_story(2_600, 2_900, "mhm", answer="Shall I book the table for you tonight?")
    assert len(call.outlet.of(Interrupted)) == 1
    assert len(call.chat.requests) == 2


async def test_hum_while_the_agent_thinks_does_not_stop_it():
    call = FakeCall()
    call.hears((200, 1_000, "tell me a story"), (1_600, 1_900, "mhm"))
    call.chat.first_s = 2.0
    call.chat.answers += [says("It is so.")]
    await call.start()
    await call.end(TurnMetrics)
    assert call.outlet.of(Interrupted) == []
    assert len(call.chat.requests) == 1


async def test_say_texts_are_spoken_in_order_and_remembered():
    call = await open_call(Start(greeting="Welcome."), hears=[(6_000, 6_500, "hello")])
    assert (await call.wait_for(Connected)).greets
    call.send(Say(text="This call is recorded.", interruptible=False))
    await call.request(Say(text="Just so you know.", remember=False), TurnMetrics, 4)
    await call.end()
    spoken = [request.text for request in call.synthesizer.requests]
    assert spoken == ["Welcome.", "This call is recorded.", "Just so you know.", "Okay."]
    assert call.chat.prompt()[1:] == [
        ("assistant", "Welcome."),
        ("assistant", "This call is recorded."),
        ("user", "hello"),
    ]


async def test_say_before_connected_follows_the_greeting():
    call = FakeCall()
    call.recognition.start_s = 0.5
    starting = asyncio.create_task(call.start(Start(greeting="Welcome.")))
    await asyncio.sleep(0.1)
    call.send(Say(text="It is a nice day."))
    call.send(Text(text="hello"))
    await starting
    await call.end(TurnMetrics, 3)
    assert isinstance(call.outlet.events[0], Connected)
    assert [request.text for request in call.synthesizer.requests] == [
        "Welcome.",
        "It is a nice day.",
        "Okay.",
    ]


async def test_speech_over_an_uninterruptible_text_is_answered_afterwards():
    call = FakeCall(hears=[(500, 900, "what time is it"), (1_500, 1_900, "please")])
    await call.start(Start(greeting=""))
    assert not (await call.wait_for(Connected)).greets
    call.send(
        Say(
            text="This call is recorded for quality reasons. Thank you for your patience.",
            interruptible=False,
        )
    )
    await call.end(TurnMetrics, 2)
    assert call.outlet.of(Interrupted) + call.outlet.of(Paused) == []
    assert call.chat.prompt()[-1] == ("user", "what time is it please")
    assert len(call.chat.requests) == 1


async def test_typed_text_and_keys_are_turns_of_the_user():
    call = await open_call(
        hears=[(200, 1_000, "tell me a story")], answers=[says(STORY), says("Okay."), says("Right.")]
    )
    await call.until(3_000)
    await call.request(Text(text=" what time is it "), TurnMetrics, 2)
    call.send(Dtmf(digits="12"))
    call.send(Dtmf(digits="3#"))
    await call.wait_for(TurnMetrics, 3)
    call.send(Dtmf(digits="4"))
    pressed = call.outlet.sent[-1].at
    await call.end(TurnMetrics, 4)
    (cut,) = call.outlet.of(Interrupted)
    assert cut.reason == "input"
    assert call.chat.prompt(1)[-1] == ("user", "what time is it")
    assert call.chat.prompt(2)[-1] == ("user", "123")
    assert call.chat.prompt(3)[-1] == ("user", "4")
    assert [sent.at for sent in call.outlet.sent if sent.event == AgentState(state="processing")][
        -1
    ] >= pressed + 2


async def test_texts_in_quick_succession_begin_few_answers():
    call = await open_call()
    for number in range(200):
        call.send(Text(text=f"hello {number}"))
        await asyncio.sleep(0.03)
    begun = len(call.chat.requests)
    await call.end(ResponseDone)
    assert begun <= 10
    assert len(call.chat.requests) == begun + 1
    assert call.chat.prompt()[-1][1].endswith("hello 199")
    assert len(call.outlet.of(Interrupted)) == 199


async def test_no_more_than_so_much_waits_to_be_said():
    call = await open_call()
    for _ in range(18):
        call.send(Say(text="One more thing."))
    assert call.outlet.codes == ["overloaded"]


async def test_silence_is_broken_by_prompts_and_ended():
    silence = SilenceOptions(
        prompt_after_ms=2_000, prompts=["Hello?", "Still there?"], hang_up_after_ms=7_000
    )
    call = await open_call(Start(silence=silence), hears=[(200, 1_000, "hello")])
    await call.wait_for(Closed)
    spoken = [request.text for request in call.synthesizer.requests]
    assert spoken == ["Okay.", "Hello?", "Still there?", "Still there?"]
    assert call.outlet.reason == "silence"
    await call.check_nothing_left()


@pytest.mark.parametrize("answered", [False, True])
async def test_result_of_a_tool_survives_an_interruption(answered):
    call = FakeCall()
    call.hears((200, 1_000, "set a timer"), (2_300, 3_200, "and hello"))
    call.chat.answers += [calls(("set_timer", {"minutes": 5})), says(STORY), says("Hello.")]
    if not answered:
        call.chat.answers.remove(call.chat.answers[1])
    await call.start(Start(tools=[Tool(name="set_timer")]))
    request = await call.wait_for(ToolRequest)
    if answered:
        call.send(ToolResponse(call_id=request.call_id, output={"ok": True}))
    await call.wait_for(Interrupted)
    if not answered:
        call.send(ToolResponse(call_id=request.call_id, output={"ok": True}))
    await call.end(ResponseDone)
    roles = [role for role, _ in call.chat.prompt()]
    if answered:
        assert roles[:4] == ["system", "user", "assistant", "tool"]
        assert roles[-1] == "user"
    else:
        *_, asked, called, cancelled, spoken = call.chat.requests[-1].messages
        assert asked.content == "set a timer"
        assert called.tool_calls[0].id == cancelled.tool_call_id == request.call_id
        assert "cancelled" in cancelled.content
        assert spoken.content == "and hello"
    assert call.outlet.codes == []


async def test_a_longer_lead_does_not_change_what_was_heard():
    cuts = [
        (await interrupted_at(1_000, config=AgentConfig(lead_ms=lead))).outlet.of(Interrupted)[0]
        for lead in (100, 600)
    ]
    assert cuts[0].spoken_text == cuts[1].spoken_text


@pytest.mark.parametrize("text", ["rome", "okay", "to rome"])
@pytest.mark.parametrize("lasts_ms", [150, 500])
async def test_words_before_the_first_audio_continue_the_turn(text, lasts_ms):
    """There is nothing to speak over: neither length nor number nor meaning of the words counts."""
    call = FakeCall()
    call.chat.first_s = 3.0
    call.hears((100, 500, "i want to go"), (1_000, 1_000 + lasts_ms, text))
    await call.start(Start(barge_in=BargeInOptions(min_words=2, min_speech_ms=1_000)))
    await call.end(TurnMetrics, 2)
    assert call.chat.prompt()[1:] == [("user", f"i want to go {text}")]
    assert len(call.outlet.of(Interrupted)) == 1


async def test_words_that_the_recogniser_doubts_count_while_the_agent_thinks():
    call = FakeCall()
    call.chat.first_s = 3.0
    call.hears((100, 500, "i want to go"))
    for at_ms, event in all_of_utterance(2, 1_000, 1_200, "rome"):
        doubted = msgspec.structs.replace(event, confidence=0.1) if hasattr(event, "confidence") else event
        call.recognition.script.append((at_ms, doubted))
    await call.start()
    await call.end(TurnMetrics, 2)
    assert call.chat.prompt()[1:] == [("user", "i want to go rome")]


@pytest.mark.parametrize(("text", "cancelled"), [("mhm", 0), ("rome", 1)])
async def test_a_sign_of_listening_does_not_cancel_a_tool(text, cancelled):
    call = FakeCall()
    call.hears((200, 1_000, "book a table"), (1_800, 2_000, text))
    call.chat.answers += [calls(("book", {})), says("Booked.")]
    await call.start(Start(tools=[Tool(name="book")]))
    request = await call.wait_for(ToolRequest)
    await call.until(3_000)
    assert len(call.outlet.of(ToolCancelled)) == cancelled
    await call.request(ToolResponse(call_id=request.call_id, output="booked"), TurnMetrics, 1 + cancelled)
    await call.end()
    assert len(call.outlet.of(Interrupted)) == cancelled


@pytest.mark.parametrize("options", [{"enabled": False}, {"pause_playback": False}])
async def test_ignored_words_without_pause_are_reported(options):
    call = FakeCall(hears=[(200, 1_000, "tell me a story"), (2_000, 2_500, "mhm")], answers=[says(STORY)])
    await call.start(Start(barge_in=BargeInOptions(**options)))
    await call.end(TurnMetrics)
    assert call.outlet.of(Resumed) == []
    assert call.outlet.of(SpeechIgnored) == [SpeechIgnored(reason="backchannel", text="mhm")]
    assert len(call.chat.requests) == 1


async def test_a_cough_while_the_agent_thinks_changes_nothing():
    call = FakeCall()
    call.chat.first_s = 1.0
    call.hears((100, 500, "hello"), (1_000, 1_200, ""))
    await call.start()
    await call.end(TurnMetrics)
    assert call.outlet.of(Interrupted) == []
    assert len(call.chat.requests) == 1


async def test_words_over_a_turn_that_fails_are_answered():
    call = FakeCall(AgentConfig(apology="", deadlines=AgentDeadlines(llm_retries=0)))
    call.chat.first_s = 0.6
    call.chat.answers += [[InferenceError("broken")]]
    call.hears((100, 500, "what is the weather in paris"), (1_150, 1_300, "rome"))
    await call.start()
    await call.end(TurnMetrics, 2)
    assert call.chat.prompt()[1:] == [("user", "what is the weather in paris rome")]


async def test_words_that_are_understood_when_the_agent_has_finished_are_answered():
    """They were begun over its last words, but are spoken over nothing by now."""
    call = FakeCall()
    call.hears((100, 500, "hello"), (1_900, 2_700, "rome"))
    call.chat.answers += [says("Good day to you and to all of your boats."), says("Yes?")]
    await call.start(Start(barge_in=BargeInOptions(enabled=False)))
    await call.end(TurnMetrics, 2)
    first = call.outlet.of(TurnMetrics)[0]
    assert not first.interrupted
    assert call.at_ms(first) < call.at_ms(call.outlet.of(Transcript)[-1])
    assert call.chat.prompt()[-1] == ("user", "rome")


MARKED = "Here is **the [menu](https://example.com/menu)**:\n\n* Green tea\n* Black 😀 tea, and coffee."


async def test_markdown_heard_to_its_end_is_remembered_as_written():
    call = FakeCall()
    call.hears((200, 1_000, "what do you have"), (9_000, 9_500, "thanks"))
    call.chat.answers += [says(MARKED), says("Okay.")]
    await call.start()
    await call.end(TurnMetrics, 2)
    spoken = " ".join(request.text for request in call.synthesizer.requests)
    assert spoken.split() == "Here is the menu: Green tea Black tea, and coffee. Okay.".split()
    assert call.chat.prompt()[2] == ("assistant", MARKED)


async def test_markdown_cut_by_an_interruption_is_remembered_without_marks():
    call = await interrupted_at(1_000, MARKED)
    (cut,) = call.outlet.of(Interrupted)
    assert cut.spoken_text
    assert "Here is the menu: Green tea Black tea, and coffee.".startswith(cut.spoken_text)
