"""Items: creation, retrieval, truncation and deletion by the client."""

import base64
import json

import pytest

from parley import protocol


def message(role, text, kind="input_text", **fields):
    return {"item": {"type": "message", "role": role, "content": [{"type": kind, "text": text}], **fields}}


@pytest.mark.parametrize(
    ("role", "kind"), [("user", "input_text"), ("system", "input_text"), ("assistant", "output_text")]
)
def test_texts_are_remembered(session, role, kind):
    session.send("conversation.item.create", **message(role, "hello", kind, id="item_mine"))
    assert session.commands.take() == [("remember", role, "hello")]
    events = session.take()
    assert [event["type"] for event in events] == ["conversation.item.added", "conversation.item.done"]
    assert events[0]["item"]["id"] == "item_mine"
    assert events[0]["item"]["content"] == [{"type": kind, "text": "hello"}]


def test_items_follow_each_other(session):
    session.send("conversation.item.create", previous_item_id="root", **message("user", "one", id="a"))
    session.send("conversation.item.create", previous_item_id="a", **message("user", "two", id="b"))
    added = [event for event in session.take() if event["type"] == "conversation.item.added"]
    assert [event["previous_item_id"] for event in added] == [None, "a"]


@pytest.mark.parametrize(
    ("item", "code"),
    [
        ({"type": "message", "role": "user", "content": [{"type": "input_audio"}]}, "invalid_value"),
        (
            {"type": "message", "role": "user", "content": [{"type": "input_audio", "audio": "=="}]},
            "invalid_value",
        ),
        (
            {"type": "message", "role": "user", "content": [{"type": "input_audio"}] * 5},
            "item_create_too_large",
        ),
        ({"type": "message", "role": "system", "content": [{"type": "input_audio"}]}, "unsupported"),
        ({"type": "message", "role": "user", "content": [{"type": "input_image"}]}, "unsupported"),
        ({"type": "message", "role": "narrator", "content": []}, "invalid_value"),
        ({"type": "mcp_call"}, "unsupported"),
        ({"type": "message", "role": "user", "content": [], "id": "there"}, "item_create_duplicate_item_id"),
    ],
)
def test_unsupported_item_is_refused(session, item, code):
    session.send("conversation.item.create", **message("user", "one", id="there"))
    session.take()
    session.commands.take()
    session.send("conversation.item.create", event_id="e", item=item)
    assert session.error() == (code, "e")
    assert session.commands.take() == []


def test_audio_of_an_item_is_remembered_as_its_words(session):
    audio = base64.b64encode(bytes(2 * 720_000)).decode()  # 30 s: more than any text may have
    content = [{"type": "input_text", "text": "Listen:"}, {"type": "input_audio", "audio": audio}]
    session.send("conversation.item.create", item={"type": "message", "role": "user", "content": content})
    heard = session.one("conversation.item.done")["item"]["content"][1]
    assert heard["type"] == "input_audio"
    assert int(heard["transcript"].split()[0]) == pytest.approx(480_000, rel=0.01)
    assert session.commands.take() == [("remember", "user", f"Listen:\n{heard['transcript']}")]


def test_an_unknown_place_is_refused(session):
    session.send("conversation.item.create", previous_item_id="nowhere", **message("user", "one"))
    assert session.one("error")["error"]["code"] == "item_create_invalid_previous_item_id"


@pytest.mark.parametrize("verb", ["retrieve", "delete", "truncate"])
def test_an_unknown_item_is_refused(session, verb):
    more = {"content_index": 0, "audio_end_ms": 5} if verb == "truncate" else {}
    session.send(f"conversation.item.{verb}", item_id="item_none", **more)
    assert session.one("error")["error"]["code"] == f"item_{verb}_invalid_item_id"


@pytest.fixture
def interrupted(session):
    """A session in which a response was interrupted, and the id of its item."""
    session.user_says("tell me a story")
    session.agent_says("Once upon a time.", ms=2_000)
    session.on_agent(protocol.SpeechStarted(at_ms=5_000))
    session.interrupted(played_ms=1_500)
    item_id = session.one("response.output_item.added")["item"]["id"]
    session.commands.take()
    return session, item_id


