"""Responses: the events of the agent's turns, and their order."""

import base64
import json

import numpy as np
import pytest
from openai_session import audio

from parley import protocol

TEXT = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]}


def without_deltas(session):
    return [kind for kind in session.kinds() if not kind.endswith(".delta")]


def output(call_id, value):
    return {"item": {"type": "function_call_output", "call_id": call_id, "output": json.dumps(value)}}


def test_a_response_has_openais_order_of_events(session):
    session.user_says("hello")
    session.take()
    session.agent_says("Hello! ")
    session.agent_says("How are you?", offset_ms=500)
    session.agent_finishes()
    events = session.take()
    assert [event["type"] for event in events] == [
        "response.created",
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        "response.output_audio_transcript.delta",
        "response.output_audio.delta",
        "response.output_audio_transcript.delta",
        "response.output_audio.delta",
        "response.output_audio.done",
        "response.output_audio_transcript.done",
        "response.content_part.done",
        "conversation.item.done",
        "response.output_item.done",
        "response.done",
    ]
    response = events[-1]["response"]
    assert response["status"] == "completed"
    assert response["output"][0]["content"] == [{"type": "output_audio", "transcript": "Hello! How are you?"}]
    usage = response["usage"]
    assert [usage[f"{kind}_tokens"] for kind in ("input", "output", "total")] == [30, 7, 37]
    assert usage["input_token_details"]["cached_tokens"] == 20
    sent = b"".join(base64.b64decode(event["delta"]) for event in events if "audio.delta" in event["type"])
    assert len(sent) == 48_000
    assert np.all(np.frombuffer(sent, "<i2") == 1_000)
    assert len({event["response_id"] for event in events if "response_id" in event}) == 1


def test_response_that_reaches_max_output_tokens_is_incomplete(session):
    session.user_says("hello")
    session.agent_says("Hello! How")
    session.on_agent(
        protocol.ResponseDone(turn=1, response_id="r-1", audio_ms=500, finish_reason="length"),
        protocol.TurnMetrics(turn=1, prompt_tokens=30, completion_tokens=5),
    )
    events = session.take()
    response = events[-1]["response"]
    assert (response["status"], response["output"][0]["status"]) == ("incomplete", "incomplete")
    assert response["status_details"] == {"type": "incomplete", "reason": "max_output_tokens"}
    assert response["usage"]["output_tokens"] == 5
    sent = b"".join(base64.b64decode(event["delta"]) for event in events if "audio.delta" in event["type"])
    assert len(sent) == 24_000


def test_the_wait_for_usage_is_bounded(session):
    session.user_says("hello")
    session.agent_says("Hello!")
    session.on_agent(protocol.ResponseDone(turn=1, response_id="r-1", audio_ms=500))
    session.take()
    session.wait(5.1)
    assert session.one("response.done")["response"]["usage"] is None


def test_an_interrupted_answer_is_cancelled(speaking):
    speaking.on_agent(protocol.SpeechStarted(at_ms=5_000))
    speaking.interrupted(text="Once")
    speaking.on_agent(protocol.ResponseText(turn=1, response_id="r-1", text="too late"))
    events = speaking.take()
    response = events[-1]["response"]
    assert events[-1]["type"] == "response.done"
    assert response["status"] == "cancelled"
    assert response["status_details"] == {"type": "cancelled", "reason": "turn_detected"}
    assert response["output"][0]["status"] == "incomplete"
    assert response["usage"]["output_tokens"] == 7


def test_the_client_cancels_an_answer(speaking):
    speaking.send("response.cancel")
    assert speaking.commands.take() == [("interrupt", "r-1")]
    speaking.interrupted(reason="client")
    response = speaking.one("response.done")["response"]
    assert response["status_details"] == {"type": "cancelled", "reason": "client_cancelled"}
    speaking.send("response.cancel", event_id="late")
    code, event_id, message = speaking.error("code", "event_id", "message")
    assert (code, event_id) == ("response_cancel_not_active", "late")
    assert message.startswith("Cancellation failed"), "as clients match it"


