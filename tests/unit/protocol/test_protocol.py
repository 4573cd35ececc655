"""The wire: what one side writes the other reads, and what it must refuse."""

from __future__ import annotations

import json
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from parley import errors, protocol
from parley.chat import ChatMessage, ToolCall
from parley.checkpoint import (
    CHECKPOINT_VERSION,
    AgentTurnState,
    HistoryState,
    QueuedText,
    RoundState,
    SessionState,
    UserTurnState,
)
from parley.errors import (
    InferenceError,
    InvalidMessageError,
    ParleyError,
    TooManySessionsError,
    from_wire,
)
from parley.protocol import decode_event, decode_message, encode

FULL = [
    protocol.Start(
        system_prompt="Be kind.",
        tools=[
            protocol.Tool(name="add", description="Add.", parameters={"type": "object", "properties": {}})
        ],
        voice="en-us",
        language="de",
        phrases=["Ljubljana"],
        phrase_weight=2.0,
        output_sample_rate=8_000,
        vad=protocol.VadOptions(threshold=0.25, min_speech_ms=64, silence_ms=500),
        turn=protocol.TurnOptions(eagerness="patient", threshold=0.6, limit_ms=4_000),
        barge_in=protocol.BargeInOptions(min_speech_ms=300, min_words=2, pause_playback=False),
        silence=protocol.SilenceOptions(prompt_after_ms=8_000, prompts=["Hello?"], hang_up_after_ms=0),
        sampling=protocol.SamplingOptions(temperature=0.0, top_p=0.9, max_tokens=80),
        greeting="Guten Tag.",
    ),
    protocol.ToolResponse(call_id="c1", output={"euro": [3, None, "drei"]}, is_error=True),
    protocol.Control(action="hangup"),
    protocol.Playback(response_id="r1", played_ms=40),
    protocol.Text(text="zwei Kaffee"),
    protocol.Dtmf(digits="12*#"),
    protocol.Say(text="Moment.", interruptible=False, remember=False),
    protocol.Update(
        system_prompt=None,
        tools=[],
        voice="anna",
        turn=protocol.TurnOptions(detection="manual", answer=False),
    ),
    protocol.Commit(),
    protocol.Discard(),
    protocol.Respond(system_prompt="Sei kurz.", use_tools=False, must_call="stop"),
    protocol.Remember(role="system", text="Es regnet."),
    protocol.Interrupt(response_id="r1"),
    protocol.Truncate(response_id="r1", played_ms=40),
    protocol.Connected(session_id="s", output_sample_rate=48_000),
    protocol.Updated(),
    protocol.SpeechStarted(at_ms=5),
    protocol.SpeechStopped(at_ms=5, detected_at_ms=305),
    protocol.Transcript(
        utterance=2,
        text="grüße “x”",
        is_final=True,
        confidence=0.5,
        words=[protocol.Word(text="grüße", start_ms=1, end_ms=2, confidence=0.5)],
    ),
    protocol.TurnDecision(
        utterance=2,
        decision="wait",
        reason="text_unfinished",
        text="call the",
        probability=0.25,
        cue="determiner",
        cue_words="the",
        silence_ms=310,
        needed_ms=2_000,
    ),
    protocol.AgentState(state="processing"),
    protocol.ResponseText(turn=1, response_id="r1", text="It's\n"),
    protocol.ToolRequest(turn=1, call_id="c1", name="add", arguments={"a": 1.5}),
    protocol.ToolCancelled(turn=1, call_id="c1", reason="interrupted"),
    protocol.ToolProgress(turn=1, call_id="c1", name="add", output={"share": 0.5}),
    protocol.ToolRun(turn=1, call_id="c2", name="add", arguments={"a": 1}, is_error=False, duration_ms=3.5),
    protocol.Audio(turn=1, response_id="r1", offset_ms=0, sample_rate=22_050, samples=3, text="It's"),
    protocol.KnowledgeUsed(
        turn=1,
        response_id="r1",
        sources=[protocol.KnowledgeSource(file="manual.md", heading="Printers > Toner", score=0.75)],
        late=True,
    ),
    protocol.StepChanged(step="order", previous="greeting"),
    protocol.DataCollected(field="name", value="Mike", confirmed=True),
    protocol.Decision(turn=1, name="upset", value="no", probabilities={"yes": 0.25, "no": 0.75}),
    protocol.Paused(turn=1, response_id="r1", at_ms=1_200),
    protocol.Resumed(turn=1, response_id="r1", reason="backchannel", text="mhm"),
    protocol.SpeechIgnored(reason="backchannel", text="mhm"),
    protocol.Interrupted(turn=1, response_id="r1", played_ms=40, spoken_text="It's", reason="command"),
    protocol.Truncated(response_id="r1", played_ms=40, spoken_text="It's"),
    protocol.ResponseDone(turn=1, response_id="r1", audio_ms=900),
    protocol.TurnMetrics(
        turn=1, asr_final_ms=1.5, prompt_tokens=3, interrupted=True, speculations=2, speculated=True
    ),
    protocol.Checkpoint(
        state=SessionState(
            version=CHECKPOINT_VERSION,
            turns=2,
            audio_ms=900,
            user=UserTurnState(text="and", digits="12"),
            agent=AgentTurnState(
                turn=2,
                response_id="r2",
                rounds=[RoundState(calls=[ToolCall(id="c1", name="add", arguments={})], results={"c1": "3"})],
            ),
            queued=[QueuedText(kind="respond")],
        ),
        settings=protocol.Start(language="de"),
        history=HistoryState(messages=[ChatMessage(role="user", content="grüße")], summary="before"),
        settled=True,
    ),
    protocol.GoAway(time_left_ms=5_000),
    protocol.ErrorEvent(code="overloaded", message="full", retryable=True),
    protocol.Closed(reason="silence"),
]
MESSAGES = get_args(protocol.ClientMessage)
EVENTS = get_args(protocol.ServerEvent)


