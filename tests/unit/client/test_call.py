"""A call against a fake agent: life, queues, failures, tools."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress

import numpy as np
import pytest
from fake_agent import CONNECTED, FakeAgent, polite, refusing, serve

from parley import protocol
from parley.errors import (
    DeadlineExceededError,
    InvalidMessageError,
    ModelUnavailableError,
    ShuttingDownError,
    TooManySessionsError,
    UnsupportedVoiceError,
)
from parley_client import (
    NO_RETRY,
    AgentAudio,
    Backoff,
    Bounds,
    CallEndedError,
    CallLostError,
    ConnectError,
    Deadlines,
    SlowConsumerError,
    ToolTable,
    connect,
)
from parley_client.errors import NoServerError
from parley_client.transport import ServerReply

QUICK = Deadlines(connect_s=0.2, send_s=0.05, acknowledge_s=0.05, silence_s=2.0, consumer_s=0.05, close_s=0.2)
PATIENT = Deadlines(connect_s=5, send_s=5, acknowledge_s=5, silence_s=5, consumer_s=5, close_s=5)


def dial(agent, deadlines=PATIENT, **options):
    options.setdefault("retry", NO_RETRY)
    return connect(transport=agent, deadlines=deadlines, **options)


async def test_a_call_opens_sends_and_closes():
    agent = FakeAgent()
    async with dial(agent, system_prompt="be kind", phrases=("Oslo",), output_sample_rate=24_000) as call:
        await call.send_audio(b"\1\0" * 320)
        closed = await call.hang_up()
    start, audio, end = agent.streams[0].seen
    assert protocol.decode_message(start.message) == protocol.Start(
        system_prompt="be kind", phrases=["Oslo"], output_sample_rate=24_000
    )
    assert (start.start, start.end) == (True, False)
    assert (audio.audio, audio.message, audio.start, audio.end) == (b"\1\0" * 320, b"", False, False)
    assert (end.start, end.end) == (False, True)
    assert closed == protocol.Closed(reason="ended")
    assert agent.closed == 1


async def test_leaving_hangs_up_and_events_end_with_closed():
    agent = FakeAgent()
    async with dial(agent) as call:
        assert await anext(call) == CONNECTED
        await call.hang_up()
        assert [event async for event in call] == [protocol.Closed(reason="ended")]
        with pytest.raises(CallEndedError):
            await call.send_audio(b"\0\0")
    async with dial(agent):
        pass
    assert agent.streams[1].seen[-1].end


async def test_long_audio_is_split_and_half_samples_wait():
    agent = FakeAgent()
    long = np.arange(40_000, dtype=np.int16)
    async with dial(agent) as call:
        await call.send_audio(long)
        await call.send_audio(b"\7")
        await call.send_audio(b"\1\2")
        await call.hang_up()
    sent = [frame.audio for frame in agent.streams[0].seen if frame.audio]
    assert [len(chunk) for chunk in sent] == [32_000, 32_000, 16_000, 2]
    assert b"".join(sent[:3]) == long.astype("<i2").tobytes()
    assert sent[3] == b"\7\1"


async def test_a_message_takes_the_audio_behind_it_along():
    agent = FakeAgent()
    async with dial(agent) as call:
        agent.streams[0].may_send.clear()
        call.mute()
        call.offer_audio(b"\1\0")
        call.report_playback("r", 12.4)
        agent.streams[0].may_send.set()
        await call.hang_up()
    both, mark = agent.streams[0].seen[1:3]
    assert protocol.decode_message(both.message) == protocol.Control(action="mute")
    assert both.audio == b"\1\0"
    assert protocol.decode_message(mark.message) == protocol.Playback(response_id="r", played_ms=12)


async def test_audio_events_carry_samples():
    samples = np.array([1, -2, 3], np.int16)

    async def behaviour(stream):
        event = protocol.Audio(
            turn=1, response_id="r", offset_ms=40, sample_rate=22_050, samples=3, text="hi"
        )
        await serve(stream, lambda _: stream.say(event, samples))

    async with dial(FakeAgent(behaviour)) as call:
        await call.send_audio(b"\0\0")
        await anext(call)
        event = await anext(call)
    assert isinstance(event, AgentAudio)
    assert event.samples.tolist() == [1, -2, 3]
    assert (event.turn, event.offset_ms, event.text) == (1, 40, "hi")


@pytest.mark.parametrize("raw", [b"{", b"[]", b"{}", b'{"type":"speech_started"}', b'{"type":7}'])
async def test_an_unreadable_event_is_reported_and_the_call_goes_on(raw):
    async def behaviour(stream):
        await serve(stream, lambda _: stream.replies.put_nowait(ServerReply("start", raw)))

    async with dial(FakeAgent(behaviour)) as call:
        await call.send_audio(b"\0\0")
        await anext(call)
        event = await anext(call)
        assert isinstance(event, protocol.ErrorEvent)
        assert event.code == "invalid_message"
        assert await call.hang_up() is not None


async def test_events_of_unknown_types_are_skipped_with_one_warning_each(caplog):
    async def behaviour(stream):
        def say_more(_):
            for kind in ("unheard_of", "unheard_of", "another"):
                stream.replies.put_nowait(ServerReply("start", b'{"type":"%s","text":7}' % kind.encode()))
            stream.say(protocol.Updated())

        await serve(stream, say_more)

    async with dial(FakeAgent(behaviour)) as call:
        await call.send_audio(b"\0\0")
        await anext(call)
        assert await anext(call) == protocol.Updated()
        assert await call.hang_up() is not None
    warned = [record.getMessage() for record in caplog.records if record.name == "parley.client"]
    assert [next(kind for kind in ("unheard_of", "another") if kind in line) for line in warned] == [
        "unheard_of",
        "another",
    ]


async def test_audio_of_another_length_than_announced_is_an_error():
    async def behaviour(stream):
        event = protocol.Audio(turn=1, response_id="r", offset_ms=0, sample_rate=22_050, samples=4)
        await serve(stream, lambda _: stream.say(event, np.zeros(3, np.int16)))

    async with dial(FakeAgent(behaviour)) as call:
        await call.send_audio(b"\0\0")
        await anext(call)
        assert (await anext(call)).code == "invalid_message"


async def test_typed_text_keys_and_sentences_are_sent():
    agent = FakeAgent()
    async with dial(agent) as call:
        call.send_text("two coffees, please")
        call.send_dtmf("12A#")
        call.say("This call is recorded.", interruptible=False, remember=False)
        call.say("Hello.")
        await call.hang_up()
    assert [protocol.decode_message(frame.message) for frame in agent.streams[0].seen[1:-1]] == [
        protocol.Text(text="two coffees, please"),
        protocol.Dtmf(digits="12A#"),
        protocol.Say(text="This call is recorded.", interruptible=False, remember=False),
        protocol.Say(text="Hello."),
    ]


async def test_a_session_is_steered_and_changed():
    agent = FakeAgent()
    update = protocol.Update(voice=None, turn=protocol.TurnOptions(detection="manual"))
    async with dial(agent) as call:
        call.update(update)
        call.commit()
        call.discard()
        call.ask_response(system_prompt="Greet.", use_tools=False)
        call.remember("system", "It is night.")
        call.interrupt("r1")
        call.truncate("r1", 99.6)
        with pytest.raises(InvalidMessageError, match="exaggeration is 9"):
            call.update(protocol.Update(exaggeration=9.0))
        with pytest.raises(InvalidMessageError, match="the text is empty"):
            call.remember("user", " ")
        await call.hang_up()
    assert [protocol.decode_message(frame.message) for frame in agent.streams[0].seen[1:-1]] == [
        update,
        protocol.Commit(),
        protocol.Discard(),
        protocol.Respond(system_prompt="Greet.", use_tools=False),
        protocol.Remember(role="system", text="It is night."),
        protocol.Interrupt(response_id="r1"),
        protocol.Truncate(response_id="r1", played_ms=100),
    ]


async def test_invalid_message_is_refused_before_it_is_sent():
    agent = FakeAgent()
    async with dial(agent) as call:
        for send, value, why in (
            (call.send_text, " \n", "the text is empty"),
            (call.say, "", "the text is empty"),
            (call.send_text, "x" * protocol.MAX_MESSAGE_BYTES, "at most 262144"),
            (call.send_dtmf, "", "no keys"),
            (call.send_dtmf, "12a-#", "'-a' in '12a-#': keys are 0-9, *, # and A-D"),
        ):
            with pytest.raises(InvalidMessageError, match=re.escape(why)):
                send(value)
        await call.hang_up()
        for send in (call.send_text, call.send_dtmf, call.say):
            with pytest.raises(CallEndedError):
                send("1")
    assert len(agent.streams[0].seen) == 2


# --- opening --------------------------------------------------------------------------------


async def test_refused_for_good_is_not_tried_again():
    agent = FakeAgent(refusing(UnsupportedVoiceError("no voice 'bob'")), polite)
    with pytest.raises(UnsupportedVoiceError, match="no voice 'bob'"):
        async with dial(agent, retry=Backoff(attempts=3, initial_s=0)):
            pass
    assert len(agent.streams) == 1
    assert agent.streams[0].cancelled.is_set()
    assert agent.closed == 1


async def test_a_refusal_says_when_to_try_again():
    full = refusing(TooManySessionsError("full", retry_after_s=11.25))
    with pytest.raises(ConnectError) as refused:
        async with dial(FakeAgent(full), retry=Backoff(attempts=1)):
            pass
    assert isinstance(refused.value.__cause__, TooManySessionsError)
    assert refused.value.retry_after_s == 11.25


drained = refusing(ShuttingDownError("the server takes no new sessions"), "shutdown")


@pytest.mark.parametrize(
    ("servers", "code"),
    [
        ([drained], "shutting_down"),
        ([drained, NoServerError("nothing answers")], "shutting_down"),
        ([NoServerError("nothing answers"), drained], "shutting_down"),
        ([drained, TooManySessionsError("full")], "too_many_sessions"),
        ([NoServerError("nothing answers"), NoServerError("nor here")], "connect_failed"),
    ],
)
async def test_a_call_that_no_server_takes_fails_with_the_code_of_the_last_refusal(servers, code):
    names = [f"server-{number}" for number in range(len(servers))]
    with pytest.raises(ConnectError) as refused:
        async with connect(names, transport=FakeAgent(*servers), retry=NO_RETRY):
            pass
    assert (refused.value.code, refused.value.retryable) == (code, True)


async def begin_and_end(stream):
    """Takes the START, and then everything to the end of the requests."""
    await stream.frames.get()
    yield
    while (frame := await stream.frames.get()) is not None:
        stream.acknowledge(frame)
    await asyncio.sleep(0)
    assert not stream.cancelled.is_set(), "the stream was cancelled before the server had ended it"
    stream.end()


async def test_the_stream_of_a_refused_call_ends_by_itself():
    async def refuse(stream):
        async for _ in begin_and_end(stream):
            stream.say(protocol.ErrorEvent.of(UnsupportedVoiceError("no voice 'bob'")))
            stream.hang_up("failed")

    agent = FakeAgent(refuse)
    with pytest.raises(UnsupportedVoiceError):
        async with dial(agent):
            pass
    assert agent.streams[0].seen[-1].end
    assert agent.streams[0].replies.empty()


async def test_the_stream_of_a_call_that_is_given_up_while_it_opens_ends_by_itself():
    async def hesitate(stream):
        async for _ in begin_and_end(stream):
            await asyncio.sleep(0.05)
            stream.say(CONNECTED)

    agent = FakeAgent(hesitate)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01), dial(agent):
            pass
    assert agent.streams[0].seen[-1].end
    assert agent.streams[0].replies.empty()


@pytest.mark.parametrize("as_event", [True, False])
async def test_a_start_that_the_server_cannot_take_is_refused_at_once(as_event):
    async def refuse(stream):
        start = await stream.frames.get()
        error = InvalidMessageError("exaggeration is 9; it must be 0 to 2")
        if as_event:
            stream.say(protocol.ErrorEvent.of(error))
        else:
            stream.acknowledge(start, error.to_wire())

    agent = FakeAgent(refuse)
    with pytest.raises(InvalidMessageError, match="exaggeration is 9"):
        async with dial(agent, retry=Backoff(attempts=3, initial_s=0)):
            pass
    assert len(agent.streams) == 1


async def test_opening_is_repeated_while_the_failure_may_pass():
    async def busy(stream):
        start = await stream.frames.get()
        stream.acknowledge(start, TooManySessionsError("full").to_wire())

    agent = FakeAgent(busy, ModelUnavailableError("gone"), polite)
    async with dial(agent, retry=Backoff(attempts=3, initial_s=0, max_s=0)) as call:
        assert not call.is_over
    assert agent.closed == 3
    assert len(set(agent.call_ids)) == 2  # every attempt has an id of its own


async def test_attempts_are_limited():
    agent = FakeAgent(ModelUnavailableError("gone"))
    with pytest.raises(ConnectError, match="gone") as caught:
        async with dial(agent, retry=Backoff(attempts=4, initial_s=0, max_s=0)):
            pass
    assert isinstance(caught.value.__cause__, ModelUnavailableError)
    assert agent.closed == 4


async def test_a_server_that_says_nothing_ends_the_attempt():
    async def mute(stream):
        await asyncio.Event().wait()

    agent = FakeAgent(mute)
    with pytest.raises(ConnectError, match="did not answer") as caught:
        async with dial(agent, QUICK):
            pass
    assert isinstance(caught.value.__cause__, DeadlineExceededError)
    assert agent.streams[0].cancelled.is_set()


async def test_entering_again_is_a_new_call():
    agent = FakeAgent()
    line = dial(agent)
    for _ in range(2):
        async with line:
            with pytest.raises(RuntimeError, match="in use"):
                await line.__aenter__()
    assert len(set(agent.call_ids)) == 2


async def test_all_options_reach_the_server():
    options = {
        "exaggeration": 2.0,
        "guidance_weight": 0.0,
        "vad": protocol.VadOptions(silence_ms=400),
        "turn": protocol.TurnOptions(eagerness="patient"),
        "barge_in": protocol.BargeInOptions(min_speech_ms=0, min_words=3, pause_playback=False),
        "silence": protocol.SilenceOptions(prompt_after_ms=0, prompts=["Hello?"], hang_up_after_ms=60_000),
        "sampling": protocol.SamplingOptions(temperature=0, top_p=1, max_tokens=1),
        "greeting": "",
        "test": True,
    }
    agent = FakeAgent()
    async with dial(agent, **options):
        pass
    assert protocol.decode_message(agent.streams[0].seen[0].message) == protocol.Start(**options)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"exaggeration": 2.1}, "exaggeration is 2.1; it must be 0 to 2"),
        ({"exaggeration": float("nan")}, "exaggeration is nan"),
        ({"guidance_weight": -0.1}, "guidance_weight is -0.1; it must be 0 to 1"),
        (
            {"sampling": protocol.SamplingOptions(temperature=3)},
            "sampling.temperature is 3; it must be",
        ),
        ({"sampling": protocol.SamplingOptions(top_p=0)}, "sampling.top_p is 0; it must be above 0"),
        ({"sampling": protocol.SamplingOptions(top_p=1.5)}, "sampling.top_p is 1.5; it must be 0 to 1"),
        (
            {"sampling": protocol.SamplingOptions(max_tokens=0)},
            "sampling.max_tokens is 0; it must be at",
        ),
        ({"barge_in": protocol.BargeInOptions(min_words=-1)}, "barge_in.min_words is -1"),
        ({"barge_in": protocol.BargeInOptions(min_speech_ms=-1)}, "barge_in.min_speech_ms is -1"),
        ({"silence": protocol.SilenceOptions(prompt_after_ms=-5)}, "silence.prompt_after_ms is -5"),
        ({"silence": protocol.SilenceOptions(hang_up_after_ms=-5)}, "silence.hang_up_after_ms is -5"),
        ({"silence": protocol.SilenceOptions(prompts=["Hello?", " "])}, "a text of silence.prompts is empty"),
    ],
)
def test_options_out_of_range_are_refused_before_there_is_a_connection(options, why):
    with pytest.raises(InvalidMessageError, match=re.escape(why)):
        connect(**options)


async def test_cancelling_while_connecting_frees_everything():
    reached = asyncio.Event()

    async def mute(stream):
        await stream.frames.get()
        reached.set()
        await asyncio.Event().wait()

    agent = FakeAgent(mute)
    task = asyncio.create_task(dial(agent).__aenter__())
    await reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert agent.streams[0].cancelled.is_set()
    assert agent.closed == 1


# --- breaking -------------------------------------------------------------------------------


async def test_a_broken_stream_ends_the_iteration_with_an_error():
    async def breaks(stream):
        await stream.begin()
        await stream.frames.get()
        stream.fail(ModelUnavailableError("socket closed"))

    async with dial(FakeAgent(breaks)) as call:
        await call.send_audio(b"\0\0")
        assert await anext(call) == CONNECTED
        with pytest.raises(CallLostError, match="socket closed"):
            await anext(call)
        with pytest.raises(CallLostError):
            await call.send_audio(b"\0\0")
        assert await call.hang_up() is None


async def test_a_stream_that_ends_without_closed_is_lost():
    async def ends(stream):
        await stream.begin()
        stream.end()

    async with dial(FakeAgent(ends)) as call:
        await anext(call)
        with pytest.raises(CallLostError, match="without closing"):
            await anext(call)


@pytest.mark.parametrize("direction", ["send", "receive"])
async def test_unexpected_failure_is_reported(direction):
    async def breaks(stream):
        await stream.begin()
        if direction == "receive":
            stream.fail(ValueError("odd buffer"))
        await asyncio.Event().wait()

    agent = FakeAgent(breaks)
    async with dial(agent) as call:
        assert await anext(call) == CONNECTED
        if direction == "send":

            async def broken(frame):
                raise ValueError("odd buffer")

            agent.streams[0].send = broken
            await call.send_audio(b"\0\0")
        with pytest.raises(CallLostError, match="odd buffer") as caught:
            await anext(call)
        assert isinstance(caught.value.__cause__, ValueError)


async def test_a_server_that_takes_nothing_is_noticed(monkeypatch):
    monkeypatch.setattr("parley_client.server_stream._WATCH_INTERVAL_S", 0.01)
    agent = FakeAgent()
    async with dial(agent, QUICK) as call:
        await call.send_audio(b"\0\0")
        await anext(call)
        await asyncio.sleep(0.01)  # it is acknowledged
        agent.streams[0].may_send.clear()
        await call.send_audio(b"\0\0")  # for which no acknowledgement is asked
        with pytest.raises(CallLostError, match="acknowledged nothing"):
            await anext(call)


async def test_a_server_that_stops_acknowledging_is_noticed(monkeypatch):
    monkeypatch.setattr("parley_client.server_stream._WATCH_INTERVAL_S", 0.01)

    async def deaf(stream):
        await stream.begin()
        await asyncio.Event().wait()

    agent = FakeAgent(deaf)
    async with dial(agent, QUICK) as call:
        await call.send_audio(b"\0\0")
        await anext(call)
        with pytest.raises(CallLostError, match="acknowledged nothing"):
            await anext(call)
    assert agent.streams[0].cancelled.is_set()


@pytest.mark.parametrize(
    "error",
    [
        "session_not_found: no session",
        "inference request for sequence abc to model 'voice_agent' must specify the START flag",
        "Stub process 'voice_agent_1_0' is not healthy.",
        "inference_failed: Stub process 'voice_agent_1_0' is not healthy.",
        "Failed to obtain the health mutex.",
    ],
)
async def test_a_forgotten_session_is_a_lost_call(error):
    async def forgets(stream):
        await stream.begin()
        stream.acknowledge(await stream.frames.get(), error)

    async with dial(FakeAgent(forgets), QUICK) as call:
        await call.send_audio(b"\0\0")
        await anext(call)
        with pytest.raises(CallLostError):
            await anext(call)


async def test_a_refused_chunk_is_an_event():
    async def picky(stream):
        await stream.begin()
        stream.acknowledge(await stream.frames.get(), "invalid_audio: odd")
        stream.acknowledge(await stream.frames.get())
        stream.close()

    async with dial(FakeAgent(picky)) as call:
        await call.send_audio(b"\0\0")
        await anext(call)
        assert await anext(call) == protocol.ErrorEvent(code="invalid_audio", message="odd", retryable=False)
        assert await call.hang_up() is not None


async def test_the_server_may_close_the_call():
    async def shuts_down(stream):
        await stream.begin()
        stream.hang_up("shutdown")
        end = await stream.frames.get()
        assert end.end
        stream.acknowledge(end, "session_not_found: ended")
        stream.end()

    agent = FakeAgent(shuts_down)
    async with dial(agent) as call:
        assert [event async for event in call] == [CONNECTED, protocol.Closed(reason="shutdown")]
        with pytest.raises(CallEndedError, match="shutdown"):
            await call.send_audio(b"\0\0")
        assert call.closed == protocol.Closed(reason="shutdown")
    assert agent.streams[0].seen[-1].end  # only END frees the sequence's slot


async def test_an_agent_that_never_closes_does_not_hold_the_client():
    async def sticky(stream):
        await stream.begin()
        while (frame := await stream.frames.get()) is not None:
            stream.acknowledge(frame)

    agent = FakeAgent(sticky)
    async with dial(agent, QUICK) as call:
        assert await call.hang_up() is None
    assert agent.streams[0].cancelled.is_set()


# --- bounded queues -------------------------------------------------------------------------


async def test_sending_waits_for_room_and_gives_up_in_time():
    agent = FakeAgent()
    async with dial(agent, QUICK, bounds=Bounds(audio_ms=40)) as call:
        agent.streams[0].may_send.clear()
        with pytest.raises(DeadlineExceededError):
            await call.send_audio(b"\0" * 32_000 * 4)
        agent.streams[0].may_send.set()


async def test_offering_drops_the_oldest_audio():
    agent = FakeAgent()
    async with dial(agent, bounds=Bounds(audio_ms=40)) as call:
        dropped = [call.offer_audio(bytes([n, 0]) * 320) for n in range(4)]
        assert dropped == [0, 0, 20, 20]
        assert call.stats.dropped_audio_ms == 40
        await call.hang_up()
    (audio,) = [frame.audio for frame in agent.streams[0].seen if frame.audio]
    assert audio == bytes([2, 0]) * 320 + bytes([3, 0]) * 320


async def test_audio_that_had_to_wait_leaves_in_few_requests():
    agent = FakeAgent()
    async with dial(agent) as call:
        for number in range(10):
            await call.send_audio(bytes([number, 0]) * 512)  # 32 ms
        call.mute()
        await call.send_audio(bytes([10, 0]) * 512)
        await call.hang_up()
    frames = agent.streams[0].seen[1:-1]
    assert [len(frame.audio) // 1024 for frame in frames] == [3, 3, 3, 1, 1]
    assert [bool(frame.message) for frame in frames] == [False] * 4 + [True]
    assert b"".join(frame.audio for frame in frames) == b"".join(bytes([n, 0]) * 512 for n in range(11))


async def test_a_reader_that_never_reads_loses_the_call():
    async def chatty(stream):
        state = protocol.AgentState(state="listening")

        def flood(_frame):
            for _ in range(5):
                stream.say(state)

        await serve(stream, flood)

    async with dial(FakeAgent(chatty), QUICK, bounds=Bounds(events=3)) as call:
        await call.send_audio(b"\0\0")
        assert await call.hang_up() is None
        assert len([await anext(call) for _ in range(3)]) == 3
        with pytest.raises(SlowConsumerError):
            await anext(call)


async def test_a_reader_that_pauses_is_not_blamed_on_the_server(monkeypatch):
    monkeypatch.setattr("parley_client.server_stream._WATCH_INTERVAL_S", 0.01)
    blocked = asyncio.Event()

    async def chatty(stream):
        def flood(frame):
            for _ in range(5):
                stream.say(protocol.AgentState(state="listening"))
            if frame.request_id == "2":
                blocked.set()

        await serve(stream, flood)

    deadlines = Deadlines(acknowledge_s=0.5, consumer_s=5)
    async with dial(FakeAgent(chatty), deadlines, bounds=Bounds(events=3)) as call:
        await call.send_audio(b"\0\0")
        call.mute()
        await blocked.wait()
        await asyncio.sleep(1)  # acknowledged meanwhile, but behind unread events
        for _ in range(11):
            await anext(call)
        assert await call.hang_up() == protocol.Closed(reason="ended")


async def test_leaving_with_unread_events_does_not_block():
    async def chatty(stream):
        def flood(_frame):
            for _ in range(50):
                stream.say(protocol.AgentState(state="listening"))

        await serve(stream, flood)

    async with dial(FakeAgent(chatty), bounds=Bounds(events=3)) as call:
        await call.send_audio(b"\0\0")
    assert call.closed is not None


async def test_audio_is_acknowledged_four_times_a_second_and_messages_always():
    agent = FakeAgent()
    async with dial(agent) as call:
        for _ in range(32):
            await call.send_audio(bytes(1024))  # 32 ms
            await asyncio.sleep(0.001)  # it leaves
        call.mute()
        await call.hang_up()
    start, *audio, message, end = agent.streams[0].seen
    asked = [number for number, frame in enumerate(audio) if frame.acknowledged]
    assert asked == [0, 8, 16, 24]
    assert start.acknowledged
    assert message.acknowledged
    assert end.acknowledged
    assert call.stats.sent == 35
    assert call.stats.acknowledged == 6


async def test_round_trips_are_measured():
    async with dial(FakeAgent()) as call:
        await call.send_audio(b"\0\0")
        await call.hang_up()
    assert len(call.stats.round_trips_ms) == 2  # the first chunk and END; START lasts as long as the call
    assert all(value >= 0 for value in call.stats.round_trips_ms)
    assert len(f"{call.stats}") < 120, "counts, not every single time"


# --- tools ----------------------------------------------------------------------------------


def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


async def test_tool_requests_are_answered_without_a_reader_of_events():
    answered = asyncio.Event()

    async def asks(stream):
        def on_frame(frame):
            if frame.audio:
                stream.say(
                    protocol.ToolRequest(turn=1, call_id="c1", name="add", arguments={"a": 2, "b": "3"})
                )
            if frame.message:
                answered.set()

        await serve(stream, on_frame)

    agent = FakeAgent(asks)
    async with dial(agent, tools=ToolTable([add])) as call:
        await call.send_audio(b"\0\0")
        await answered.wait()
    start, _, answer, _ = agent.streams[0].seen
    assert [tool.name for tool in protocol.decode_message(start.message).tools] == ["add"]
    assert protocol.decode_message(answer.message) == protocol.ToolResponse(call_id="c1", output=5)


async def test_definitions_leave_the_answers_to_the_application():
    async def asks(stream):
        await serve(
            stream,
            lambda frame: (
                stream.say(protocol.ToolRequest(turn=1, call_id="c1", name="add", arguments={}))
                if frame.audio
                else None
            ),
        )

    agent = FakeAgent(asks)
    async with dial(agent, tools=[protocol.Tool(name="add")]) as call:
        await call.send_audio(b"\0\0")
        await anext(call)
        assert (await anext(call)).name == "add"
        call.respond(protocol.ToolResponse(call_id="c1", output={"sum": 5}))
        await call.hang_up()
    assert protocol.decode_message(agent.streams[0].seen[2].message).output == {"sum": 5}


class Asking:
    """Asks for tools as a test says, and notes what it is answered."""

    def __init__(self):
        self.answers = asyncio.Queue()
        self.connected = asyncio.Event()

    async def __call__(self, stream):
        self.stream = stream
        self.connected.set()

        def on_frame(frame):
            if frame.message:
                self.answers.put_nowait(protocol.decode_message(frame.message))

        await serve(stream, on_frame)

    def ask(self, name, call_id="c1", **arguments):
        request = protocol.ToolRequest(turn=1, call_id=call_id, name=name, arguments=arguments)
        self.stream.say(request)

    def cancel(self, call_id="c1"):
        self.stream.say(protocol.ToolCancelled(turn=1, call_id=call_id, reason="interrupted"))

    async def answer(self):
        async with asyncio.timeout(5):
            return await self.answers.get()


async def test_a_cancelled_tool_is_stopped_and_not_answered():
    begun, stopped = asyncio.Event(), asyncio.Event()

    async def slow() -> str:
        """Take for ever."""
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()
        return "late"

    agent = Asking()
    async with dial(FakeAgent(agent), tools=[slow, add]) as call:
        agent.ask("slow")
        await begun.wait()
        agent.cancel()
        agent.cancel("unheard-of")
        await stopped.wait()
        agent.ask("add", "c2", a=1, b=2)
        assert await agent.answer() == protocol.ToolResponse(call_id="c2", output=3)
        await call.hang_up()
        assert agent.answers.empty()
        kinds = [type(event) async for event in call]
    assert kinds.count(protocol.ToolCancelled) == 2  # the application hears of it too


async def test_a_tool_that_waits_for_its_place_can_be_cancelled():
    release = asyncio.Event()

    async def busy() -> str:
        """Hold the only place."""
        await release.wait()
        return "done"

    agent = Asking()
    async with dial(FakeAgent(agent), tools=ToolTable([busy, add], parallel=1)) as call:
        agent.ask("busy")
        agent.ask("add", "c2", a=1, b=2)
        agent.cancel("c2")
        agent.ask("add", "c3", a=2, b=2)
        while not any(isinstance(event, protocol.ToolCancelled) for event in [await anext(call)]):
            pass
        release.set()
        assert {(await agent.answer()).call_id for _ in range(2)} == {"c1", "c3"}


async def test_a_tool_that_ignores_its_cancellation_holds_up_nothing(monkeypatch, caplog):
    monkeypatch.setattr("parley_client.tools.CANCEL_GRACE_S", 0.01)
    begun, release = asyncio.Event(), asyncio.Event()

    async def stubborn() -> str:
        """Go on whatever happens."""
        begun.set()
        while not release.is_set():
            with suppress(asyncio.CancelledError):
                await release.wait()
        raise ValueError("too late")

    agent = Asking()
    try:
        async with dial(FakeAgent(agent), tools=[stubborn, add]) as call:
            agent.ask("stubborn")
            await begun.wait()
            agent.cancel()
            agent.ask("add", "c2", a=1, b=2)
            assert (await agent.answer()).call_id == "c2"
            async with asyncio.timeout(5):
                assert await call.hang_up() == protocol.Closed(reason="ended")
        assert "stubborn goes on although it was cancelled" in caplog.text
        left = asyncio.all_tasks() - {asyncio.current_task()}
    finally:
        release.set()
    assert len(left) == 1
    await asyncio.wait(left)
    assert "stubborn failed after it was cancelled" in caplog.text
    assert agent.answers.empty()


async def test_leaving_stops_the_tools_that_run():
    begun, stopped = asyncio.Event(), asyncio.Event()

    async def slow() -> str:
        """Take for ever."""
        begun.set()
        try:
            return await asyncio.Event().wait()
        finally:
            stopped.set()

    agent = Asking()
    async with dial(FakeAgent(agent), tools=[slow]):
        agent.ask("slow")
        await begun.wait()
    assert stopped.is_set()


async def test_a_tool_that_ends_after_the_hang_up_changes_nothing():
    begun, hung_up, ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow() -> str:
        """Last longer than the call."""
        begun.set()
        await hung_up.wait()
        asyncio.get_running_loop().call_soon(ended.set)
        return "late"

    async def agent(stream):
        await stream.begin()
        stream.say(protocol.ToolRequest(turn=1, call_id="c1", name="slow", arguments={}))
        await stream.wait_for_end()
        hung_up.set()
        await ended.wait()
        await asyncio.sleep(0)
        stream.close()

    async with dial(FakeAgent(agent), tools=[slow]) as call:
        await begun.wait()
        closed = await call.hang_up()
        assert closed is not None
        assert closed.reason == "ended"
        assert [type(event) async for event in call][-1] is protocol.Closed


async def test_a_repeated_request_runs_once():
    runs, release = [], asyncio.Event()

    async def count() -> int:
        """Count the runs."""
        runs.append(1)
        await release.wait()
        return len(runs)

    agent = Asking()
    async with dial(FakeAgent(agent), tools=[count, add]) as call:
        agent.ask("count")
        agent.ask("count")
        agent.ask("add", "c2", a=1, b=1)
        assert (await agent.answer()).call_id == "c2"
        release.set()
        assert await agent.answer() == protocol.ToolResponse(call_id="c1", output=1)
        await call.hang_up()
    assert agent.answers.empty()


async def test_answer_beyond_the_limit_is_reported_and_not_sent():
    def everything() -> str:
        """Say everything."""
        return "x" * protocol.MAX_MESSAGE_BYTES

    def fails() -> str:
        """Fail with many words."""
        raise ValueError("y" * protocol.MAX_MESSAGE_BYTES)

    agent = Asking()
    async with dial(FakeAgent(agent), tools=[everything, fails]):
        await agent.connected.wait()
        agent.ask("everything")
        answer = await agent.answer()
        assert (answer.is_error, "bytes" in answer.output["error"]) == (True, True)
        agent.ask("fails")
        assert (await agent.answer()).output == {"error": "y" * 1000}


def test_functions_and_definitions_do_not_mix():
    with pytest.raises(TypeError):
        connect(tools=[add, protocol.Tool(name="add")])