def test_a_response_that_is_cancelled_before_it_begins_sends_no_content(session):
    session.send("response.create")
    session.send("response.cancel")
    assert session.commands.take() == [("respond", None, True, None), ("interrupt", None)]
    assert without_deltas(session) == ["response.created", "response.done"]
    session.agent_says("Hello!")
    session.interrupted(reason="client")
    assert session.kinds() == []
    session.user_says("hello")
    session.agent_says("Hello!", turn=2)
    assert "response.created" in session.kinds()


def check_answered(session, turn):
    """The agent's turn is the response that the client has requested, whole and with its metadata."""
    session.agent_says("Tokyo.", turn=turn)
    session.agent_finishes(turn=turn)
    response = session.one("response.done")["response"]
    assert (response["status"], response["metadata"]) == ("completed", {"of": "second"})
    assert response["output"][0]["content"][0]["transcript"] == "Tokyo."


def create_second(session):
    session.send("conversation.item.create", item=TEXT)
    session.send("response.create", response={"metadata": {"of": "second"}})
    created = session.take()
    assert [event["type"] for event in created if "response" in event][-1] == "response.created"


def test_a_response_that_follows_a_cancellation_of_speech_gets_the_answer(speaking):
    speaking.send("response.cancel")
    create_second(speaking)
    late = [audio(1, offset_ms=500), protocol.ResponseText(turn=1, response_id="r-1", text=" More.")]
    speaking.on_agent(*late)
    speaking.interrupted(reason="client")
    assert speaking.kinds() == []
    check_answered(speaking, 2)


def test_a_response_that_follows_a_cancellation_of_text_gets_the_answer(session):
    session.send("response.create")
    session.send("response.cancel")
    create_second(session)
    session.on_agent(protocol.ResponseText(turn=1, response_id="r-1", text="How"))
    session.interrupted(turn=1, reason="client")
    assert session.kinds() == []
    check_answered(session, 2)


def test_each_of_three_cancelled_requests_leaves_the_last_its_answer(session):
    for _ in range(3):
        session.send("response.create")
        session.send("response.cancel")
    create_second(session)
    for turn in (1, 2, 3):
        session.interrupted(turn=turn, reason="client")
    assert session.kinds() == []
    check_answered(session, 4)


