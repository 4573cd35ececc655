"""The services of ``pipecat-parley`` in real Pipecat pipelines: against a real server and a scripted one."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from fake_models import serving_models
from pipecat.adapters.llm.schemas.tools_schema import ToolsSchema
from pipecat.frames.frames import (
    ErrorFrame,
    InputAudioRawFrame,
    InterimTranscriptionFrame,
    InterruptionFrame,
    LLMContextFrame,
    LLMFullResponseEndFrame,
    LLMFullResponseStartFrame,
    LLMTextFrame,
    STTMetadataFrame,
    STTUpdateSettingsFrame,
    TranscriptionFrame,
    TTSSpeakFrame,
    TTSStoppedFrame,
    TTSTextFrame,
    VADUserStoppedSpeakingFrame,
)
from pipecat.metrics.metrics import (
    LLMUsageMetricsData,
    STTUsageMetricsData,
    TTFBMetricsData,
    TTSUsageMetricsData,
)
from pipecat.processors.aggregators.llm_context import LLMContext
from pipecat.services.llm_service import FunctionCallParams
from pipecat.services.tts_service import TextAggregationMode
from pipecat.utils.errors import ErrorCategory
from pipecat_call import calling, running
from pipecat_parley import ParleyLLMAdapter, ParleyLLMService, ParleySTTService, ParleyTTSService
from pipecat_parley.errors import category_of
from recordings import RATE, recording

from parley import errors
from parley.asr.messages import SpeechStartedEvent, SpeechStoppedEvent, TranscriptEvent
from parley.chat import ChatMessage, ToolCall
from parley.llm.messages import Completed, TextDelta, ToolCalled
from parley.tts.messages import SpeechChunk
from parley_client.options import Backoff

PROMPT = "You are Parley, a friendly voice assistant. Keep answers short."
STORY = "tell me a story"
PATIENT = Backoff(attempts=300, initial_s=0.05, max_s=0.1)


def services(address):
    return (
        ParleySTTService(server=address),
        ParleyLLMService(server=address, settings=ParleyLLMService.Settings(system_instruction=PROMPT)),
        ParleyTTSService(server=address),
    )


# --- the demonstration's conversation ------------------------------------------------------------


async def test_a_conversation_with_a_tool_and_an_interruption(triton):
    asked = []

    async def get_weather(params: FunctionCallParams, city: str, day: str | None = None):
        """Get the weather in a city.

        Args:
            city: The name of the city.
            day: The day, if it is not now.
        """
        asked.append(city)
        await params.result_callback({"temperature": 8, "sky": "foggy"})

    stt, llm, tts = services(triton)
    async with calling(stt, llm, tts, ToolsSchema([get_weather])) as call:
        assert await call.ask("01-hello") == ("hello", "Hello! How can I help you?")
        assert await call.ask("02-weather") == (
            "what's the weather in paris",
            "It's 8 degrees and foggy in Paris.",
        )
        assert asked == ["Paris"]

        began = len(call.pipeline.notes.events)
        heard = len(call.listener.heard)
        call.microphone.say("06-story")
        await call.pipeline.wait_for(TTSTextFrame, since=began, text="robot")
        before = len(call.context.messages)
        call.microphone.say("07-stop")
        await call.pipeline.wait_for(InterruptionFrame, since=len(call.pipeline.notes.events))
        await call.pipeline.wait_for(TranscriptionFrame, since=began, text="stop")
        await call.answer(before + 2)
        *_, user, cut_off, stop, okay = call.context.messages
        assert (user["content"], stop["content"]) == (STORY, "stop")
        # Pipecat's context has no mark of the interruption, and the tiny model may take a story that ends
        # at some words for a whole one: the answer is what it says to just this conversation.
        remembered = LLMContext(call.context.messages[:-1], call.context.tools)
        assert okay["content"] == await llm.run_inference(remembered)
        story = "".join(frame.text for frame in call.pipeline.of(LLMTextFrame, began))
        assert story.startswith(cut_off["content"])
        assert len(cut_off["content"]) < len(story) - len(okay["content"]) - 20
        # What was heard is not much more than what is remembered: the audio was dropped, too.
        seconds = (len(call.listener.heard) - heard) / 2 / 24_000
        assert seconds < 1.5 + len(cut_off["content"]) * 0.08

        assert await call.ask("13-thank-you") == ("thank you", "You're welcome!")
        pipeline = call.pipeline
    assert {frame.text for frame in pipeline.of(TranscriptionFrame)} >= {"hello", STORY, "stop"}
    assert any("weather" in frame.text for frame in pipeline.of(InterimTranscriptionFrame))
    assert pipeline.of(ErrorFrame) == []
    for service in (stt, llm, tts):
        assert all(0 < value < 5 for value in pipeline.metrics(TTFBMetricsData, service))
        assert len(pipeline.metrics(TTFBMetricsData, service)) >= 3
    assert len(pipeline.metrics(LLMUsageMetricsData, llm)) >= 5
    assert sum(pipeline.metrics(TTSUsageMetricsData, tts)) > 60
    assert sum(usage.audio_seconds for usage in pipeline.metrics(STTUsageMetricsData, stt)) > 10


async def test_the_end_of_speech_brings_the_final_text_at_once(triton):
    stt = ParleySTTService(server=triton)
    async with running(stt) as pipeline:
        await hear(pipeline, recording("02-weather"))
        await pipeline.wait_for(InterimTranscriptionFrame)
        assert pipeline.of(TranscriptionFrame) == []
        await pipeline.worker.queue_frame(VADUserStoppedSpeakingFrame(stop_secs=0.2))
        final = await pipeline.wait_for(TranscriptionFrame)
    assert (final.text, final.finalized) == ("what's the weather in paris", True)
    assert [word.text for word in final.result.words][-1] == "paris"
    assert str(final.language) == "en"
    (metadata,) = pipeline.of(STTMetadataFrame)[:1]
    assert metadata.ttfs_p99_latency == 0.5


async def test_other_rates_are_heard_too(triton):
    stt = ParleySTTService(server=triton, sample_rate=8_000)
    clip = np.frombuffer(recording("02-weather"), np.int16)
    clip = clip[: len(clip) // 2 * 2].reshape(-1, 2).mean(axis=1).astype(np.int16).tobytes()
    async with running(stt) as pipeline:
        await hear(pipeline, clip, rate=8_000)
    # The pipeline's end brings the last text without a request; the city may suffer from the rate.
    (final,) = pipeline.of(TranscriptionFrame)
    assert final.text.startswith("what's the weather in ")


@pytest.mark.parametrize("mode", TextAggregationMode)
async def test_words_are_sent_when_they_are_played(triton, mode):
    tts = ParleyTTSService(server=triton, text_aggregation_mode=mode)
    async with running(tts) as pipeline:
        await pipeline.worker.queue_frame(TTSSpeakFrame("Hello there, you two. How are you?"))
        await pipeline.wait_for(TTSStoppedFrame)
        words = pipeline.of(TTSTextFrame)
    assert " ".join(frame.text for frame in words) == "Hello there, you two. How are you?"
    seconds = [(frame.pts - words[0].pts) / 1e9 for frame in words]
    assert seconds == sorted(seconds)
    assert 1.0 < seconds[-1] < 4.0
    assert len(set(seconds)) == len(seconds)


async def test_an_inference_beside_the_pipeline(triton):
    llm = ParleyLLMService(server=triton)
    context = LLMContext([{"role": "user", "content": "hello"}])
    try:
        assert await llm.run_inference(context, system_instruction=PROMPT) == "Hello! How can I help you?"
    finally:
        await llm.cleanup()


async def hear(pipeline, audio, *, rate=RATE):
    size = rate // 50 * 2
    for start in range(0, len(audio), size):
        await pipeline.worker.queue_frame(InputAudioRawFrame(audio[start : start + size], rate, 1))


# --- a scripted server ---------------------------------------------------------------------------


@pytest.fixture
async def fake():
    async with serving_models() as (models, _):
        yield models


def ask(text="hello"):
    return LLMContextFrame(LLMContext([{"role": "user", "content": text}]))


async def endless_text(message):
    if message["op"] == "generate":
        for _ in range(10_000):
            yield {"EVENT": TextDelta(text="word ")}
            await asyncio.sleep(0.01)


async def endless_speech(message):
    if message["op"] == "speak":
        for number in range(10_000):
            yield {"CHUNK": SpeechChunk(sample_rate=24_000, offset=number * 240), "AUDIO": np.ones(240)}
            await asyncio.sleep(0.01)


async def test_an_interruption_stops_the_language_model(fake):
    fake.answer = endless_text
    async with running(ParleyLLMService(server=fake.address)) as pipeline:
        await pipeline.worker.queue_frame(ask())
        await pipeline.wait_for(LLMTextFrame)
        await pipeline.worker.queue_frame(InterruptionFrame())
        await pipeline.wait_for(LLMFullResponseEndFrame)
        await until(fake.aborted)
    asked, aborted = fake.asked
    assert aborted["request_id"] == asked["request_id"]


async def test_an_interruption_stops_the_synthesizer(fake):
    fake.answer = endless_speech
    async with running(ParleyTTSService(server=fake.address)) as pipeline:
        await pipeline.worker.queue_frame(TTSSpeakFrame("A long text."))
        await until(lambda: fake.asked)
        await pipeline.worker.queue_frame(InterruptionFrame())
        await until(fake.aborted)
    asked, aborted = fake.asked
    assert aborted["request_id"] == asked["request_id"]


async def test_the_end_of_a_pipeline_stops_the_language_model(fake):
    fake.answer = endless_text
    llm = ParleyLLMService(server=fake.address)
    async with running(llm) as pipeline:
        await pipeline.worker.queue_frame(ask())
        await pipeline.wait_for(LLMTextFrame)
        await pipeline.worker.cancel()
    assert len(fake.aborted()) == 1


async def test_tools_are_run_together(fake):
    ran = []

    async def get_time(params: FunctionCallParams, city: str):
        """Get the time in a city.

        Args:
            city: The name of the city.
        """
        ran.append((city, params.tool_call_id))
        await params.result_callback({"time": "12:00"})

    async def answer(message):
        for number, city in enumerate(("Rome", "Oslo")):
            call = ToolCall(id=f"call-{number}", name="get_time", arguments={"city": city})
            yield {"EVENT": ToolCalled(call=call)}
        yield {"EVENT": Completed(finish_reason="tool_calls", prompt_tokens=7, completion_tokens=5)}

    fake.answer = answer
    llm = ParleyLLMService(server=fake.address)
    context = LLMContext([{"role": "user", "content": "and now?"}], tools=ToolsSchema([get_time]))
    async with running(llm) as pipeline:
        await pipeline.worker.queue_frame(LLMContextFrame(context))
        await until(lambda: len(ran) == 2)
    assert ran == [("Rome", "call-0"), ("Oslo", "call-1")]
    (tool,) = fake.asked[0]["tools"]
    assert (tool["name"], tool["description"]) == ("get_time", "Get the time in a city.")
    assert tool["parameters"]["required"] == ["city"]
    (usage,) = pipeline.metrics(LLMUsageMetricsData, llm)
    assert (usage.prompt_tokens, usage.completion_tokens, usage.total_tokens) == (7, 5, 12)


async def test_settings_reach_the_models(fake):
    fake.answer = endless_text
    settings = ParleyLLMService.Settings(
        model="other", temperature=0.5, top_p=0.9, max_tokens=7, seed=3, system_instruction="Be brief."
    )
    async with running(ParleyLLMService(server=fake.address, settings=settings)) as pipeline:
        await pipeline.worker.queue_frame(ask())
        await pipeline.wait_for(LLMTextFrame)
        await pipeline.worker.queue_frame(InterruptionFrame())
    assert fake.asked[0]["sampling"] == {"temperature": 0.5, "top_p": 0.9, "max_tokens": 7, "seed": 3}
    assert fake.asked[0]["messages"][0] == {"role": "system", "content": "Be brief."}

    fake.asked.clear()
    fake.answer = endless_speech
    voice = ParleyTTSService.Settings(voice="woman-1", language="en-GB", seed=5)
    async with running(ParleyTTSService(server=fake.address, settings=voice)) as pipeline:
        await pipeline.worker.queue_frame(TTSSpeakFrame("Good day."))
        await until(lambda: fake.asked)
        await pipeline.worker.queue_frame(InterruptionFrame())
    spoken = fake.asked[0]
    assert (spoken["voice"], spoken["language"], spoken["seed"]) == ("woman-1", "en-GB", 5)
    assert (spoken["sample_rate"], spoken["text"]) == (24_000, "Good day.")


async def test_new_settings_open_the_stream_anew(fake):
    stt = ParleySTTService(server=fake.address)
    async with running(stt) as pipeline:
        delta = ParleySTTService.Settings(phrases=["Ljubljana"], language="de-AT")
        await pipeline.worker.queue_frame(STTUpdateSettingsFrame(delta=delta))
        await until(lambda: len(starts(fake)) == 2)
    first, second = (request.options for _, _, _, request in starts(fake))
    assert (first.language, first.phrases) == ("en", [])
    assert (second.language, second.phrases) == ("de", ["Ljubljana"])


async def test_a_stream_that_breaks_is_opened_again_and_little_is_lost(fake):
    broken = []

    def hear(heard):
        if not broken:
            broken.append(True)
            return "inference_failed: the model has crashed"
        text = TranscriptEvent(utterance=1, text="here again", is_final=True)
        return [
            SpeechStartedEvent(utterance=1, at_ms=0),
            SpeechStoppedEvent(utterance=1, at_ms=9, detected_at_ms=9),
            text,
        ]

    fake.hear = hear
    stt = ParleySTTService(server=fake.address, reconnect=PATIENT)
    lost = noting(stt, "on_connection_error")
    async with running(stt) as pipeline:
        await speak_until(pipeline, TranscriptionFrame)
        (error,) = pipeline.of(ErrorFrame)
    assert len(starts(fake)) == 2
    assert error.category is ErrorCategory.CONNECTIVITY
    assert stt.is_usable
    assert len(lost) == 1


async def test_a_server_that_was_away_is_found_again(fake):
    from grpc import aio
    from tritonclient.grpc import service_pb2_grpc

    async def answer(_):
        yield {"EVENT": TextDelta(text="Here again.")}
        yield {"EVENT": Completed(finish_reason="stop")}

    fake.answer = answer
    text = TranscriptEvent(utterance=1, text="here again", is_final=True)
    stt = ParleySTTService(server=fake.address, reconnect=PATIENT)
    async with running(stt, ParleyLLMService(server=fake.address)) as pipeline:
        await until(lambda: starts(fake))
        await pipeline.worker.queue_frame(ask())
        await pipeline.wait_for(LLMTextFrame)
        await fake.stop()
        await speak_until(pipeline, ErrorFrame)
        back = aio.server()
        service_pb2_grpc.add_GRPCInferenceServiceServicer_to_server(fake, back)
        back.add_insecure_port(fake.address)
        await back.start()
        fake.hear = lambda _: [text]
        try:
            await speak_until(pipeline, TranscriptionFrame)
            since = len(pipeline.notes.events)
            await pipeline.worker.queue_frame(ask())
            assert (await pipeline.wait_for(LLMTextFrame, since=since)).text == "Here again."
        finally:
            await back.stop(None)
    assert stt.is_usable


async def test_a_silent_server_holds_nothing_up():
    tts = ParleyTTSService(server="127.0.0.1:9")
    async with running(tts) as pipeline:
        for _ in range(4):
            since = len(pipeline.notes.events)
            await pipeline.worker.queue_frame(TTSSpeakFrame("Hello."))
            await pipeline.wait_for(ErrorFrame, since=since, category=ErrorCategory.CONNECTIVITY)
            await pipeline.wait_for(TTSStoppedFrame, since=since, timeout_s=5)
    assert tts.is_usable


async def test_text_that_is_too_long_holds_nothing_up(fake):
    fake.answer = endless_speech
    tts = ParleyTTSService(server=fake.address)
    async with running(tts) as pipeline:
        await pipeline.worker.queue_frame(LLMFullResponseStartFrame())
        await pipeline.worker.queue_frame(LLMTextFrame("x" * 20_001))
        error = await pipeline.wait_for(ErrorFrame)
        assert isinstance(error.exception, errors.InvalidMessageError)
        await pipeline.wait_for(TTSStoppedFrame, timeout_s=5)
        assert tts._spoken == {}
        await pipeline.worker.queue_frame(LLMFullResponseEndFrame())
        await pipeline.worker.queue_frame(TTSSpeakFrame("Hello."))
        await until(lambda: fake.asked)
        await pipeline.worker.queue_frame(InterruptionFrame())
    assert fake.asked[0]["text"] == "Hello."


async def test_a_server_that_stays_away_is_given_up():
    stt = ParleySTTService(server="127.0.0.1:9", reconnect=Backoff(attempts=2, initial_s=0.01, max_s=0.01))
    async with running(stt) as pipeline:
        await until(lambda: not stt.is_usable)
        first, last = pipeline.of(ErrorFrame)
    assert {first.category, last.category} == {ErrorCategory.CONNECTIVITY}


@pytest.mark.parametrize(
    ("wire", "category", "usable"),
    [
        ("overloaded: too many", ErrorCategory.RATE_LIMIT, True),
        ("inference_failed: crashed", ErrorCategory.SERVER, True),
        ("context_too_long: 4097 tokens", ErrorCategory.APPLICATION, True),
        ("invalid_message: no", ErrorCategory.APPLICATION, True),
        ("unsupported_voice: no voice 'x'", ErrorCategory.INVALID_REQUEST, False),
    ],
)
async def test_errors_say_whose_fault_they_are(fake, wire, category, usable):
    async def fail(_):
        yield wire

    fake.answer = fail
    for service, frame in (
        (ParleyLLMService(server=fake.address), ask()),
        (ParleyTTSService(server=fake.address), TTSSpeakFrame("Hello.")),
    ):
        async with running(service) as pipeline:
            await pipeline.worker.queue_frame(frame)
            error = await pipeline.wait_for(ErrorFrame)
            assert error.category is category
            assert isinstance(error.exception, errors.ParleyError)
            assert service.is_usable is usable


async def test_late_language_model_is_reported(fake):
    async def nothing(_):
        await asyncio.sleep(5)
        yield "too late"

    fake.answer = nothing
    llm = ParleyLLMService(server=fake.address, timeout_s=0.1)
    late = noting(llm, "on_completion_timeout")
    async with running(llm) as pipeline:
        await pipeline.worker.queue_frame(ask())
        error = await pipeline.wait_for(ErrorFrame)
        await until(lambda: late)
    assert error.category is ErrorCategory.CONNECTIVITY


def test_foreign_errors_stay_unclassified():
    assert category_of(RuntimeError()) is None


def starts(fake):
    return [heard for heard in fake.heard if heard[0]]


def noting(service, event):
    """The payloads of a service's event."""
    events = []

    @service.event_handler(event)
    async def _(_, *what):
        events.append(what)

    return events


