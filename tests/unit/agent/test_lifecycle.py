"""How sessions begin and end, and what they make of bad input."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from agent_fakes import SILENCE, FakeCall, FakeOutlet, open_call, says, utterance

from parley.agent.config import NO_GPU, AgentConfig, AgentDeadlines
from parley.agent.conversation import Conversation
from parley.agent.headroom import FEWEST
from parley.agent.host import Incoming
from parley.asr.messages import AsrOptions, SpeechStoppedEvent, TranscriptEvent
from parley.checkpoint import CHECKPOINT_VERSION, Resume, SessionState
from parley.errors import (
    InferenceError,
    InvalidMessageError,
    ModelUnavailableError,
    UnsupportedLanguageError,
    UnsupportedVersionError,
    UnsupportedVoiceError,
)
from parley.protocol import (
    CANARY_PREFIX,
    Alternative,
    Audio,
    BargeInOptions,
    Closed,
    Connected,
    Control,
    Dtmf,
    ErrorEvent,
    Playback,
    Remember,
    Respond,
    ResponseDone,
    SamplingOptions,
    Say,
    SilenceOptions,
    SpeechStarted,
    SpeechStopped,
    Start,
    Step,
    Text,
    Tool,
    ToolResponse,
    Transcript,
    Transition,
    Truncate,
    TurnMetrics,
    VadOptions,
    encode,
)

NUMBER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


async def speaking_call():
    """A call in the middle of a long answer, and its first audio."""
    call = FakeCall()
    call.chat.token_s = 0.2
    call.hears((200, 1_000, "hello"))
    call.chat.answers.append(says("A long answer, that goes on and on and on and on."))
    await call.start()
    return call, await call.wait_for(Audio)


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (Start(input_sample_rate=8_000), "unsupported_sample_rate"),
        (Start(output_sample_rate=44_100), "unsupported_sample_rate"),
        (Start(language="xx"), "unsupported_language"),
        (Start(voice="missing"), "unsupported_voice"),
        (Start(exaggeration=2.1), "invalid_message"),
        (Start(exaggeration=-0.1), "invalid_message"),
        (Start(guidance_weight=1.5), "invalid_message"),
        (Start(vad=VadOptions(threshold=0.0)), "invalid_message"),
        (Start(vad=VadOptions(silence_ms=20)), "invalid_message"),
        (Start(alternatives=17), "invalid_message"),
        (Start(barge_in=BargeInOptions(min_words=11)), "invalid_message"),
        (Start(silence=SilenceOptions(prompt_after_ms=10)), "invalid_message"),
        (Start(silence=SilenceOptions(prompts=[""])), "invalid_message"),
        (Start(sampling=SamplingOptions(temperature=3.0)), "invalid_message"),
        (Start(greeting="!"), "invalid_message"),
        (Start(vad=VadOptions(min_speech_ms=60_000)), "invalid_message"),
        (Start(tools=[Tool(name="not a name")]), "invalid_message"),
        (Start(tools=[Tool(name="twice"), Tool(name="twice")]), "invalid_message"),
        (Start(tools=[Tool(name="t", parameters={"type": "array"})]), "invalid_message"),
        (Start(tools=[Tool(name=f"t{n}") for n in range(33)]), "invalid_message"),
        (Start(system_prompt="long " * 20_000), "invalid_message"),
        (b"{", "invalid_message"),
        (b"\xff\xfe", "invalid_message"),
        (b'{"type":"start","colour":"red"}', "invalid_message"),
        (b'{"type":"start","tools":[{"name":5}]}', "invalid_message"),
        (b'{"type":"start","tools":[{"name":"t","parameter":{}}]}', "invalid_message"),
        (b'{"type":"start","vad":{"silence":900}}', "invalid_message"),
        (b'{"type":"start","turn":{"eagerness":"off","limit_ms":5}}', "invalid_message"),
        (encode(Control(action="mute")), "invalid_message"),
    ],
)
async def test_a_session_that_cannot_be_held_is_refused(message, code):
    call = await open_call(message, microphone=False)
    assert [type(event) for event in call.outlet.events] == [ErrorEvent, Closed]
    assert (call.outlet.codes, call.outlet.reason) == ([code], "failed")
    # The sequence is ended for a client that does not do it, so that its place is free again.
    await asyncio.sleep(5)
    assert call.released == ["call"]
    assert call.recognition.streams == []


@pytest.mark.parametrize(
    "message",
    [
        Start(language="en-GB"),
        Start(language="de", voice="high", output_sample_rate=8_000),
        Start(exaggeration=2.0, guidance_weight=0.0),
        Start(tools=[Tool(name="get_number", parameters=NUMBER), Tool(name="911-call"), Tool(name="7" * 64)]),
        b'{"type":"start"}',
        b"",
    ],
)
async def test_a_session_that_can_be_held(message):
    call = await open_call(message)
    assert isinstance(call.outlet.events[0], Connected)


async def test_the_recogniser_gets_the_options_of_the_session():
    call = FakeCall()
    vad = VadOptions(threshold=0.6, silence_ms=500, onset_threshold=0.3, ignore_background=True)
    start = Start(vad=vad, language="en-GB", phrases=["Ljubljana"], phrase_weight=2.0, alternatives=3)
    await call.start(start)
    await call.end()
    assert call.recognition.streams[0].options == AsrOptions(
        vad=vad,
        language="en-GB",
        phrases=["Ljubljana"],
        phrase_weight=2.0,
        names=["Parley"],
        nbest=3,
        join_ms=20_000,
    )


@pytest.mark.parametrize(("own", "ignored"), [(None, True), (False, False)])
async def test_background_is_ignored_as_the_server_says_or_the_session(own, ignored):
    call = FakeCall(AgentConfig(ignore_background=True))
    await call.start(Start(vad=VadOptions(ignore_background=own)))
    await call.end()
    assert call.recognition.streams[0].options.vad.ignore_background is ignored


async def test_a_final_text_comes_with_its_other_readings():
    call = FakeCall()
    begun, stopped, (at, final) = utterance(1, 200, 1_000, "hello")
    readings = [Alternative(text="hello", score=-0.1), Alternative(text="yellow", score=-0.9)]
    call.recognition.script.extend(
        [begun, stopped, (at, msgspec.structs.replace(final, alternatives=readings))]
    )
    await call.start(Start(alternatives=2))
    await call.end(Transcript)
    assert call.outlet.of(Transcript)[-1].alternatives == readings


@pytest.mark.parametrize("longest", ["i" * 128, "ü" * 64])
async def test_a_client_may_choose_the_longest_id(longest):
    first, second = (FakeCall(session_id=longest) for _ in range(2))
    for call in (first, second):
        await call.start()
        assert call.outlet.of(Connected)[0].session_id == longest
        await call.end()
    names = [call.recognition.streams[0].name for call in (first, second)]
    assert len(set(names)) == 2
    # Triton takes 128 bytes, and what is made of it is longer.
    assert all(len(name.encode()) <= 100 for name in names)


async def test_phrases_are_no_part_of_the_prompt():
    call = FakeCall(AgentConfig(context_tokens=1_024))
    await call.start(Start(phrases=["a phrase that is long enough"] * 130))
    assert isinstance(call.outlet.events[0], Connected)


@pytest.mark.parametrize(
    ("start", "refusal"),
    [
        (Start(phrases=["€"]), InvalidMessageError("phrase '€' has characters that are never written")),
        (Start(language="de"), UnsupportedLanguageError("language 'de' is not understood; only en")),
    ],
)
async def test_unsupported_options_are_refused_before_a_stream_is_opened(start, refusal):
    call = FakeCall()
    call.recognition.refusals.append(refusal)
    await call.start(start)
    await call.wait_for(Closed)
    assert (call.outlet.codes, call.outlet.reason) == ([refusal.code], "failed")
    assert [(options.language, options.phrases) for options in call.recognition.checks] == [
        (start.language, start.phrases)
    ]
    assert not any(stream.opened for stream in call.recognition.streams)
    assert isinstance(call.outlet.last, Closed)
    await call.check_nothing_left()


@pytest.mark.parametrize(
    ("understood", "described"), [(("fr", "en"), ["fr", "en"]), (InferenceError("no answer"), None)]
)
async def test_the_description_has_what_the_recognisers_understand(understood, described):
    call = FakeCall()
    call.recognition.languages = understood
    await call.start(Start(describe=True))
    connected = await call.wait_for(Connected)
    assert connected.agent.recognized_languages == described
    # It is asked beside the stream of the session.
    assert [stream.opened for stream in call.recognition.streams] == [True, False]


async def test_without_a_language_recogniser_and_synthesizer_use_their_own():
    call = FakeCall()
    call.synthesizer.languages = ("de-AT", "en")
    await call.start(Start(language="", greeting="Servus."))
    await call.wait_for(Audio)
    assert [options.language for options in call.recognition.checks] == [""]
    assert [request.language for request in call.synthesizer.requests] == ["de-AT"]


async def test_the_last_event_comes_together_with_the_end():
    call = await open_call()
    await call.end()
    assert isinstance(call.outlet.last, Closed)


async def test_the_synthesizer_knows_voices_that_come_and_go():
    call = FakeCall()
    call.synthesizer.voices = None
    call.synthesizer.stored["anna"] = UnsupportedVoiceError("there is no voice 'anna'")
    await call.start(Start(voice="anna"))
    await call.wait_for(Closed)
    assert (call.outlet.codes, call.outlet.reason) == (["unsupported_voice"], "failed")
    assert not call.outlet.of(Connected)
    await call.check_nothing_left()


@pytest.mark.parametrize(
    ("answer", "least_s"), [(0.01, 0.01), (10_000.0, 1.0), (ModelUnavailableError("loading"), 0.0)]
)
async def test_a_voice_of_which_nothing_is_known_begins_the_session(answer, least_s):
    call = FakeCall()
    call.synthesizer.voices = None
    call.synthesizer.stored = dict.fromkeys(["anna", "ben", "carl"], answer)  # asked for at once
    steps = [Step(name="a", voice="ben", next=[Transition(to="b", when="now")]), Step(name="b", voice="carl")]
    began = asyncio.get_running_loop().time()
    await call.start(Start(voice="anna", steps=steps))
    assert isinstance(call.outlet.events[0], Connected)
    assert least_s <= call.began - began < least_s + 0.5
    assert call.outlet.codes == []


async def test_the_name_of_a_voice_is_bounded():
    call = FakeCall()
    call.synthesizer.voices = None
    await call.start(Start(voice="a" * 201), microphone=False)
    assert call.outlet.codes == ["unsupported_voice"]


async def test_a_recogniser_that_does_not_open_fails_the_session():
    call = FakeCall()
    call.recognition.start_failures.append(ModelUnavailableError("loading"))
    await call.start()
    await call.wait_for(Closed)
    assert (call.outlet.codes, call.outlet.reason) == (["model_unavailable"], "failed")
    await call.check_nothing_left()


@pytest.mark.parametrize("failing", ["check", "session"])
async def test_a_start_that_fails_unexpectedly_gives_its_sequence_back(failing, monkeypatch, caplog):
    def fail(*_args, **_kwargs):
        raise ZeroDivisionError("a bug")

    call = FakeCall()
    name = {"check": "check_start", "session": "AgentSession"}[failing]
    monkeypatch.setattr(f"parley.agent.host.{name}", fail)
    call.host.handle(Incoming("call", message=encode(Start()), start=True), call.outlet)
    assert call.outlet.codes == ["internal_error"]
    assert call.outlet.reason == "failed"
    assert call.outlet.finished
    assert "a bug" in caplog.text
    await asyncio.sleep(5)
    assert call.released == ["call"]
    monkeypatch.undo()
    call.outlet = FakeOutlet()
    await call.start()


async def test_a_start_that_is_broken_off_gives_its_sequence_back(monkeypatch):
    def stop(*_args, **_kwargs):
        raise KeyboardInterrupt

    call = FakeCall()
    monkeypatch.setattr("parley.agent.host.check_start", stop)
    with pytest.raises(KeyboardInterrupt):
        call.host.handle(Incoming("call", message=encode(Start()), start=True), call.outlet)
    await asyncio.sleep(5)
    assert call.released == ["call"]


async def test_a_message_that_fails_unexpectedly_does_not_end_the_session(monkeypatch):
    def fail(*_args, **_kwargs):
        raise ZeroDivisionError("a bug")

    call = await open_call()
    monkeypatch.setattr("parley.agent.conversation.check_spoken", fail)
    call.send(Say(text="Hello."))
    await call.until(500)
    assert call.outlet.codes == ["internal_error"]
    monkeypatch.undo()
    await call.request(Say(text="Hello."), TurnMetrics)


@pytest.mark.parametrize("model", ["asr", "llm"])
async def test_agent_without_a_needed_engine_reports_it(model):
    config = AgentConfig()
    name = getattr(config, model)[0]
    call = FakeCall(AgentConfig(absent_models={name: "/secret/weights does not exist", "kokoro": "too"}))
    await call.start(microphone=False)
    assert (call.outlet.codes, call.outlet.reason) == (["weights_not_found"], "failed")
    assert (
        call.outlet.of(ErrorEvent)[0].message
        == f"{name} has no weights on this server, whose log has the remedy"
    )


async def test_refusal_without_a_gpu_names_the_gpu_and_the_profiles_that_need_none():
    call = await open_call(config=AgentConfig(absent_models={AgentConfig().llm[0]: NO_GPU}), microphone=False)
    assert call.outlet.codes == ["model_loading_failed"]
    assert "no GPU; --model-config-name=open" in call.outlet.of(ErrorEvent)[0].message


async def test_refused_sessions_leave_nothing_in_the_refusal():
    call = FakeCall()
    refusal = UnsupportedVersionError("Triton is 2.51.0")
    call.host.refuse(refusal)
    for number in range(5):
        start = Incoming(f"{call.id}-{number}", message=encode(Start()), start=True)
        call.host.handle(start, FakeOutlet())
    frames, trace = 0, refusal.__traceback__
    while trace is not None:
        frames, trace = frames + 1, trace.tb_next
    assert frames <= 3


@pytest.mark.parametrize(("output", "codes"), [("audio", ["weights_not_found"]), ("text", [])])
async def test_without_any_synthesizer_only_calls_in_text_are_taken(output, codes):
    config = AgentConfig(
        tts=("piper",), tts_fallback=("espeak",), absent_models={"piper": "x", "espeak": "y"}
    )
    call = await open_call(Start(output=output), config=config, microphone=False)
    assert call.outlet.codes == codes


async def test_sessions_are_refused_with_the_given_reason_until_it_is_withdrawn():
    call = FakeCall()
    call.host.refuse(UnsupportedVersionError("Triton is 2.51.0"))
    await call.start(microphone=False)
    assert (call.outlet.codes, call.outlet.reason) == (["unsupported_version"], "failed")
    call = FakeCall()
    call.host.refuse(UnsupportedVersionError("Triton is 2.51.0"))
    call.host.refuse(None)
    await call.start(microphone=False)
    assert call.outlet.reason is None


async def test_session_opens_with_one_recogniser_of_several():
    names = ("moonshine", "whisper")
    call = await open_call(config=AgentConfig(asr=names, absent_models={"moonshine": "it is not loaded"}))
    assert call.outlet.reason is None
    await call.end()
    call = FakeCall(AgentConfig(asr=names, absent_models=dict.fromkeys(names, "no weights")))
    await call.start(microphone=False)
    assert call.outlet.codes == ["weights_not_found"]
    assert call.outlet.of(ErrorEvent)[0].message.startswith("moonshine, whisper have no weights")


async def test_too_many_sessions():
    call = await open_call(config=AgentConfig(max_sessions=1))
    other = FakeCall(session_id="other")
    other.host = call.host
    await other.start(microphone=False)
    assert (other.outlet.codes, other.outlet.reason) == (["too_many_sessions"], "failed")
    assert other.outlet.of(ErrorEvent)[0].retryable
    assert other.outlet.of(ErrorEvent)[0].retry_after_ms == 180_000
    await call.end()
    again = FakeCall(session_id="other")
    again.host = call.host
    await again.start()
    assert again.outlet.reason is None


@pytest.mark.parametrize(("sessions", "call_s", "wait_ms"), [(2, 30.0, 15_000), (2, 1.0, 1_000)])
async def test_a_full_server_says_when_a_place_becomes_free(sessions, call_s, wait_ms):
    call = FakeCall(AgentConfig(max_sessions=sessions, typical_call_s=call_s))
    outlets = [FakeOutlet() for _ in range(sessions + 1)]
    for number, outlet in enumerate(outlets):
        call.host.handle(Incoming(str(number), message=encode(Start()), start=True), outlet)
    await asyncio.sleep(1)
    assert [error.retry_after_ms for outlet in outlets for error in outlet.of(ErrorEvent)] == [wait_ms]
    for number in range(sessions + 1):
        call.host.handle(Incoming(str(number), end=True), FakeOutlet())
    await asyncio.sleep(10)


async def test_a_call_is_refused_where_others_are_answered_late_unless_it_moves():
    call = await open_call(config=AgentConfig(refuse_when_late=True, typical_call_s=120.0))
    call.headroom.set_open(2)
    for _ in range(FEWEST):
        call.headroom.on_answer(AgentConfig().answer_goal_ms + 1)
    moved = Resume(state=SessionState(version=CHECKPOINT_VERSION))
    outlets = {}
    for session_id, start in (
        ("other", Start()),
        (f"{CANARY_PREFIX}1", Start()),
        ("moved", Start(resume=moved)),
    ):
        outlets[session_id] = FakeOutlet()
        call.host.handle(Incoming(session_id, message=encode(start), start=True), outlets[session_id])
    await asyncio.sleep(1)
    assert [outlet.codes for outlet in outlets.values()] == [["too_many_sessions"], [], []]
    assert outlets["other"].of(ErrorEvent)[0].retry_after_ms == 60_000
    for session_id in outlets:
        call.host.handle(Incoming(session_id, end=True), FakeOutlet())
    await call.end()


async def test_health_checks_have_places_of_their_own():
    call = FakeCall(AgentConfig(max_sessions=1))
    checks = [f"{CANARY_PREFIX}{number}" for number in range(9)]

    async def open_sessions(*names):
        outlets = [FakeOutlet() for _ in names]
        for name, outlet in zip(names, outlets, strict=True):
            call.host.handle(Incoming(name, message=encode(Start()), start=True), outlet)
        await asyncio.sleep(1)
        return [outlet.codes for outlet in outlets]

    async def end_sessions(*names):
        for name in names:
            call.host.handle(Incoming(name, end=True), FakeOutlet())
        await asyncio.sleep(10)

    # A full server answers them, so many at once, and they take no place of a user's.
    assert await open_sessions("user", "other") == [[], ["too_many_sessions"]]
    assert await open_sessions(*checks) == [[]] * 8 + [["too_many_sessions"]]
    await end_sessions("user", "other")
    assert await open_sessions("user") == [[]]
    await end_sessions("user", *checks)
    assert len(call.host) == 0
    assert await open_sessions(*checks[:8]) == [[]] * 8
    await end_sessions(*checks[:8])
    assert asyncio.all_tasks() == {asyncio.current_task()}


async def test_start_twice_leaves_the_first_session_alone():
    call = await open_call(hears=[(200, 1_000, "hello")])
    second = FakeOutlet()
    call.host.handle(Incoming("call", message=encode(Start()), start=True), second)
    assert (second.codes, second.finished) == (["session_exists"], True)
    assert second.of(Closed) == []
    await call.end(ResponseDone)
    assert call.outlet.codes == []


async def test_a_chunk_without_start():
    call = FakeCall()
    answer = call.send(audio=SILENCE)
    assert (answer.codes, answer.finished) == (["session_not_found"], True)


async def test_an_id_may_be_used_again():
    call = await open_call()
    await call.hang_up()
    call.send(end=True)
    first, call.outlet = call.outlet, FakeOutlet()
    await call.start()  # while the first session is still being cleaned up
    await asyncio.sleep(5)
    assert first.reason == "ended"
    assert call.outlet.reason is None
    await call.end()
    assert call.released == []


async def test_every_request_but_the_first_is_answered_at_once():
    call = await open_call()
    for answer in (call.send(audio=SILENCE), call.send(Control(action="mute")), call.send(b"garbage")):
        assert answer.finished
        assert answer.events == []


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (b"garbage", "invalid_message"),
        (b"[]", "invalid_message"),
        (b'{"type":"dance"}', "invalid_message"),
        (b'{"type":"control","action":"dance"}', "invalid_message"),
        (b"[" * 100_000, "invalid_message"),
        (b" " * 300_000, "invalid_message"),
        (Start(), "invalid_message"),
        (ToolResponse(call_id="none"), "unknown_tool_call"),
        (Remember(role="user", text=" "), "invalid_message"),
        (Remember(role="user", text="x" * 30_000), "invalid_message"),
        (Respond(system_prompt="x" * 30_000), "invalid_message"),
        (Text(text=" ?"), "invalid_message"),
        (Text(text="x" * 4_001), "invalid_message"),
        (Dtmf(digits=""), "invalid_message"),
        (Dtmf(digits="12x"), "invalid_message"),
        (Dtmf(digits="1" * 65), "invalid_message"),
        (Say(text=""), "invalid_message"),
        (Truncate(response_id="nothing", played_ms=5), "invalid_message"),
    ],
)
async def test_a_bad_message_does_not_end_the_session(message, code):
    call = await open_call(hears=[(1_000, 1_500, "hello")])
    await call.request(message, ResponseDone)
    await call.end()
    assert call.outlet.codes == [code]


@pytest.mark.parametrize("audio", [b"\x00" * 641, b"\x00" * 32_002])
async def test_bad_audio_does_not_end_the_session(audio):
    call = await open_call(hears=[(1_000, 1_500, "hello")])
    call.send(audio=audio)
    await call.end(ResponseDone)
    assert call.outlet.codes == ["invalid_audio"]


async def test_hanging_up():
    call = await open_call(
        hears=[(200, 1_000, "hello")], answers=[says("A long answer that goes on and on. And on. And on.")]
    )
    await call.wait_for(Audio)
    await call.request(Control(action="hangup"), Closed)
    assert call.outlet.reason == "hangup"
    # Chunks that crossed the end on their way are no errors, and END ends the sequence.
    assert call.send(audio=SILENCE).events == []
    await call.end()
    await asyncio.sleep(10)
    assert call.released == []


async def test_a_client_that_talks_on_after_the_end_loses_its_place():
    call = await open_call()
    await call.request(Control(action="hangup"), Closed)
    await call.until(5_000)  # its microphone is still on
    assert call.released == ["call"]
    await call.check_nothing_left()


async def test_an_id_that_is_used_again_keeps_its_session():
    call = await open_call(microphone=False)
    await call.request(Control(action="hangup"), Closed)
    await asyncio.sleep(1.9)
    call.outlet = FakeOutlet()
    await call.start()
    await call.until(3_000)
    assert call.outlet.reason is None
    assert call.released == []
    await call.end()
    assert call.outlet.reason == "ended"


async def test_an_id_that_is_used_again_while_its_sequence_is_ended_says_what_to_do():
    call = FakeCall()
    call.release_takes_s = 0.5
    await call.start(microphone=False)
    await call.request(Control(action="hangup"), Closed)
    await asyncio.sleep(2.1)
    assert call.released == ["call"]
    call.outlet = FakeOutlet()
    await call.start()
    closed = await call.wait_for(Closed)
    # The server takes no more chunks of this sequence: the client must begin anew, and may.
    assert closed.reason == "failed"
    (error,) = call.outlet.of(ErrorEvent)
    assert (error.code, error.retryable) == ("too_many_sessions", True)
    assert call.ends[0].finished
    await call.check_nothing_left()
    assert call.released == ["call"]


async def test_a_stopping_server_gets_every_sequence_back():
    call = await open_call()
    await call.host.shut_down()
    await call.host.wait_until_released()
    assert call.released == ["call"]
    await call.check_nothing_left()


async def test_sequences_end_before_their_last_responses_where_a_stopping_server_takes_no_requests():
    call = await open_call()
    call.release_takes_s = 0.5
    stopping = asyncio.create_task(call.host.shut_down(clients_can_end=False))
    await asyncio.sleep(0.1)
    assert (call.released, call.outlet.reason) == (["call"], None)
    await stopping
    assert call.outlet.reason == "shutdown"
    assert call.outlet.codes == []
    assert call.ends[0].finished
    await call.host.wait_until_released()
    assert call.released == ["call"]
    await call.check_nothing_left()


async def test_sessions_end_where_the_ends_of_their_sequences_fail():
    call = await open_call()

    async def fail(*_):
        raise RuntimeError("unexpected")

    call.host._release = fail
    await call.host.shut_down(clients_can_end=False)
    assert call.outlet.reason == "shutdown"
    await call.hang_up()


async def test_end_in_the_middle_of_the_answer():
    call, _ = await speaking_call()
    await call.end()
    assert call.outlet.reason == "ended"
    assert len(call.chat.aborted) == 1


async def test_start_and_end_at_once_still_connects():
    call = FakeCall()
    call.host.handle(Incoming("call", message=encode(Start()), start=True, end=True), call.outlet)
    await call.check_nothing_left()
    assert isinstance(call.outlet.events[0], Connected)
    assert call.outlet.reason == "ended"
    assert call.released == []


async def test_a_client_that_goes_away():
    call, audio = await speaking_call()
    await call.hang_up()
    call.outlet.gone = True
    closed = await call.wait_for(Closed)
    assert closed.reason == "disconnected"
    assert call.at_ms(closed) - call.at_ms(audio) < 300
    await call.check_nothing_left()
    assert call.released == ["call"]


async def test_a_client_that_falls_silent():
    call = await open_call(config=AgentConfig(deadlines=AgentDeadlines(idle_s=5.0)))
    await call.until(20_010)
    assert call.outlet.reason is None
    await call.hang_up()
    closed = await call.wait_for(Closed)
    assert (call.outlet.codes, closed.reason) == (["session_idle"], "idle")
    assert 25_000 <= call.at_ms(closed) <= 25_500
    await call.check_nothing_left()


async def test_the_server_stops():
    call, _ = await speaking_call()
    await call.host.shut_down()
    assert call.outlet.reason == "shutdown"
    await call.hang_up()
    late = FakeCall(session_id="late")
    late.host = call.host
    await late.start(microphone=False)
    assert (late.outlet.codes, late.outlet.reason) == (["shutting_down"], "shutdown")
    await call.check_nothing_left()


async def test_mute_finishes_what_was_said_and_ignores_the_rest():
    call = FakeCall(hears=[(200, 9_000, "never finished")])
    call.recognition.on_flush = [
        SpeechStoppedEvent(utterance=1, at_ms=900, detected_at_ms=900),
        TranscriptEvent(utterance=1, text="hello", is_final=True, confidence=0.9),
    ]
    await call.start()
    await call.until(1_005)
    await call.request(Control(action="mute"), TurnMetrics)
    assert call.outlet.finals == ["hello"]
    await call.until(8_000)
    assert sum(call.recognition.pushes) == 16_000
    call.recognition.script.clear()
    call.recognition.script.extend(utterance(2, 1_100, 1_150, "again"))
    call.send(Control(action="unmute"))
    # The recogniser has not heard the pause; the client's times contain it.
    started = await call.wait_for(SpeechStarted, 2)
    assert started.at_ms == pytest.approx(8_100, abs=20)


async def test_a_long_mute_does_not_lose_the_audio_stream():
    call = await open_call()
    await call.until(1_000)
    call.send(Control(action="mute"))
    await call.until(2_000)
    call.recognition.pushes.clear()
    await call.until(121_000)
    # The recogniser forgets a stream that is silent for a minute.
    assert len(call.recognition.pushes) >= 4
    assert sum(call.recognition.pushes) == 0
    call.recognition.script.extend(utterance(1, 1_100, 1_300, "again"))
    started = await call.request(Control(action="unmute"), SpeechStarted)
    assert started.at_ms == pytest.approx(121_100, abs=20)
    await call.end()
    assert len(call.recognition.streams) == 1


async def test_audio_beyond_the_queue_is_dropped():
    call = FakeCall()
    call.recognition.push_s = 8.0
    call.hears((200, 300, "hello"))
    config_buffer_ms = 5_000
    await call.start()
    await call.until(16_000)
    errors = call.outlet.of(ErrorEvent)
    assert {error.code for error in errors} == {"deadline_exceeded", "audio_dropped"}
    await call.end()
    assert max(call.recognition.pushes, default=0) <= config_buffer_ms * 16


async def test_dropped_audio_is_reported_once_a_second():
    call = FakeCall(AgentConfig(deadlines=AgentDeadlines(asr_s=60.0)))
    call.recognition.push_s = 12.0
    await call.start()
    await call.until(11_900)
    assert 5 <= call.outlet.codes.count("audio_dropped") <= 8


async def test_audio_is_pushed_in_whole_windows_and_one_call_at_a_time():
    call = FakeCall()
    call.recognition.push_s = 0.09
    await call.start()
    await call.until(5_000)
    await call.end()
    assert all(length % 512 == 0 for length in call.recognition.pushes)
    # What arrives during a call goes into the next: 90 ms of audio per call.
    assert len(call.recognition.pushes) <= 5_000 / 80


async def test_a_new_final_text_without_a_start_replaces_the_answer():
    call = FakeCall(hears=[(200, 1_000, "hello")])
    call.recognition.script.append((1_400, TranscriptEvent(utterance=2, text="world", is_final=True)))
    await call.start()
    await call.wait_for(Transcript, 2)
    await call.end(TurnMetrics, 2)
    assert call.chat.prompt()[1:] == [("user", "hello world")]


async def test_speech_stopped_without_text_changes_nothing():
    call = await open_call(hears=[(200, 500, ""), (1_500, 1_900, "")])
    await call.wait_for(SpeechStopped, 2)
    await call.until(5_000)
    await call.end()
    assert call.outlet.states == ["listening"]
    assert call.chat.requests == []


async def test_the_model_reads_the_prompt_before_the_user_has_spoken():
    call = FakeCall()
    tool = Tool(name="count", parameters=NUMBER)
    await call.start(Start(system_prompt="Be brief.", tools=[tool]))
    call.hears((1_000, 2_000, "hello"))
    await call.wait_for(TurnMetrics)
    (warmed,) = call.chat.warmed
    first = call.chat.requests[0]
    assert warmed.messages[0] == first.messages[0]
    assert warmed.tools == first.tools == [tool]
    assert call.chat.prompt(0) == [("system", "Be brief."), ("user", "hello")]


async def test_health_check_asks_the_language_model_nothing():
    tool = Tool(name="count", parameters=NUMBER)
    call = await open_call(Start(system_prompt="Be brief.", tools=[tool]), session_id=f"{CANARY_PREFIX}1")
    await call.wait_for(Connected)
    await call.until(5_000)
    await call.end()
    assert call.chat.warmed == call.chat.requests == []


async def salts_of(start):
    """The salts of all requests of a session."""
    call = await open_call(start)
    call.hears((1_000, 2_000, "hello"))
    await call.end(TurnMetrics)
    return {request.cache_salt for request in (*call.chat.warmed, *call.chat.requests)}


async def test_sessions_share_the_prefix_cache_by_salt():
    assert await salts_of(Start(cache_salt="ann")) == {"ann"}
    (one,), (other,) = await salts_of(Start()), await salts_of(Start())
    assert len({"", one, other}) == 3


async def test_a_failed_warm_up_is_not_the_clients_trouble():
    call = FakeCall()
    call.chat.warm_up_failure = ModelUnavailableError("restarting")
    await call.start()
    call.hears((1_000, 2_000, "hello"))
    await call.wait_for(TurnMetrics)
    assert call.outlet.codes == []


async def test_a_warm_up_ends_with_the_session():
    call = FakeCall()
    call.chat.warm_up_s = 3_600
    await call.start()
    await call.end(Connected)
    assert call.chat.aborted == [call.chat.warmed[0].request_id]


async def test_a_client_that_cannot_be_asked_whether_it_is_there_is_not_kept():
    call = await open_call(microphone=False)
    call.outlet.gone = LookupError("no such request")
    await call.wait_for(Closed)
    assert (call.outlet.codes, call.outlet.reason) == (["internal_error"], "failed")
    await call.check_nothing_left()


async def test_a_session_ends_where_a_part_of_it_fails_to_close(monkeypatch):
    close = Conversation.close

    def fail(self):
        close(self)
        raise RuntimeError("bug")

    call = await open_call()
    monkeypatch.setattr(Conversation, "close", fail)
    await call.end()
    assert call.outlet.reason == "ended"


async def test_client_that_takes_no_events_is_closed(caplog):
    call = await open_call(microphone=False)

    def lost(event, audio=None):
        raise LookupError("no such request")

    call.outlet.gone, call.outlet.send = LookupError("no such request"), lost
    await asyncio.sleep(10)
    assert call.outlet.finished
    assert len(call.host) == 0
    assert "closed could not be sent" in caplog.text


async def test_sessions_that_begin_and_end_at_once_do_not_pile_up():
    call = FakeCall(AgentConfig(max_sessions=1))
    call.recognition.start_s = 1.0
    outlets = [FakeOutlet() for _ in range(3)]
    for number, outlet in enumerate(outlets):
        call.host.handle(Incoming(number, message=encode(Start()), start=True, end=True), outlet)
    assert [outlet.codes for outlet in outlets] == [[], [], ["too_many_sessions"]]
    await asyncio.sleep(5)
    assert [outlet.reason for outlet in outlets] == ["ended", "ended", "failed"]
    assert len(call.recognition.streams) == 2
    await call.start(microphone=False)


def long_speech():
    call = FakeCall(AgentConfig(deadlines=AgentDeadlines(unread_s=5.0, idle_s=600.0)))
    return call, Say(text="A long announcement, for all who wait. " * 10)


async def test_a_client_that_says_nothing_is_not_sent_audio_for_ever():
    call, saying = long_speech()
    await call.start(microphone=False)
    closed = await call.request(saying, Closed)
    assert (call.outlet.codes, closed.reason) == (["session_idle"], "idle")
    sent_s = sum(event.samples / event.sample_rate for event in call.outlet.of(Audio))
    assert 5.0 < sent_s < 6.0


async def test_client_that_talks_without_playback_reports_counts_as_not_reading():
    call, saying = long_speech()
    await call.start()
    first = await call.request(saying, Audio)
    closed = await call.request(Playback(response_id=first.response_id, played_ms=1), Closed)
    assert (call.outlet.codes, closed.reason) == (["session_idle"], "idle")


@pytest.mark.parametrize("marks", [True, False])
async def test_a_client_that_shows_that_it_reads_hears_all_of_a_long_speech(marks):
    call, saying = long_speech()
    await call.start(microphone=not marks)
    call.send(saying)
    spoken = 0
    while not call.outlet.of(TurnMetrics):
        spoken += 1
        await asyncio.sleep(1.0)
        if marks and call.outlet.of(Audio):
            event = call.outlet.of(Audio)[-1]
            call.send(Playback(response_id=event.response_id, played_ms=event.offset_ms))
    assert spoken > 10
    assert call.outlet.of(Closed) == []