def test_a_response_that_follows_a_truncation_of_the_last_one_gets_the_answer(session):
    session.user_says("tell me a story")
    session.agent_says("Once upon a time.")
    item_id = session.one("response.output_item.added")["item"]["id"]
    session.on_agent(protocol.ResponseDone(turn=1, response_id="r-1", audio_ms=500))
    session.send("conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=100)
    create_second(session)
    session.interrupted(reason="client")
    session.on_agent(protocol.Truncated(response_id="r-1", played_ms=100, spoken_text="Once"))
    assert session.kinds() == ["conversation.item.truncated"]
    check_answered(session, 2)


def test_requested_response_interrupted_before_its_content_is_cancelled(session):
    session.send("response.create")
    session.take()
    session.interrupted(turn=1, reason="words", text="")
    response = session.one("response.done")["response"]
    assert response["status_details"] == {"type": "cancelled", "reason": "turn_detected"}
    session.agent_says("Tokyo.", turn=2)
    assert "response.created" in session.kinds()


def test_a_requested_response_outlives_an_interruption_of_the_turn_before(session):
    session.user_says("tell me a story")
    session.agent_says("Once upon a time.")
    session.on_agent(protocol.ResponseDone(turn=1, response_id="r-1", audio_ms=500))
    create_second(session)
    session.interrupted(turn=1, reason="words")
    assert "response.done" not in session.kinds()
    check_answered(session, 2)


def test_second_response_create_is_refused(session):
    session.send("response.create")
    session.send("response.create", event_id="second")
    assert session.error() == ("conversation_already_has_active_response", "second")


def test_an_answer_that_was_said_is_over(session):
    session.user_says("hello")
    session.agent_says("Hello!")
    session.on_agent(protocol.ResponseDone(turn=1, response_id="r-1", audio_ms=500))
    session.take()
    session.send("response.create")
    assert without_deltas(session) == ["response.done", "response.created"]


def test_the_client_asks_for_an_answer(session):
    session.send("conversation.item.create", item=TEXT)
    session.send("response.create", response={"metadata": {"a": "b"}, "tool_choice": "none"})
    assert session.commands.take() == [("remember", "user", "hello"), ("respond", None, False, "")]
    session.agent_says("Hello!")
    session.agent_finishes()
    assert session.one("response.done")["response"]["metadata"] == {"a": "b"}


@pytest.mark.parametrize(
    ("choice", "must_call"),
    [
        ("required", "*"),
        ({"type": "function", "name": "get_weather"}, "get_weather"),
        ("auto", ""),
        (None, None),
    ],
)
def test_the_client_forces_a_function_call(session, choice, must_call):
    session.send("response.create", response={"tool_choice": choice})
    assert session.commands.take() == [("respond", None, True, must_call)]


def test_forced_call_behind_the_output_of_a_function_is_refused(session):
    session.user_says("hello")
    session.agent_calls(("call-1-1", "get_weather"))
    session.wait(0.1)
    session.send("conversation.item.create", **output("call-1-1", {}))
    session.take()
    session.send("response.create", response={"tool_choice": "required"})
    assert session.error("code", "param") == ("unsupported", "response.tool_choice")
    session.send("response.create", response={"tool_choice": "auto"})
    assert session.one("response.created")


@pytest.mark.parametrize("sound", ["alloy", ["alloy"], 7])
def test_the_audio_of_an_answer_is_an_object(session, sound):
    session.send("response.create", event_id="e", response={"audio": {"output": sound}})
    assert session.error("code", "param", "event_id") == ("invalid_value", "response.audio.output", "e")


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"conversation": "conv_1"}, "response.conversation"),
        ({"input": []}, "response.input"),
        ({"tools": [{"type": "function", "name": "x"}]}, "response.tools"),
        ({"tool_choice": {"type": "mcp", "server_label": "x"}}, "response.tool_choice"),
        ({"output_modalities": ["text"]}, "response.output_modalities"),
        ({"max_output_tokens": 10}, "response.max_output_tokens"),
        ({"audio": {"output": {"voice": "missing"}}}, "response.audio.output"),
    ],
)
def test_unsupported_options_of_a_response_are_refused(session, options, param):
    session.send("response.create", response=options)
    assert session.error("code", "param") == ("unsupported", param)
    assert session.commands.take() == []


def test_a_failed_answer_says_why(session):
    session.user_says("hello")
    session.on_agent(
        protocol.ResponseText(turn=1, response_id="r-1", text="Sorry."),
        protocol.ErrorEvent(code="model_unavailable", message="gone", retryable=True),
    )
    session.agent_finishes()
    response = session.one("response.done")["response"]
    assert response["status"] == "failed"
    assert response["status_details"]["error"]["code"] == "model_unavailable"


def test_a_failure_outside_of_a_response_is_an_error_event(session):
    session.on_agent(protocol.ErrorEvent(code="inference_failed", message="deaf", retryable=True))
    assert session.error("code", "type") == ("inference_failed", "server_error")


def test_a_fallback_is_no_error_event(session):
    session.on_agent(protocol.ErrorEvent(code="tts_fallback", message="another voice", retryable=False))
    assert session.kinds() == []


# --- functions -----------------------------------------------------------------------------------


