"""Sessions: opening, updates and refusals."""

import asyncio
import json

import pytest
from openai_session import TEXT_TOKENS

from parley import protocol
from parley.errors import NotPermittedError, TooManySessionsError, UnknownAgentError, UnsupportedVoiceError

SERVER_VAD = {
    "type": "server_vad",
    "threshold": 0.6,
    "prefix_padding_ms": 100,
    "silence_duration_ms": 700,
    "idle_timeout_ms": 6_000,
}
TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather.",
    "parameters": {"type": "object", "properties": {}},
}


def test_the_first_update_opens_the_agents_session(make_session):
    session = make_session(
        session={
            "instructions": "Be brief.",
            "tools": [TOOL],
            "max_output_tokens": 200,
            "audio": {
                "input": {"turn_detection": SERVER_VAD, "transcription": {"model": "x", "keywords": ["Ada"]}},
                "output": {"voice": "anna"},
            },
        }
    )
    start = session.commands.start
    tool = protocol.Tool(name="get_weather", description="The weather.", parameters=TOOL["parameters"])
    pauses = dict.fromkeys(("complete_ms", "incomplete_ms", "unfinished_ms", "limit_ms"), 700)
    assert start == protocol.Start(
        system_prompt="Be brief.",
        tools=[tool],
        voice="anna",
        greeting="",
        language="en",
        output_sample_rate=24_000,
        phrases=["Ada"],
        sampling=protocol.SamplingOptions(max_tokens=200),
        silence=protocol.SilenceOptions(prompt_after_ms=6_000),
        vad=protocol.VadOptions(threshold=0.6, silence_ms=200),
        turn=protocol.TurnOptions(eagerness="normal", answer=True, **pauses),
        barge_in=protocol.BargeInOptions(enabled=True, pause_playback=False),
    )


def test_prompt_of_first_update_chooses_agent_with_its_own_options(make_session):
    session = make_session(session={"prompt": {"id": "restaurant"}, "instructions": ""})
    assert session.commands.start == protocol.Start(
        agent="restaurant",
        greeting="",
        output_sample_rate=24_000,
        barge_in=protocol.BargeInOptions(pause_playback=False),
    )
    assert session.config.body["prompt"] == {"id": "restaurant"}


def test_options_that_client_gives_replace_those_of_agent(make_session):
    detection = {"type": "semantic_vad", "eagerness": "low", "interrupt_response": False}
    given = {"instructions": "Be brief.", "audio": {"input": {"turn_detection": detection}}}
    session = make_session(session={"prompt": {"id": "restaurant"}, **given})
    assert session.commands.start == protocol.Start(
        agent="restaurant",
        system_prompt="Be brief.",
        greeting="",
        output_sample_rate=24_000,
        turn=protocol.TurnOptions(eagerness="patient"),
        barge_in=protocol.BargeInOptions(enabled=False, pause_playback=False),
    )


def test_prompt_without_value_returns_to_the_agent_of_the_model(make_session):
    session = make_session(opened=False)
    session.config.model_agent = "clinic"
    session.config.change({"prompt": {"id": "restaurant"}})
    assert session.config.agent == "restaurant"
    session.config.change({"prompt": None})
    assert (session.config.agent, session.config.body["prompt"]) == ("clinic", None)


@pytest.mark.parametrize("error", [UnknownAgentError("no agent 'x'"), NotPermittedError("not yours")])
def test_refused_prompt_is_taken_back_and_can_be_corrected(make_session, error):
    session = make_session(opened=False)
    session.send("session.update", event_id="e1", session={"type": "realtime", "prompt": {"id": "x"}})
    assert session.conversation.on_settings_refused(error)
    assert session.error() == (error.code, "e1")
    session.send("session.update", session={"type": "realtime", "prompt": {"id": "restaurant"}})
    assert (session.commands.opened, session.commands.start.agent) == (2, "restaurant")


@pytest.mark.parametrize(
    ("eagerness", "expected"),
    [("low", "patient"), ("medium", "normal"), ("auto", "normal"), ("high", "eager")],
)
def test_semantic_detection_is_the_agents_own(make_session, eagerness, expected):
    detection = {"type": "semantic_vad", "eagerness": eagerness, "interrupt_response": False}
    session = make_session(session={"audio": {"input": {"turn_detection": detection}}})
    assert session.commands.start.turn == protocol.TurnOptions(eagerness=expected)
    assert not session.commands.start.barge_in.enabled


def test_turns_may_be_left_to_the_client(make_session):
    session = make_session(session={"audio": {"input": {"turn_detection": None}}})
    assert session.commands.start.turn == protocol.TurnOptions(detection="manual", answer=False)


