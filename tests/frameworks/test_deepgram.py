"""Deepgram's own SDK, and the plugins of LiveKit and Pipecat for it, are switched over by their address."""

from __future__ import annotations

import asyncio

import aiohttp
import pytest
from deepgram import AsyncDeepgramClient, DeepgramClientEnvironment
from deepgram.agent.v1.types import (
    AgentV1InjectAgentMessage,
    AgentV1SendFunctionCallResponse,
    AgentV1Settings,
    AgentV1UpdatePrompt,
)
from deepgram.core.api_error import ApiError
from deepgram.core.events import EventType
from deepgram.listen.v1.types import ListenV1CloseStream, ListenV1Finalize, ListenV1KeepAlive
from deepgram.listen.v2.types import ListenV2Configure, ListenV2ConfigureThresholds
from deepgram.speak.v1.types import SpeakV1Clear, SpeakV1Close, SpeakV1Flush, SpeakV1Text
from livekit import rtc
from livekit.agents import stt
from livekit.plugins import deepgram
from pipecat.adapters.llm.schemas.tools_schema import ToolsSchema
from pipecat.frames.frames import (
    EagerTranscriptionFrame,
    ErrorFrame,
    InterimTranscriptionFrame,
    ProposedUserStartedSpeakingFrame,
    ProposedUserStoppedSpeakingFrame,
    STTUpdateSettingsFrame,
    TranscriptionFrame,
)
from pipecat.services.deepgram.flux.stt import DeepgramFluxSTTService
from pipecat.services.deepgram.stt import DeepgramSTTService
from pipecat.services.deepgram.tts import DeepgramTTSService
from pipecat.services.llm_service import FunctionCallParams
from pipecat.services.openai.llm import OpenAILLMService
from pipecat_call import Caller, calling, running
from recordings import RATE, Microphone, recording

WEATHER = "what's the weather in paris"
QUIET = bytes(2 * RATE)
NEXT = "and in london"
# An end that waits for the silence, so that what may be one comes well before it.
FLUX = {"eot_threshold": 1.0, "eager_eot_threshold": 0.3, "eot_timeout_ms": 1_000}
PROMPT = "You are Parley, a friendly voice assistant. Keep answers short."


def socket_url(gateway):
    return "ws" + gateway.removeprefix("http")


@pytest.fixture
def client(gateway):
    socket = socket_url(gateway)
    environment = DeepgramClientEnvironment(base=gateway, production=socket, agent=socket, agent_rest=gateway)
    return AsyncDeepgramClient(api_key="any", environment=environment)


async def pieces(audio, size=1_600):
    """At twice the pace of speech."""
    for at in range(0, len(audio), size):
        yield audio[at : at + size]
        await asyncio.sleep(size / 2 / RATE / 2)


class Conversation:
    """What comes over one of the SDK's connections."""

    def __init__(self, connection):
        self.messages = []
        self._more = asyncio.Event()
        connection.on(EventType.MESSAGE, self._note)
        self.over = asyncio.create_task(connection.start_listening())

    def _note(self, message):
        self.messages.append(message)
        self._more.set()

    def of(self, kind):
        return [message for message in self.messages if getattr(message, "type", None) == kind]

    async def until(self, kind, count=1):
        async with asyncio.timeout(20):
            while len(self.of(kind)) < count:
                self._more.clear()
                await self._more.wait()
        return self.of(kind)[count - 1]


async def test_deepgrams_sdk_writes_a_recording_down(client):
    clip = recording("02-weather")
    heard = await client.listen.v1.media.transcribe_file(
        request=clip,
        request_options={"additional_query_parameters": {"encoding": "linear16", "sample_rate": "16000"}},
        model="nova-3",
        utterances=True,
    )
    reading = heard.results.channels[0].alternatives[0]
    assert reading.transcript == WEATHER
    assert [word.word for word in reading.words] == WEATHER.split()
    assert [utterance.transcript for utterance in heard.results.utterances] == [WEATHER]
    assert heard.metadata.duration == pytest.approx(len(clip) / 2 / RATE, abs=0.001)