@pytest.mark.parametrize(("wanted_ms", "passed_ms"), [(900, 900), (0, 0), (9_999, 2_000)])
def test_a_response_is_truncated_at_the_clients_position(interrupted, wanted_ms, passed_ms):
    session, item_id = interrupted
    session.send("conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=wanted_ms)
    assert session.commands.take() == [("truncate", "r-1", passed_ms)]
    assert session.kinds() == []
    session.on_agent(protocol.Truncated(response_id="r-1", played_ms=passed_ms, spoken_text="Once"))
    assert session.one("conversation.item.truncated")["audio_end_ms"] == passed_ms
    session.send("conversation.item.retrieve", item_id=item_id)
    content = session.one("conversation.item.retrieved")["item"]["content"]
    assert content == [{"type": "output_audio", "transcript": "Once"}]


def test_a_truncation_at_0_before_the_first_audio_stops_the_response(session):
    session.send("response.create")
    session.on_agent(protocol.ResponseText(turn=1, response_id="r-1", text="Romeo"))
    item_id = session.one("response.output_item.added")["item"]["id"]
    session.commands.take()
    session.send("conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=0)
    assert session.commands.take() == [("interrupt", "r-1")]
    assert session.one("conversation.item.truncated")["audio_end_ms"] == 0
    session.interrupted(played_ms=0, text="", reason="client")
    assert session.one("response.done")["response"]["status"] == "cancelled"
    session.send("conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=500)
    assert session.commands.take() == []
    assert session.one("conversation.item.truncated")["audio_end_ms"] == 0


@pytest.mark.parametrize("wrong", [{"audio_end_ms": -1}, {"content_index": 1}])
def test_a_truncation_at_a_place_that_cannot_be_is_refused(interrupted, wrong):
    session, item_id = interrupted
    place = {"content_index": 0, "audio_end_ms": 100} | wrong
    session.send("conversation.item.truncate", event_id="t", item_id=item_id, **place)
    assert session.error("event_id", "param") == ("t", next(iter(wrong)))
    assert session.commands.take() == []


@pytest.mark.parametrize("who", ["user", "written"])
def test_only_audio_of_the_agent_can_be_truncated(make_session, who):
    session = make_session(session={"output_modalities": ["text"]})
    session.user_says("hello")
    item_id = session.one("conversation.item.added")["item"]["id"]
    if who == "written":
        session.on_agent(protocol.ResponseText(turn=1, response_id="r-1", text="Hi."))
        item_id = session.one("response.output_item.added")["item"]["id"]
    session.send("conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=0)
    assert session.error("param") == ("item_id",)


def test_truncate_after_a_call_counts_from_its_own_item(session):
    session.user_says("weather?")
    session.agent_says("Let me see.", ms=800)
    session.agent_calls(("call-1-1", "get_weather"))
    session.wait(2.0)
    item = {"type": "function_call_output", "call_id": "call-1-1", "output": "1"}
    session.send("conversation.item.create", item=item)
    session.send("response.create")
    session.take()
    session.commands.take()
    session.agent_says("It's foggy.", offset_ms=800, ms=1_000)
    item_id = session.one("response.output_item.added")["item"]["id"]
    session.send("conversation.item.truncate", item_id=item_id, content_index=0, audio_end_ms=300)
    assert session.commands.take() == [("truncate", "r-1", 1_100)]


def test_a_response_that_was_not_played_is_deleted(interrupted):
    session, item_id = interrupted
    session.send("conversation.item.delete", item_id=item_id)
    assert session.commands.take() == [("truncate", "r-1", 0)]
    session.on_agent(protocol.Truncated(response_id="r-1", played_ms=0, spoken_text=""))
    assert session.one("conversation.item.deleted")["item_id"] == item_id


def test_an_answer_without_audio_is_deleted_at_once(session):
    session.user_says("hello")
    session.on_agent(protocol.ResponseText(turn=1, response_id="r-1", text="Hel"))
    session.interrupted(played_ms=0, text="")
    item_id = session.one("response.output_item.added")["item"]["id"]
    session.send("conversation.item.delete", item_id=item_id)
    assert session.kinds() == ["conversation.item.deleted"]


def test_items_of_the_user_cannot_be_deleted(session):
    session.user_says("hello")
    item_id = session.one("conversation.item.added")["item"]["id"]
    session.send("conversation.item.delete", item_id=item_id)
    assert session.one("error")["error"]["code"] == "item_delete_unsupported"


def test_a_truncation_that_the_agent_refuses_is_an_error_event(interrupted):
    session, item_id = interrupted
    session.send("conversation.item.truncate", event_id="t", item_id=item_id, content_index=0, audio_end_ms=5)
    session.on_agent(protocol.ErrorEvent(code="session_error", message="too old", retryable=False))
    assert session.error() == ("session_error", "t")


def test_calls_of_an_earlier_conversation_can_be_added(session):
    call = {"type": "function_call", "call_id": "old", "name": "get_weather", "arguments": "{}"}
    session.send("conversation.item.create", item=call)
    answer = {"type": "function_call_output", "call_id": "old", "output": json.dumps({"sky": "foggy"})}
    session.send("conversation.item.create", item=answer)
    note = 'The function get_weather has returned: {"sky": "foggy"}'
    assert session.commands.take() == [("remember", "system", note)]


def test_only_webrtc_has_an_output_buffer(session):
    session.send("output_audio_buffer.clear")
    assert session.one("error")["error"]["code"] == "invalid_event"