@pytest.mark.parametrize("voice", ["marin", "alloy", {"id": "ash"}])
def test_openais_voices_stand_for_the_default_voice(make_session, voice):
    session = make_session(session={"audio": {"output": {"voice": voice}}})
    assert session.commands.start.voice is None


def test_another_event_opens_the_session_as_well(make_session):
    session = make_session(opened=False)
    assert session.commands.start is None
    session.send("input_audio_buffer.append", audio="AAAA" * 400)
    assert session.commands.start == session.config.start()
    assert session.commands.audio_samples > 0


async def test_an_update_is_answered_when_it_counts(make_session):
    session = make_session(opened=False)
    session.send("session.update", session={"type": "realtime", "instructions": "One."})
    second = {"type": "session.update", "session": {"type": "realtime", "instructions": "Two."}}
    handling = asyncio.create_task(session.conversation.on_client_event(json.dumps(second)))
    await asyncio.sleep(0)
    assert session.kinds() == []
    session.conversation.on_call_opened(TEXT_TOKENS)
    await handling
    assert session.one("session.updated")["session"]["instructions"] == "One."
    assert session.commands.take() == [("update", protocol.Update(system_prompt="Two."))]
    session.on_agent(protocol.Updated())
    echo = session.one("session.updated")["session"]
    assert echo["instructions"] == "Two."
    assert echo["audio"]["input"]["turn_detection"]["interrupt_response"] is True


def test_only_what_has_changed_is_passed_on(session):
    session.send("session.update", session={"type": "realtime", "tools": [TOOL], "tracing": "auto"})
    ((_, update),) = session.commands.take()
    assert [tool.name for tool in update.tools] == ["get_weather"]
    assert update == protocol.Update(tools=update.tools)
    session.on_agent(protocol.Updated())
    session.take()
    session.send("session.update", session={"type": "realtime", "tracing": None})
    assert session.commands.take() == []
    assert session.kinds() == ["session.updated"]


def test_an_update_behind_a_refused_one_stays(session):
    wrong = {"type": "realtime", "audio": {"output": {"voice": "missing"}}}
    session.send("session.update", event_id="wrong", session=wrong)
    session.send("session.update", session={"type": "realtime", "instructions": "Two."})
    session.on_agent(protocol.ErrorEvent(code="unsupported_voice", message="no such voice", retryable=False))
    assert session.error("event_id", "code", "type") == (
        "wrong", "unsupported_voice", "invalid_request_error",
    )  # fmt: skip
    session.on_agent(protocol.Updated())
    echo = session.one("session.updated")["session"]
    assert (echo["instructions"], echo["audio"]["output"]["voice"]) == ("Two.", "alloy")
    session.commands.take()
    session.send("session.update", session={"type": "realtime", "instructions": "Three."})
    assert session.commands.take() == [("update", protocol.Update(system_prompt="Three."))]


def test_the_event_after_a_refused_first_update_opens_the_session(make_session):
    session = make_session(opened=False)
    wrong = {"type": "realtime", "instructions": "One.", "audio": {"output": {"voice": "missing"}}}
    session.send("session.update", event_id="mine", session=wrong)
    assert session.commands.start.voice == "missing"
    assert session.conversation.on_settings_refused(UnsupportedVoiceError("no such voice"))
    assert session.error("event_id", "code") == ("mine", "unsupported_voice")
    session.send("session.update", session={"type": "realtime", "instructions": "Two."})
    assert (session.commands.start.voice, session.commands.start.system_prompt) == (None, "Two.")
    session.conversation.on_call_opened(TEXT_TOKENS)
    assert session.one("session.updated")["session"]["audio"]["output"]["voice"] == "alloy"


def test_a_refused_first_update_with_a_full_queue_opens_the_session_anew(make_session):
    session = make_session(opened=False)
    wrong = {"type": "realtime", "audio": {"output": {"voice": "missing"}}}
    session.send("session.update", event_id="mine", session=wrong)
    session.commands.is_full = True  # the reader waits for room, which only a call makes
    assert session.conversation.on_settings_refused(UnsupportedVoiceError("no such voice"))
    assert (session.commands.opened, session.commands.start.voice) == (2, None)


def test_a_refused_session_without_an_update_cannot_be_corrected(make_session):
    session = make_session(opened=False)
    session.send("input_audio_buffer.clear")
    session.take()
    assert not session.conversation.on_settings_refused(UnsupportedVoiceError("no such voice"))
    assert session.kinds() == []