async def test_deepgrams_sdk_writes_speech_down(client):
    options = {
        "model": "nova-3",
        "encoding": "linear16",
        "sample_rate": "16000",
        "interim_results": "true",
        "vad_events": "true",
        "utterance_end_ms": "1000",
        "keyterm": ["paris"],
    }
    async with client.listen.v1.connect(**options) as connection:
        conversation = Conversation(connection)
        await connection.send_keep_alive(ListenV1KeepAlive(type="KeepAlive"))
        async for piece in pieces(recording("02-weather") + QUIET + QUIET[: len(QUIET) // 2]):
            await connection.send_media(piece)
        await conversation.until("UtteranceEnd")
        async for piece in pieces(recording("03-and-in-london")[:-12_000]):
            await connection.send_media(piece)
        await connection.send_finalize(ListenV1Finalize(type="Finalize"))
        while not (
            final := await conversation.until("Results", len(conversation.of("Results")) + 1)
        ).is_final:
            pass
        assert final.from_finalize
        await connection.send_close_stream(ListenV1CloseStream(type="CloseStream"))
        await asyncio.wait_for(conversation.over, 20)
    results = conversation.of("Results")
    finals = [result.channel.alternatives[0].transcript for result in results if result.is_final]
    assert finals[0] == WEATHER
    assert len(results) > len(finals)
    assert len(conversation.of("SpeechStarted")) == 2
    (metadata,) = conversation.of("Metadata")
    assert {result.metadata.request_id for result in results} == {metadata.request_id}


async def test_deepgrams_sdk_gets_turns(client):
    options = {"model": "flux-general-en", "encoding": "linear16", "sample_rate": "16000"}
    async with client.listen.v2.connect(**options, **FLUX, keyterm=["paris"], tag=["x"]) as connection:
        conversation = Conversation(connection)
        async for piece in pieces(recording("02-weather") + QUIET):
            await connection.send_media(piece)
        while "EndOfTurn" not in [turn.event for turn in conversation.of("TurnInfo")]:
            await connection.send_media(QUIET[:3_200])
            await conversation.until("TurnInfo", len(conversation.of("TurnInfo")) + 1)
        await connection.send_configure(
            ListenV2Configure(thresholds=ListenV2ConfigureThresholds(eot_timeout_ms=900), keyterms=["london"])
        )
        done = await conversation.until("ConfigureSuccess")
        assert (done.thresholds.eot_threshold, done.thresholds.eot_timeout_ms) == (1.0, 900)
        assert done.keyterms == ["london"]
        await connection.send_configure({"type": "Configure", "thresholds": {"eot_threshold": 3}})
        assert "eot_threshold" in (await conversation.until("ConfigureFailure")).description
        async for piece in pieces(recording("03-and-in-london")):
            await connection.send_media(piece)
        await connection.send_close_stream()
        await asyncio.wait_for(conversation.over, 20)
    turns = conversation.of("TurnInfo")
    ends = [turn for turn in turns if turn.event == "EndOfTurn"]
    assert [turn.transcript for turn in ends] == [WEATHER, NEXT]
    assert ends[0].trigger == "timeout"
    assert turns[turns.index(ends[0]) - 1].event == "EagerEndOfTurn"
    assert [turn.turn_index for turn in turns if turn.event == "StartOfTurn"] == [0, 1]
    assert [word.word for word in turns[-1].words] == NEXT.split()
    assert "Update" in [turn.event for turn in turns]
    assert [message.sequence_id for message in conversation.messages] == list(
        range(len(conversation.messages))
    )


async def test_deepgrams_sdk_holds_a_conversation(client):
    sound = {"encoding": "linear16", "sample_rate": 16_000}
    weather = {
        "name": "get_weather",
        "description": "Get the weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    }
    settings = {
        "audio": {"input": sound, "output": sound | {"container": "none"}},
        "agent": {
            "listen": {
                "provider": {"type": "deepgram", "version": "v2", "model": "flux-general-en", "keyterms": []}
            },
            "think": {
                "provider": {"type": "open_ai", "model": "gpt-4o-mini"},
                "prompt": PROMPT,
                "functions": [weather],
            },
            "speak": {"provider": {"type": "deepgram", "model": "aura-2-thalia-en"}},
            "greeting": "Good day.",
        },
    }
    async with client.agent.v1.connect() as connection:
        conversation = Conversation(connection)
        await connection.send_settings(AgentV1Settings(**settings))
        await conversation.until("AgentAudioDone")

        async def speak():
            async for piece in pieces(recording("02-weather") + 20 * QUIET):
                await connection.send_media(piece)

        speaking = asyncio.create_task(speak())
        (function,) = (await conversation.until("FunctionCallRequest")).functions
        assert (function.name, function.arguments) == ("get_weather", '{"city":"Paris"}')
        await connection.send_function_call_response(
            AgentV1SendFunctionCallResponse(
                id=function.id, name=function.name, content='{"temperature": 8, "sky": "foggy"}'
            )
        )
        await conversation.until("AgentAudioDone", 2)
        await connection.send_update_prompt(AgentV1UpdatePrompt(prompt=PROMPT))
        await conversation.until("PromptUpdated")
        await connection.send_inject_agent_message(
            AgentV1InjectAgentMessage(message="Anything else?", behavior="queue")
        )
        await conversation.until("ConversationText", 4)
        speaking.cancel()
    assert [(said.role, said.content) for said in conversation.of("ConversationText")] == [
        ("assistant", "Good day."),
        ("user", WEATHER),
        ("assistant", "It's 8 degrees and foggy in Paris."),
        ("assistant", "Anything else?"),
    ]
    assert conversation.of("Welcome")
    assert conversation.of("UserStartedSpeaking")
    assert conversation.of("AgentStartedSpeaking")[-1].total_latency >= 0
    assert sum(len(one) for one in conversation.messages if isinstance(one, bytes)) > 2 * RATE
    assert conversation.of("Warning") == conversation.of("Error") == []


async def test_deepgrams_sdk_with_unsupported_options_gets_an_error(client):
    with pytest.raises(ApiError) as caught:
        async with client.listen.v1.connect(model="nova-3", encoding="linear16", diarize="true"):
            pass
    assert caught.value.status_code == 400


async def test_deepgrams_sdk_speaks(client):
    audio = b"".join(
        [
            part
            async for part in client.speak.v1.audio.generate(
                text="thank you",
                model="aura-2-thalia-en",
                encoding="linear16",
                container="none",
                sample_rate=16_000,
            )
        ]
    )
    assert 0.4 < len(audio) / 2 / 16_000 < 2
    async with client.speak.v1.connect(
        model="aura-2-thalia-en", encoding="linear16", sample_rate="24000"
    ) as connection:
        conversation = Conversation(connection)
        for word in ("thank ", "you. ", "And ", "good ", "bye. "):
            await connection.send_text(SpeakV1Text(text=word))
        await connection.send_flush(SpeakV1Flush(type="Flush"))
        await conversation.until("Flushed")
        spoken = sum(len(one) for one in conversation.messages if isinstance(one, bytes))
        assert 1 < spoken / 2 / 24_000 < 4
        await connection.send_text(SpeakV1Text(text="Once upon a time there was a robot. " * 40))
        await connection.send_clear(SpeakV1Clear(type="Clear"))
        await conversation.until("Cleared")
        await connection.send_close(SpeakV1Close(type="Close"))
        await asyncio.wait_for(conversation.over, 20)
    assert conversation.of("Metadata")[0].model_name == "espeak"


async def test_livekits_plugin_for_deepgram(gateway):
    async with aiohttp.ClientSession() as http:
        hearing = deepgram.STT(
            api_key="any", base_url=f"{gateway}/v1/listen", http_session=http, language="en-US"
        )
        stream = hearing.stream()

        async def speak():
            async for piece in pieces(recording("02-weather") + QUIET):
                stream.push_frame(rtc.AudioFrame(piece, RATE, 1, len(piece) // 2))
            stream.end_input()

        speaking = asyncio.create_task(speak())
        events = [event async for event in stream]
        await speaking
        finals = [
            event.alternatives[0].text
            for event in events
            if event.type == stt.SpeechEventType.FINAL_TRANSCRIPT
        ]
        assert finals == [WEATHER]
        kinds = {event.type for event in events}
        assert {
            stt.SpeechEventType.START_OF_SPEECH,
            stt.SpeechEventType.INTERIM_TRANSCRIPT,
            stt.SpeechEventType.END_OF_SPEECH,
        } <= kinds
        clip = recording("02-weather")
        whole = await hearing.recognize(rtc.AudioFrame(clip, RATE, 1, len(clip) // 2))
        assert whole.alternatives[0].text == WEATHER

        voice = deepgram.TTS(api_key="any", base_url=f"{gateway}/v1/speak", http_session=http)
        said = [audio async for audio in voice.synthesize("Hello there.")]
        assert 0.5 < sum(audio.frame.duration for audio in said) < 2
        written = voice.stream()
        for word in ("Hello ", "there. ", "How are you?"):
            written.push_text(word)
        written.end_input()
        said = [audio async for audio in written]
        assert 1 < sum(audio.frame.duration for audio in said) < 4
        await voice.aclose()
        await hearing.aclose()


async def test_pipecats_services_for_deepgram_and_openai(gateway):
    """An agent that was made for others' servers holds the demonstration's conversation."""
    asked = []

    async def get_weather(params: FunctionCallParams, city: str):
        """Get the weather in a city.

        Args:
            city: The name of the city.
        """
        asked.append(city)
        await params.result_callback({"temperature": 8, "sky": "foggy"})

    hearing = DeepgramSTTService(api_key="any", base_url=socket_url(gateway))
    thinking = OpenAILLMService(
        api_key="any",
        base_url=f"{gateway}/v1",
        settings=OpenAILLMService.Settings(model="gpt-4o", system_instruction=PROMPT),
    )
    speaking = DeepgramTTSService(api_key="any", base_url=socket_url(gateway))
    async with calling(hearing, thinking, speaking, ToolsSchema([get_weather])) as call:
        assert await call.ask("01-hello") == ("hello", "Hello! How can I help you?")
        assert await call.ask("02-weather") == (WEATHER, "It's 8 degrees and foggy in Paris.")
        pipeline = call.pipeline
    assert asked == ["Paris"]
    assert pipeline.of(InterimTranscriptionFrame)
    assert pipeline.of(ErrorFrame) == []


async def test_livekits_plugin_gets_turns(gateway):
    async with aiohttp.ClientSession() as http:
        hearing = deepgram.STTv2(api_key="any", base_url=f"{gateway}/v2/listen", http_session=http, **FLUX)
        stream = hearing.stream()

        async def speak():
            async for piece in pieces(recording("02-weather") + QUIET + QUIET):
                stream.push_frame(rtc.AudioFrame(piece, RATE, 1, len(piece) // 2))
            stream.end_input()

        speaking = asyncio.create_task(speak())
        events = [event async for event in stream]
        await speaking
        await hearing.aclose()
    kinds = [event.type for event in events if event.type != stt.SpeechEventType.RECOGNITION_USAGE]
    assert kinds[:2] == [stt.SpeechEventType.START_OF_SPEECH, stt.SpeechEventType.INTERIM_TRANSCRIPT]
    assert kinds[-3:] == [
        stt.SpeechEventType.PREFLIGHT_TRANSCRIPT,
        stt.SpeechEventType.FINAL_TRANSCRIPT,
        stt.SpeechEventType.END_OF_SPEECH,
    ]
    finals = [event for event in events if event.type == stt.SpeechEventType.FINAL_TRANSCRIPT]
    assert [event.alternatives[0].text for event in finals] == [WEATHER]


async def test_pipecats_flux_service_gets_turns(gateway):
    settings = DeepgramFluxSTTService.Settings(**FLUX, keyterm=["paris"])
    url = f"{socket_url(gateway)}/v2/listen"
    hearing = DeepgramFluxSTTService(api_key="any", url=url, enable_eager_end_of_turn=True, settings=settings)
    microphone = Microphone()
    async with running(Caller(microphone), hearing) as pipeline:
        for clip, text in (("02-weather", WEATHER), ("03-and-in-london", NEXT)):
            since = len(pipeline.notes.events)
            microphone.say(clip)
            assert (await pipeline.wait_for(TranscriptionFrame, since=since, finalized=True)).text == text
            await pipeline.wait_for(ProposedUserStoppedSpeakingFrame, since=since)
            assert pipeline.of(ProposedUserStartedSpeakingFrame, since)
            assert pipeline.of(InterimTranscriptionFrame, since)
            assert [frame.text for frame in pipeline.of(EagerTranscriptionFrame, since)][-1] == text
            delta = DeepgramFluxSTTService.Settings(keyterm=["london"], eot_timeout_ms=900)
            await pipeline.worker.queue_frame(STTUpdateSettingsFrame(delta=delta))
        assert pipeline.of(ErrorFrame) == []