def test_calls_end_a_response_and_the_next_one_goes_on(session):
    session.user_says("weather?")
    session.take()
    session.agent_calls(("call-1-1", "get_weather"))
    assert without_deltas(session) == [
        "response.created",
        "response.output_item.added",
        "conversation.item.added",
        "response.function_call_arguments.done",
        "conversation.item.done",
        "response.output_item.done",
    ]
    session.wait(0.03)
    response = session.one("response.done")["response"]
    assert response["status"] == "completed"
    call = response["output"][0]
    assert (call["type"], call["name"], call["call_id"]) == ("function_call", "get_weather", "call-1-1")
    assert json.loads(call["arguments"]) == {"city": "Paris"}

    session.send("conversation.item.create", **output("call-1-1", {"sky": "foggy"}))
    assert session.commands.take() == []
    session.send("response.create")
    assert session.commands.take() == [("answer_tool", "call-1-1", '{"sky": "foggy"}')]
    session.take()
    session.agent_says("It's foggy.", offset_ms=0)
    session.agent_finishes()
    assert session.one("response.done")["response"]["output"][0]["content"][0]["transcript"] == "It's foggy."


def test_all_outputs_are_waited_for(session):
    session.user_says("weather?")
    session.agent_calls(("call-1-1", "get_weather"), ("call-1-2", "get_time"))
    session.wait(0.03)
    response = session.one("response.done")["response"]
    assert [call["name"] for call in response["output"]] == ["get_weather", "get_time"]
    session.send("conversation.item.create", **output("call-1-2", 2))
    session.send("response.create")
    assert session.commands.take() == []
    session.send("conversation.item.create", **output("call-1-1", 1))
    assert session.commands.take() == [("answer_tool", "call-1-1", "1"), ("answer_tool", "call-1-2", "2")]


def test_text_before_a_call_is_spoken_to_its_end(session):
    session.user_says("weather?")
    session.on_agent(protocol.ResponseText(turn=1, response_id="r-1", text="Let me see."))
    session.agent_calls(("call-1-1", "get_weather"))
    session.wait(1.0)
    session.agent_says("", offset_ms=0)
    session.on_agent(audio(1, offset_ms=500, text="Let me see."))
    session.wait(0.2)
    assert "response.done" not in session.kinds()
    session.wait(0.2)
    assert session.one("response.done")["response"]["output"][1]["type"] == "function_call"


def test_a_filler_while_functions_run_is_not_sent(with_call):
    with_call.take()
    with_call.agent_says("One moment.")
    assert with_call.kinds() == []


def test_a_function_that_takes_too_long_is_answered_without(with_call):
    with_call.on_agent(protocol.ToolCancelled(turn=1, call_id="call-1-1", reason="timeout"))
    with_call.take()
    with_call.agent_says("I cannot say.")
    assert "response.created" in with_call.kinds()
    with_call.send("conversation.item.create", **output("call-1-1", {"sky": "foggy"}))
    note = 'The function get_weather has returned: {"sky": "foggy"}'
    assert with_call.commands.take() == [("remember", "system", note)]
    assert "error" not in with_call.kinds()


def test_outputs_without_a_request_reach_the_agent_silently(session):
    session.user_says("play music")
    session.agent_calls(("call-1-1", "play"))
    session.wait(0.03)
    session.send("conversation.item.create", **output("call-1-1", {"ok": True}))
    session.wait(4.9)
    assert session.commands.take() == []
    session.wait(0.2)
    assert session.commands.take() == [("answer_tool", "call-1-1", '{"ok": true}')]
    session.wait(0.2)
    assert session.commands.take() == [("interrupt", None)]
    session.take()
    session.agent_says("It plays.")
    session.interrupted(reason="client", text="")
    assert session.kinds() == []
    session.send("response.create")
    assert session.commands.take() == [("respond", None, True, None)]
    session.agent_says("It plays.", turn=2)
    session.agent_finishes(turn=2)
    assert session.one("response.done")["response"]["status"] == "completed"