def test_a_refusal_of_something_else_takes_no_change_back(session):
    session.send("session.update", event_id="mine", session={"type": "realtime", "instructions": "Be brief."})
    session.on_agent(protocol.ErrorEvent(code="unknown_tool_call", message="too late", retryable=False))
    assert session.error("event_id", "code") == (None, "unknown_tool_call")
    session.on_agent(protocol.Updated())
    assert session.one("session.updated")["session"]["instructions"] == "Be brief."
    assert session.config.body["instructions"] == "Be brief."


def nested(levels):
    """Lists in lists."""
    value = []
    for _ in range(levels):
        value = [value]
    return value


def test_moderately_nested_settings_are_accepted(session):
    tool = TOOL | {"parameters": {"type": "object", "default": nested(50)}}
    session.send("session.update", session={"type": "realtime", "tools": [tool]})
    ((_, update),) = session.commands.take()
    assert update.tools[0].parameters["default"] == nested(50)


@pytest.mark.parametrize(
    ("choice", "must_call"), [("required", "*"), ({"type": "function", "name": "get_weather"}, "get_weather")]
)
def test_forced_tool_choice_is_the_agents_until_it_is_changed(session, choice, must_call):
    for wanted, expected in ((choice, must_call), ("auto", "")):
        session.send("session.update", session={"type": "realtime", "tool_choice": wanted})
        ((_, update),) = session.commands.take()
        assert update.must_call == expected


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({"voice": "alloy"}, "unknown_parameter", "session.voice"),
        ({"audio": {"input": {"format": "pcm16"}}}, "invalid_value", "session.audio.input.format"),
        ({"audio": {"output": {"speed": 1.5}}}, "unsupported", "session.audio.output.speed"),
        ({"tools": [{"type": "web_search"}]}, "unsupported", "session.tools[0].type"),
        ({"tools": [{"type": "function"}]}, "missing_required_parameter", "session.tools[0].name"),
        ({"tool_choice": {"type": "mcp", "server_label": "x"}}, "unsupported", "session.tool_choice"),
        ({"tool_choice": {"type": "function"}}, "unsupported", "session.tool_choice"),
        ({"prompt": {"id": "p"}}, "prompt_not_changeable", "session.prompt"),
        ({"prompt": {"id": "p", "version": "2"}}, "unsupported", "session.prompt.version"),
        ({"prompt": {"id": "p", "variables": {"a": "b"}}}, "unsupported", "session.prompt.variables"),
        ({"prompt": {"id": "p" * 64}}, "invalid_value", "session.prompt.id"),
        ({"max_output_tokens": 0}, "invalid_value", "session.max_output_tokens"),
        (
            {"audio": {"input": {"turn_detection": {"type": "server_vad", "threshold": 2}}}},
            "invalid_value",
            "session.audio.input.turn_detection.threshold",
        ),
        ({"type": "transcription"}, "invalid_value", "session.type"),
        ({"tracing": nested(600)}, "invalid_value", "session"),
        ({"tracing": [0] * 20_000}, "invalid_value", "session"),
        ({"tools": [TOOL] * 129}, "invalid_value", "session.tools"),
    ],
)
def test_update_with_an_unsupported_part_is_refused_as_a_whole(session, fields, code, param):
    update = {"type": "realtime", "instructions": "Not taken.", **fields}
    session.send("session.update", event_id="e1", session=update)
    assert session.error("code", "param", "event_id") == (code, param, "e1")
    assert session.config.body["instructions"] == ""
    assert session.commands.take() == []


@pytest.mark.parametrize(
    ("raw", "code", "event_id"),
    [
        ("nothing", "invalid_json", None),
        ('{"type": "response.invent", "event_id": "e"}', "invalid_value", "e"),
        ('{"type": "conversation.item.retrieve", "event_id": "e"}', "missing_required_parameter", "e"),
        ('{"type": "response.cancel", "event_id": 7}', "invalid_value", None),
        ("[" * 5_000, "invalid_value", None),
        ('{"type": "input_audio_buffer.append", "event_id": "e", "audio": "?"}', "invalid_value", "e"),
    ],
)
def test_unreadable_event_gets_an_error(session, raw, code, event_id):
    session.receive(raw)
    assert session.error() == (code, event_id)


def test_a_refused_call_names_the_event_that_wanted_it(make_session):
    session = make_session(opened=False)
    session.send("session.update", event_id="first", session={"type": "realtime"})
    session.conversation.on_call_failed(TooManySessionsError("full"))
    assert session.error() == ("too_many_sessions", "first")
