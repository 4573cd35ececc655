"""Engines that fail."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import replace

import numpy as np
import pytest
from agent_fakes import FakeCall, FakeChat, FakeOutlet, calls, hold_call, open_call, says, utterance

from parley.agent.config import AgentConfig, AgentDeadlines
from parley.asr.messages import AsrFallbackEvent, TranscriptEvent
from parley.engines.chat_fallback import ChatFallback, FallbackChat, NamedChat
from parley.errors import (
    ContextTooLongError,
    InferenceError,
    InvalidAudioError,
    ModelUnavailableError,
    OverloadedError,
    ShuttingDownError,
)
from parley.llm.messages import TextDelta
from parley.protocol import (
    Audio,
    Closed,
    Connected,
    ErrorEvent,
    ResponseDone,
    ResponseText,
    SpeechStarted,
    SpeechStopped,
    Start,
    Text,
    Tool,
    ToolRequest,
    ToolResponse,
    Transcript,
    TurnMetrics,
    TurnOptions,
)
from parley.tts.messages import SpeechChunk, TtsFallback


async def test_a_language_model_that_fails_once_is_asked_again():
    call = FakeCall(hears=[(200, 1_000, "hello")], answers=[[ModelUnavailableError("gone")], says("Yes.")])
    await call.start()
    await call.end(TurnMetrics)
    assert call.outlet.codes == []
    assert [request.text for request in call.synthesizer.requests] == ["Yes."]


async def test_second_language_model_answers_for_the_first():
    second, counted = FakeChat(), []
    call = FakeCall(
        hears=[(200, 1_000, "hello")], answers=[[ModelUnavailableError("gone")], says("I am back.")]
    )
    models = [NamedChat("large", call.chat), NamedChat("small", second)]
    both = FallbackChat(models, AgentConfig().chat_fallback, counted.append)
    call.host._engines = replace(call.host._engines, chat=both)
    second.answers.append(says("Yes."))
    await call.start(Start(describe=True))
    metrics = await call.wait_for(TurnMetrics)
    connected = await call.wait_for(Connected)
    assert connected.agent.language_model == "large"
    (error,) = call.outlet.of(ErrorEvent)
    assert (error.code, error.stage, error.retryable) == ("llm_fallback", "llm", False)
    assert metrics.replacement == "small"
    assert counted == [ChatFallback("large", "small", "model_unavailable")]
    assert [len(chat.warmed) for chat in (call.chat, second)] == [1, 0]
    call.send(Text(text="Still there?"))
    again = await call.end(TurnMetrics, 2)
    assert again.replacement == "small"  # the first one is passed over for a while
    assert [request.text for request in call.synthesizer.requests] == ["Yes.", "Okay."]


async def test_a_language_model_that_fails_again_and_again():
    call = FakeCall(hears=[(200, 1_000, "hello"), (5_000, 5_500, "are you there")])
    call.chat.answers += [[ModelUnavailableError("gone")]] * 3 + [says("Yes.")]
    await call.start()
    await call.end(TurnMetrics, 2)
    assert call.outlet.codes == ["model_unavailable"]
    assert call.outlet.of(ErrorEvent)[0].retryable
    assert call.chat.prompt()[1:] == [("user", "hello are you there")]
    assert [event.text for event in call.outlet.of(ResponseText)] == [AgentConfig().apology, "Yes."]
    # What the agent says then is no answer: the model sees both questions as one.
    assert [request.text for request in call.synthesizer.requests] == [AgentConfig().apology, "Yes."]
    assert call.outlet.states == ["listening", *(["processing", "speaking", "listening"] * 2)]


async def test_a_language_model_that_fails_in_the_middle_speaks_what_it_had():
    call = FakeCall()
    call.hears((200, 1_000, "hello"), (5_000, 5_500, "go on"))
    call.chat.answers += [
        [TextDelta(text="The first thing. "), TextDelta(text="The sec"), InferenceError("broken")],
        says("Okay."),
    ]
    await call.start()
    await call.end(TurnMetrics, 2)
    assert call.synthesizer.requests[0].text == "The first thing."
    assert call.outlet.codes == ["inference_failed"]
    assert call.chat.prompt()[2] == ("assistant", "The first thing…")


async def test_a_language_model_that_is_silent_for_too_long():
    call = FakeCall(AgentConfig(deadlines=AgentDeadlines(llm_s=2.0)))
    call.chat.first_s = 30
    call.hears((200, 1_000, "hello"))
    await call.start()
    await call.end(TurnMetrics)
    assert call.outlet.codes == ["deadline_exceeded"]
    assert len(call.chat.aborted) == 1


async def test_an_abort_that_hangs_holds_nothing_up():
    call = FakeCall()

    async def hang(request_id):
        await asyncio.sleep(3_600)

    call.chat.abort = hang
    call.chat.token_s = 1.0
    call.hears((200, 1_000, "hello"), (1_500, 2_000, "wait"))
    call.chat.answers += [says("One two three four five."), says("Okay.")]
    await call.start()
    await call.wait_for(SpeechStopped, 2)
    call.chat.token_s = 0.01
    done = await call.wait_for(ResponseDone)
    assert call.at_ms(done) < 4_000


@pytest.mark.parametrize(
    ("answer", "audio_ms"),
    [
        ([ModelUnavailableError("gone")], 0),
        (says(" \n"), 0),
        ([ZeroDivisionError("unexpected")], 0),
        ([TextDelta(text="The first thing. "), InferenceError("broken")], None),
    ],
)
async def test_every_response_ends_with_response_done(answer, audio_ms):
    call = FakeCall(AgentConfig(apology="", deadlines=AgentDeadlines(llm_retries=0)))
    call.hears((200, 1_000, "hello"))
    call.chat.answers += [answer, answer]
    await call.start()
    metrics = await call.end(TurnMetrics)
    (done,) = call.outlet.of(ResponseDone)
    assert call.outlet.events.index(done) < call.outlet.events.index(metrics)
    assert done.turn == metrics.turn
    assert done.audio_ms == audio_ms if audio_ms is not None else done.audio_ms > 0


async def test_a_prompt_that_is_too_long_is_shortened():
    call = FakeCall()
    call.hears(*((1_000 + 4_000 * n, 1_500 + 4_000 * n, f"question {n}") for n in range(3)))
    call.chat.answers += [says("One."), says("Two."), [ContextTooLongError("too long")], says("Three.")]
    await call.start()
    await call.end(TurnMetrics, 3)
    assert call.outlet.codes == []
    assert call.chat.prompt()[1:] == [("user", "question 1"), ("assistant", "Two."), ("user", "question 2")]
    assert call.synthesizer.requests[-1].text == "Three."


async def test_a_prompt_that_cannot_be_shortened():
    call = await hold_call(hears=[(200, 1_000, "hello")], answers=[[ContextTooLongError("too long")]])
    assert call.outlet.codes == ["context_too_long"]


async def test_a_voice_that_fails_ends_the_turn_but_not_the_session():
    call = FakeCall(hears=[(200, 1_000, "hello"), (6_000, 6_500, "again")])
    call.synthesizer.failures += [None, InferenceError("no voice")]
    call.chat.answers += [says("Hello there, my friend. How can I help you? And so on."), says("Yes.")]
    await call.start()
    await call.end(TurnMetrics, 2)
    assert call.outlet.codes == ["inference_failed"]
    assert call.chat.prompt()[2] == ("assistant", "Hello there…")
    assert call.outlet.of(Audio)[-1].turn == 2


async def test_unexpected_error_is_reported_and_logged(caplog):
    call = await open_call(hears=[(200, 1_000, "hello")], answers=[[ZeroDivisionError("secret detail")]])
    error = await call.wait_for(ErrorEvent)
    await call.end(TurnMetrics)
    assert error.code == "internal_error"
    assert "secret" not in error.message
    assert "secret detail" in caplog.text


@pytest.mark.parametrize("failure", [ModelUnavailableError("gone"), InferenceError("broken")])
async def test_a_recogniser_that_fails_is_replaced(failure):
    call = await open_call(hears=[(200, 1_000, "hello")])
    await call.wait_for(TurnMetrics)
    call.recognition.push_failures.append(failure)
    await call.until(4_000)
    # The new stream counts its time and its utterances from the beginning.
    call.recognition.script.extend(utterance(1, 3_000, 3_500, "again"))
    stopped = await call.wait_for(SpeechStopped, 2)
    await call.end(TurnMetrics, 2)
    # The model that has understood the language is asked first again.
    assert [stream.first for stream in call.recognition.streams] == ["", "fake_asr"]
    assert call.outlet.codes == [failure.code]
    assert [event.utterance for event in call.outlet.of(Transcript) if event.is_final] == [1, 2]
    # The new stream begins with the chunk that failed, and times stay those of the client's recording.
    assert call.outlet.of(SpeechStarted)[1].at_ms > 4_500
    assert abs(call.at_ms(stopped) - stopped.detected_at_ms) < 60


async def test_utterances_keep_their_numbers_when_a_late_text_crosses_the_next():
    call = FakeCall()
    begun, stopped, (_, final) = utterance(1, 200, 1_000, "hello")
    second, _, _ = utterance(2, 1_400, 9_000, "")
    call.recognition.script.extend([begun, stopped, second, (1_600, final)])
    await call.start()
    await call.wait_for(Transcript)
    call.recognition.push_failures.append(InferenceError("lost"))
    call.recognition.script.extend(utterance(1, 500, 1_000, "again"))
    await call.end(Transcript, 3)
    heard = [(event.utterance, event.text) for event in call.outlet.of(Transcript)]
    assert heard == [(1, "hello"), (2, ""), (3, "again")]


async def test_a_recogniser_that_is_busy_hears_the_same_audio_again():
    call = FakeCall(hears=[(200, 1_000, "hello")])
    call.recognition.push_failures += [OverloadedError("busy"), OverloadedError("busy")]
    await call.start()
    stopped = await call.wait_for(SpeechStopped)
    await call.end(TurnMetrics)
    assert len(call.recognition.streams) == 1
    assert (stopped.at_ms, call.outlet.codes) == (1_000, [])


async def test_recogniser_that_takes_another_model_is_reported_without_names():
    call = FakeCall()
    begun, stopped, final = utterance(1, 200, 1_000, "hello")
    replaced = AsrFallbackEvent(utterance=1, from_model="first", to_model="second", reason="overloaded")
    call.recognition.script.extend([begun, (stopped[0], replaced), stopped, final])
    await call.start()
    await call.end(ResponseDone)
    (error,) = call.outlet.of(ErrorEvent)
    assert (error.code, error.retryable) == ("asr_fallback", False)
    assert error.message == "another model transcribes this utterance"
    assert call.outlet.of(Transcript)[-1].text == "hello"


async def test_synthesizer_that_is_replaced_is_reported_without_names():
    call = FakeCall(hears=[(200, 1_000, "hello")], answers=[says("One sentence. And a second one.")])
    speak = call.synthesizer.speak
    first = TtsFallback(from_engine="first", to_engine="second", reason="deadline_exceeded")

    async def replaced(request):
        if not call.synthesizer.requests:
            yield SpeechChunk(sample_rate=0, offset=0, fallback=first), np.zeros(0, np.int16)
        async for piece in speak(request):
            yield piece

    call.synthesizer.speak = replaced
    await call.start()
    done = await call.end(ResponseDone)
    (error,) = call.outlet.of(ErrorEvent)
    assert (error.code, error.retryable) == ("tts_fallback", False)
    assert error.message == "another voice speaks the rest of the answer"
    assert done.audio_ms > 0
    requests = call.synthesizer.requests
    assert len({request.utterance for request in requests}) == 1
    assert all(request.utterance and request.sample_rate == 22_050 for request in requests)


async def test_a_recogniser_that_breaks_off_an_utterance_ends_it():
    call = await open_call(hears=[(200, 9_000, "never finished")])
    await call.wait_for(SpeechStarted)
    call.recognition.push_failures.append(InferenceError("broken"))
    final = await call.end(Transcript)
    assert (final.is_final, final.text, final.utterance) == (True, "", 1)
    assert len(call.outlet.of(SpeechStopped)) == 1
    assert call.chat.requests == []


@pytest.mark.parametrize(
    ("eagerness", "rest", "heard"), [("off", "", []), ("normal", "in tokyo", [("in tokyo", True)])]
)
async def test_partial_text_of_a_broken_utterance_is_answered_with_the_rest_of_its_turn(
    eagerness, rest, heard
):
    call = FakeCall(answers=[says("It is noon.")])
    begun, _, _ = utterance(1, 200, 9_000, "")
    partial = TranscriptEvent(utterance=1, text="what time is it", is_final=False, confidence=0.9)
    call.recognition.script.extend([begun, (600, partial)])
    await call.start(Start(turn=TurnOptions(eagerness=eagerness)))
    await call.wait_for(Transcript)
    call.recognition.push_failures.append(InferenceError("broken"))
    if rest:
        call.recognition.script.extend(utterance(1, 100, 500, rest))
    await call.end(ResponseDone)
    texts = [(event.text, event.is_final) for event in call.outlet.of(Transcript)]
    assert texts == [("what time is it", False), ("what time is it", True), *heard]
    assert call.chat.prompt()[-1] == ("user", f"what time is it {rest}".strip())


async def test_partial_texts_of_two_lost_utterances_are_both_kept():
    call = FakeCall()
    begun, stopped, _ = utterance(1, 200, 900, "")
    again, _, _ = utterance(2, 1_300, 9_000, "")
    first = TranscriptEvent(utterance=1, text="what time is it", is_final=False, confidence=0.9)
    second = TranscriptEvent(utterance=2, text="in tokyo", is_final=False, confidence=0.9)
    call.recognition.script.extend([begun, (600, first), stopped, again, (1_800, second)])
    call.chat.answers.append(says("It is noon."))
    await call.start()
    await call.wait_for(Transcript, 2)
    call.recognition.push_failures.append(InferenceError("broken"))
    await call.end(ResponseDone)
    finals = [(event.utterance, event.text) for event in call.outlet.of(Transcript) if event.is_final]
    assert finals == [(1, "what time is it"), (2, "in tokyo")]
    assert call.chat.prompt()[-1] == ("user", "what time is it in tokyo")


async def test_a_recogniser_that_stays_away_closes_the_session():
    call = await open_call(config=AgentConfig(deadlines=AgentDeadlines(asr_outage_s=20.0)))
    await call.until(500)
    call.recognition.push_failures.append(ModelUnavailableError("gone"))
    call.recognition.start_failures += [ModelUnavailableError("still gone")] * 100
    await call.until(19_000)
    assert call.outlet.reason is None
    await call.until(30_000)
    assert call.outlet.reason == "failed"
    assert set(call.outlet.codes) == {"model_unavailable", "audio_dropped"}
    await call.check_nothing_left()


class Endless(deque):
    """Failures that never end."""

    def __init__(self, failure):
        super().__init__([failure])

    def popleft(self):
        return self[0]


async def test_a_recogniser_that_opens_and_then_fails_is_not_replaced_for_ever():
    # As when a network behind it is gone: a new stream is opened without it.
    call = await open_call(config=AgentConfig(deadlines=AgentDeadlines(asr_outage_s=20.0)))
    call.recognition.push_failures = Endless(ModelUnavailableError("parakeet_encoder is gone"))
    await call.until(19_000)
    assert call.outlet.reason is None
    await call.until(30_000)
    assert call.outlet.reason == "failed"
    assert call.outlet.codes.count("model_unavailable") < 20
    assert len(call.recognition.streams) < 20
    await call.check_nothing_left()


async def test_recogniser_after_a_short_outage_gets_all_audio():
    call = await open_call()
    await call.until(500)
    call.recognition.push_failures += [ModelUnavailableError("parakeet_encoder is gone")] * 4
    await call.until(4_000)
    heard = call.recognition.streams[-1].samples
    await call.end()
    assert len(call.recognition.streams) == 5
    # The first stream has heard half a second.
    assert call.recognition.streams[0].samples + heard > 3_800 * 16
    assert call.outlet.codes == ["model_unavailable"] * 4
    assert [request.text for request in call.synthesizer.requests] == [AgentConfig().deaf_apology]


async def test_a_piece_that_the_recogniser_refuses_is_left_out():
    call = await open_call()
    await call.until(500)
    call.recognition.push_failures.append(InvalidAudioError("not this one"))
    await call.until(1_500)
    heard = sum(stream.samples for stream in call.recognition.streams)
    await call.end()
    assert len(call.recognition.streams) == 2
    assert 1_300 * 16 < heard < 1_480 * 16
    assert call.outlet.codes == ["invalid_audio"]
    assert call.synthesizer.requests == []


async def test_failures_far_apart_are_no_outage():
    call = await open_call(config=AgentConfig(deadlines=AgentDeadlines(asr_outage_s=20.0)))
    for second in range(5, 60, 5):
        call.recognition.push_failures.append(InferenceError("broken"))
        await call.until(second * 1_000)
    assert call.outlet.codes == ["inference_failed"] * 11
    await call.end()
    assert call.outlet.reason == "ended"


async def test_a_recogniser_that_returns_is_used_again():
    call = await open_call()
    await call.until(500)
    call.recognition.push_failures.append(ModelUnavailableError("gone"))
    call.recognition.start_failures += [ModelUnavailableError("still gone")] * 3
    await call.until(4_000)
    call.recognition.script.extend(utterance(1, 200, 700, "hello again"))
    await call.end(ResponseDone, 2)
    assert call.outlet.reason == "ended"
    # The user heard the reason; it is not part of the history.
    assert [request.text for request in call.synthesizer.requests] == [AgentConfig().deaf_apology, "Okay."]
    assert call.chat.prompt()[1:] == [("user", "hello again")]


@pytest.mark.parametrize("logged", [False, True])
async def test_transcripts_are_logged_only_with_log_transcripts(logged, caplog):
    caplog.set_level("DEBUG")
    call = FakeCall(AgentConfig(log_transcripts=logged))
    call.hears((200, 1_000, "my secret"))
    call.chat.answers.append(says("Never heard of it."))
    await call.start()
    await call.end(TurnMetrics)
    assert ("my secret" in caplog.text) == logged
    assert ("Never" in caplog.text) == logged


async def test_a_tool_answer_after_the_voice_failed_is_dropped():
    call = FakeCall(hears=[(200, 1_000, "weather")])
    call.synthesizer.failures.append(InferenceError("no voice"))
    call.chat.answers.append([TextDelta(text="Let me see. "), *calls(("get_weather", {}))])
    call.chat.token_s = 0.001
    await call.start(Start(tools=[Tool(name="get_weather")]))
    request = await call.wait_for(ToolRequest)
    await call.wait_for(TurnMetrics)
    call.send(ToolResponse(call_id=request.call_id, output=1))
    await call.end()
    assert call.outlet.codes == ["inference_failed"]


async def test_an_outlet_that_fails_leaves_nothing_running():
    class Broken(FakeOutlet):
        def finish(self, last=None):
            if last is not None:
                raise OSError("no shared memory")
            super().finish()

    call = FakeCall()
    call.outlet = Broken()
    await call.start()
    await call.until(500)
    await call.hang_up()
    call.send(end=True)
    await asyncio.sleep(10)
    assert call.outlet.finished
    assert all(stream.closed for stream in call.recognition.streams)
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_after_an_unexpected_failure_only_what_was_heard_is_remembered():
    call = FakeCall()
    call.hears((200, 1_000, "hello"), (8_000, 8_500, "go on"))
    call.chat.answers += [
        [TextDelta(text="The first thing. "), TextDelta(text="The sec"), ZeroDivisionError("a bug")],
        says("Okay."),
    ]
    await call.start()
    await call.end(TurnMetrics, 2)
    assert call.outlet.codes == ["internal_error"]
    assert "The sec" not in str(call.chat.prompt())


@pytest.mark.parametrize("part", ["recogniser", "language model", "synthesizer"])
async def test_a_call_that_the_stopping_server_refuses_ends_the_session(part):
    call = FakeCall(hears=[(200, 1_000, "hello")])
    refusal = ShuttingDownError("Server not ready")
    if part == "recogniser":
        call.recognition.push_failures.append(refusal)
    elif part == "language model":
        call.chat.answers.append([refusal])
    else:
        call.chat.answers.append(says("Yes."))
        call.synthesizer.failures.append(refusal)
    await call.start()
    await call.wait_for(Closed)
    assert call.outlet.of(Closed)[0].reason == "shutdown"
    assert call.outlet.codes == []


async def test_a_session_that_the_stopping_server_does_not_open():
    call = FakeCall()
    call.recognition.start_failures.append(ShuttingDownError("Server not ready"))
    await call.start()
    await call.wait_for(Closed)
    assert call.outlet.of(Closed)[0].reason == "shutdown"
    assert call.outlet.codes == []