def test_every_kind_is_in_the_examples():
    assert {type(item) for item in FULL} == {*MESSAGES, *EVENTS}


@pytest.mark.parametrize("item", FULL, ids=lambda item: type(item).__name__)
def test_encoded_message_is_decoded_equal(item):
    decode = decode_message if isinstance(item, MESSAGES) else decode_event
    assert decode(encode(item)) == item
    # The type is on the wire, so that neither side has to guess.
    assert json.loads(encode(item))["type"] == type(item).__struct_config__.tag


@given(text=st.text(), data=st.recursive(st.none() | st.integers(-9, 9) | st.text(), st.lists, max_leaves=9))
def test_any_text_survives(text, data):
    response = protocol.ToolResponse(call_id=text, output=data)
    assert decode_message(encode(response)) == response
    event = protocol.ResponseText(turn=0, response_id=text, text=text)
    assert decode_event(encode(event)) == event


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b"{}",
        b'{"type":"dance"}',
        b'{"type":"closed","reason":"ended"}',
        b'{"type":"control","action":"sing"}',
        b'{"type":"control","action":"mute","loud":1}',
        b'{"type":"playback","response_id":"r","played_ms":"x"}',
        b'{"type":"tool_response"}',
        b'{"type":"text"}',
        b'{"type":"dtmf","digits":5}',
        b'{"type":"say","text":"a","loud":true}',
        b'{"type":"start","barge_in":{"min_words":"many"}}',
        b'{"type":"start","silence":{"prompts":"Hello?"}}',
        b'{"type":"start","sampling":{"top_k":5}}',
        b'{"type":"tool_response","call_id":"c","output":' + b"[" * 100_000,
    ],
    ids=lambda raw: raw[:40].decode("latin1"),
)
def test_invalid_message_is_refused_with_its_code(raw):
    with pytest.raises(InvalidMessageError):
        decode_message(raw)