async def speak_until(pipeline, kind):
    """Let audio come until there is a frame of this kind."""
    since = len(pipeline.notes.events)
    async with asyncio.timeout(20):
        while not pipeline.of(kind, since):
            await pipeline.worker.queue_frame(InputAudioRawFrame(bytes(1024), RATE, 1))
            await asyncio.sleep(0.02)


async def until(happened):
    async with asyncio.timeout(10):
        while not happened():  # noqa: ASYNC110 - there is no event to wait for
            await asyncio.sleep(0.01)


# --- conversations -------------------------------------------------------------------------------


async def invocation(messages, *, instruction=None, **context):
    adapter = ParleyLLMAdapter()
    return await adapter.get_llm_invocation_params(
        LLMContext(messages, **context), system_instruction=instruction
    )


async def test_a_context_becomes_messages():
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
    asked = await invocation(
        [
            {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
            {"role": "developer", "content": "a hint"},
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c1", "content": "3"},
        ],
        instruction="Be brief.",
    )
    assert asked["messages"] == [
        ChatMessage(role="system", content="Be brief."),
        ChatMessage(role="user", content="one\ntwo"),
        ChatMessage(role="user", content="a hint"),
        ChatMessage(role="assistant", tool_calls=[ToolCall(id="c1", name="f", arguments={"a": 1})]),
        ChatMessage(role="tool", tool_call_id="c1", content="3"),
    ]
    assert asked["tools"] == []


async def test_a_tool_choice_of_none_hides_the_tools():
    async def beep(params: FunctionCallParams):
        """Make a sound."""

    tools = ToolsSchema([beep])
    assert [tool.name for tool in (await invocation([], tools=tools))["tools"]] == ["beep"]
    assert (await invocation([], tools=tools, tool_choice="none"))["tools"] == []


async def test_a_context_that_cannot_be_read_is_the_applications_fault(fake):
    llm = ParleyLLMService(server=fake.address)
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "no JSON"}}
    context = LLMContext([{"role": "assistant", "tool_calls": [call]}])
    async with running(llm) as pipeline:
        await pipeline.worker.queue_frame(LLMContextFrame(context))
        error = await pipeline.wait_for(ErrorFrame)
    assert error.category is ErrorCategory.APPLICATION
    assert llm.is_usable