@pytest.mark.parametrize("text", ["[" * 900 + "]" * 900, '"\\ud800"', '{"sky": '])
def test_an_output_is_passed_on_as_it_is(session, text):
    session.user_says("weather?")
    session.agent_calls(("call-1-1", "get_weather"))
    item = {"type": "function_call_output", "call_id": "call-1-1", "output": text}
    session.send("conversation.item.create", item=item)
    session.wait(0.03)
    session.send("response.create")
    assert session.commands.take() == [("answer_tool", "call-1-1", text)]


def test_an_output_that_an_interruption_overtakes_is_remembered(with_call):
    with_call.send("conversation.item.create", **output("call-1-1", {"sky": "foggy"}))
    with_call.on_agent(protocol.ToolCancelled(turn=1, call_id="call-1-1", reason="interrupted"))
    with_call.interrupted()
    assert [command[:2] for command in with_call.commands.take()] == [("remember", "system")]
    with_call.wait(10)
    assert with_call.commands.take() == []


def test_an_output_that_crosses_the_cancellation_is_remembered(with_call):
    """The agent has cancelled the call before it got the output, and drops it."""
    with_call.send("conversation.item.create", **output("call-1-1", {"sky": "foggy"}))
    with_call.send("response.create")
    assert with_call.commands.take() == [("answer_tool", "call-1-1", '{"sky": "foggy"}')]
    for _ in range(2):
        with_call.on_agent(protocol.ToolCancelled(turn=1, call_id="call-1-1", reason="interrupted"))
        with_call.interrupted()
    note = 'The function get_weather has returned: {"sky": "foggy"}'
    assert with_call.commands.take() == [("remember", "system", note)]
    assert "error" not in with_call.kinds()


def test_only_the_outputs_of_the_last_round_are_kept(session):
    for turn in (1, 2, 3):
        session.user_says("weather?")
        calls = [(f"call-{turn}-{number}", "get_weather") for number in (1, 2)]
        session.agent_calls(*calls, turn=turn)
        session.wait(0.03)
        for call_id, _ in calls:
            session.send("conversation.item.create", **output(call_id, turn))
        session.send("response.create")
        session.agent_says("Foggy.", turn=turn)
        session.agent_finishes(turn=turn)
    assert len([one for one in session.commands.take() if one[0] == "answer_tool"]) == 6
    calls = session.conversation._responses.calls
    assert [one.request.call_id for one in calls._sent.values()] == ["call-3-1", "call-3-2"]


def test_an_output_without_a_call_is_refused(session):
    session.send("conversation.item.create", event_id="e", **output("call-9", 1))
    assert session.error() == ("invalid_tool_call_id", "e")


# --- text ----------------------------------------------------------------------------------------


def test_answers_may_be_written(make_session):
    session = make_session(session={"output_modalities": ["text"]})
    assert session.commands.start.output == "text"
    session.send("response.create", response={"output_modalities": ["text"]})
    session.take()
    session.on_agent(protocol.ResponseText(turn=1, response_id="r-1", text="Hello!"))
    session.agent_finishes(audio_ms=0)
    events = session.take()
    assert [event["type"] for event in events] == [
        "response.output_item.added",
        "conversation.item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "conversation.item.done",
        "response.output_item.done",
        "response.done",
    ]
    assert events[-1]["response"]["output"][0]["content"] == [{"type": "output_text", "text": "Hello!"}]


def test_a_client_may_continue_at_the_events_of_the_calls(session):
    session.user_says("weather?")
    session.agent_calls(("call-1-1", "get_weather"))
    session.send("conversation.item.create", **output("call-1-1", {"sky": "foggy"}))
    session.take()
    session.send("response.create")
    assert without_deltas(session) == ["response.done", "response.created"]
    assert session.commands.take() == [("answer_tool", "call-1-1", '{"sky": "foggy"}')]