def test_a_language_has_a_size_limit_and_is_not_repeated():
    start = protocol.Start(language="x" * protocol.MAX_LANGUAGE)
    assert decode_message(encode(start)) == start
    with pytest.raises(InvalidMessageError) as caught:
        decode_message(encode(protocol.Start(language="x" * 100_000)))
    assert "length <= 35" in str(caught.value)
    assert len(str(caught.value)) < 200


def test_a_message_has_a_size_limit():
    def padded(size):
        empty = len(encode(protocol.ToolResponse(call_id="", output=0)))
        return encode(protocol.ToolResponse(call_id="x" * (size - empty), output=0))

    assert decode_message(padded(protocol.MAX_MESSAGE_BYTES)).output == 0
    with pytest.raises(InvalidMessageError, match="bytes"):
        decode_message(padded(protocol.MAX_MESSAGE_BYTES + 1))


def test_a_server_is_not_sent_what_is_left_at_its_default():
    start = protocol.encode(protocol.Start(greeting="Hello."))
    assert json.loads(start) == {"type": "start", "greeting": "Hello."}


def test_a_client_ignores_what_a_newer_server_adds():
    raw = msgspec.json.encode({"type": "closed", "reason": "ended", "since": 3})
    assert decode_event(raw) == protocol.Closed(reason="ended")


def test_an_interruption_of_an_older_server_has_a_reason():
    raw = b'{"type":"interrupted","turn":1,"response_id":"r","played_ms":0,"spoken_text":""}'
    assert decode_event(raw).reason == "words"


@pytest.mark.parametrize("raw", [b"", b"{", b'{"type":"start"}', b'{"type":"closed","reason":"bored"}'])
def test_invalid_event_is_refused(raw):
    with pytest.raises(InvalidMessageError):
        decode_event(raw)


def every_error(base=ParleyError):
    yield base
    for sub in base.__subclasses__():
        yield from every_error(sub)


ERRORS = [kind for kind in every_error() if kind.__module__ == errors.__name__]


def test_codes_are_unique():
    codes = [kind.code for kind in ERRORS]
    assert len(set(codes)) == len(codes)


@pytest.mark.parametrize("kind", ERRORS, ids=lambda kind: kind.code)
def test_an_error_crosses_a_model_boundary(kind):
    for prefix in ("", "in ensemble 'x', "):
        back = from_wire(prefix + kind("too: much").to_wire())
        assert (type(back), str(back), back.retryable) == (kind, "too: much", kind.retryable)
    event = protocol.ErrorEvent.of(kind("why"))
    assert event == protocol.ErrorEvent(
        code=kind.code, message="why", retryable=kind.retryable, stage=kind.stage
    )


def test_an_event_carries_when_to_try_again():
    event = protocol.ErrorEvent.of(TooManySessionsError("full", retry_after_s=11.25))
    assert event.retry_after_ms == 11_250
    back = decode_event(protocol.encode(event)).to_error()
    assert (type(back), str(back), back.retry_after_s) == (TooManySessionsError, "full", 11.25)
    older = decode_event(b'{"type":"error","code":"too_many_sessions","message":"full","retryable":true}')
    assert older.to_error().retry_after_s is None


@pytest.mark.parametrize("text", ["", "no code here", "unheard_of: x"])
def test_unknown_words_are_an_inference_error(text):
    back = from_wire(text)
    assert (type(back), str(back)) == (InferenceError, text)


def test_a_checkpoint_of_a_newer_server_is_read():
    state = {"version": CHECKPOINT_VERSION, "novel": 1, "agent": {"turn": 1, "response_id": "r", "novel": 2}}
    raw = json.dumps({"type": "checkpoint", "state": state, "history": {"novel": []}, "novel": 3}).encode()
    event = decode_event(raw)
    assert isinstance(event, protocol.Checkpoint)
    assert event.state.agent == AgentTurnState(turn=1, response_id="r")


def test_owner_with_a_character_that_no_database_takes_is_refused():
    with pytest.raises(errors.ParleyError, match="owner"):
        protocol.decode_start(b'{"type": "start", "owner": "a\\u0000b"}')
