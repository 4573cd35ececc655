"""What OpenAI's protocol has of a session that goes on on another connection."""

from types import SimpleNamespace

import msgspec
import pytest
from openai_session import Session

from parley.chat import ToolCall
from parley.checkpoint import (
    CHECKPOINT_VERSION,
    AgentTurnState,
    HistoryState,
    ResponseProgress,
    RoundState,
    SessionState,
)
from parley.protocol import ResponseDone, ResponseText, SpeechStarted, Tool, TurnDecision
from parley_gateway.apis.realtime.resumption import resume
from parley_gateway.apis.realtime.session_config import SessionConfig
from parley_gateway.apis.sessions.record import SessionClaim, SessionRecord
from parley_gateway.security.principal import ANONYMOUS
from parley_gateway.takeover.errors import NotResumableError

CALL = ToolCall(id="call-1-1", name="get_weather", arguments={})
LET_ME_LOOK = RoundState(text="Let me look.", said=True, calls=[CALL], results={"call-1-1": "rain"})
WEATHER = {"type": "function", "name": "get_weather"}


async def claimed(session, agent=None, progress=None, answers=(), audio_ms=0):
    """The session as the next connection claims it."""
    session.config.body["expires_at"] = 2**40
    record = SessionRecord(
        settings=session.config.start(),
        history=HistoryState(),
        state=SessionState(version=CHECKPOINT_VERSION, turns=1, agent=agent, audio_ms=audio_ms),
        answers=list(answers),
        encoding="pcm16",
        tokens=[],
        api_state=msgspec.Raw(msgspec.json.encode(session.conversation.state())),
        progress=progress,
    )
    claim = SessionClaim(name="sess_1", epoch=2, token="", tokens=[], record=record)

    async def give(*_, is_translated):
        assert is_translated
        return claim

    settings = SimpleNamespace(realtime=SimpleNamespace(voices={}))
    gateway = SimpleNamespace(kept=SimpleNamespace(claim=give), settings=settings)
    return await resume(gateway, ANONYMOUS, "sess_1")


async def come_back(session, *arguments, **state):
    return Session(resumed=await claimed(session, *arguments, **state))


def agent_turn(*rounds):
    return AgentTurnState(turn=1, response_id="r-1", rounds=list(rounds))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"instructions": ""},
        {"instructions": "Be brief.", "tools": [WEATHER], "max_output_tokens": 50},
        {"prompt": {"id": "restaurant"}, "tool_choice": "none"},
        {"prompt": {"id": "restaurant"}, "audio": {"input": {"turn_detection": {"type": "semantic_vad"}}}},
        {"audio": {"input": {"turn_detection": None, "transcription": {"keywords": ["x"]}}}},
        {"output_modalities": ["text"], "tracing": "auto", "model": "other"},
        {"audio": {"output": {"voice": "bella", "format": {"type": "audio/pcmu"}}}},
    ],
)
def test_given_settings_make_an_equal_configuration(settings):
    one, other = (SessionConfig("sess_1", "gpt-realtime", agent="clinic") for _ in range(2))
    one.change(settings)
    other.change(msgspec.json.decode(msgspec.json.encode(one.given())))
    assert other.body == one.body
    assert other.start() == one.start()


@pytest.mark.parametrize("settings", [{"output_modalities": ["video"]}, {"tools": [{"type": "mcp"}]}])
async def test_settings_of_another_version_are_no_session(session, settings):
    session.config.given = lambda: settings
    with pytest.raises(NotResumableError):
        await claimed(session)


async def test_the_users_turn_under_way_keeps_its_item(session):
    session.conversation.push_audio([], 5_000)
    session.on_agent(SpeechStarted(at_ms=1_000))
    item_id = session.one("input_audio_buffer.speech_started")["item_id"]
    after = await come_back(session, audio_ms=2_000)
    assert after.kinds() == ["session.created"]
    after.on_agent(SpeechStarted(at_ms=2_100))
    decision = TurnDecision(utterance=1, decision="commit", reason="waited", text="hello")
    after.on_agent(decision)
    events = after.take()
    assert [event["type"] for event in events[:2]] == [
        "input_audio_buffer.speech_stopped",
        "input_audio_buffer.committed",
    ]
    assert {event["item_id"] for event in events if "item_id" in event} == {item_id}


async def test_a_decision_behind_the_checkpoint_makes_its_item(session):
    session.on_agent(SpeechStarted(at_ms=1_000))
    decision = TurnDecision(utterance=1, decision="commit", reason="waited", text="hello")
    after = await come_back(session, answers=[decision])
    assert after.one("conversation.item.input_audio_transcription.completed")["transcript"] == "hello"


async def test_a_committed_turn_without_its_text_is_completed(session):
    session.conversation.push_audio([], 5_000)
    session.send("input_audio_buffer.commit")
    item_id = session.one("input_audio_buffer.committed")["item_id"]
    after = await come_back(session)
    completed = after.one("conversation.item.input_audio_transcription.completed")
    assert (completed["item_id"], completed["transcript"]) == (item_id, "")


async def test_what_was_said_before_a_call_is_not_said_again(session):
    session.user_says("weather?")
    session.agent_says("Let me look.", ms=400)
    session.agent_calls((CALL.id, CALL.name))
    session.wait(2)
    item = {"type": "function_call_output", "call_id": CALL.id, "output": "rain"}
    session.send("conversation.item.create", item=item)
    session.send("response.create")
    session.agent_says("It rains today.", offset_ms=400, ms=600)
    progress = ResponseProgress(
        response_id="r-1",
        text="Let me look. It rains today.",
        audio_ms=1_000,
        words=[(0, "Let me look."), (400, "It rains today.")],
        played_ms=700,
    )
    agent = agent_turn(LET_ME_LOOK, RoundState(text="It rains today.", said=True))
    resumed = await claimed(session, agent, progress)
    assert resumed.start.resume.state.agent == agent_turn(LET_ME_LOOK)
    known = resumed.start.resume.progress
    assert (known.text, known.audio_ms, known.played_ms) == ("Let me look.", 400, 400)
    assert known.words == [(0, "Let me look.")]


async def test_a_response_of_which_all_has_come_ends_as_it_would_have(speaking):
    speaking.on_agent(ResponseDone(turn=1, response_id="r-1", audio_ms=500))
    created = speaking.conversation.state().responses.active.id
    progress = ResponseProgress(response_id="r-1", text="Once upon a time.", audio_ms=500, done=True)
    resumed = await claimed(speaking, agent_turn(), progress)
    assert resumed.start.resume.progress == progress
    after = Session(resumed=resumed)
    after.agent_finishes()
    done = after.one("response.done")["response"]
    assert (done["id"], done["status"]) == (created, "completed")
    assert done["usage"]["output_tokens"] == 7


async def test_the_response_that_begins_anew_is_a_new_one(speaking):
    created = speaking.conversation.state().responses.active.id
    progress = ResponseProgress(response_id="r-1", text="Once upon a time.", audio_ms=500)
    resumed = await claimed(speaking, agent_turn(), progress)
    assert resumed.start.resume.progress == ResponseProgress(response_id="r-1")
    after = Session(resumed=resumed)
    cut = after.one("response.done")["response"]
    assert (cut["id"], cut["status"], cut["status_details"]["type"]) == (created, "cancelled", "cancelled")
    after.on_agent(ResponseText(turn=1, response_id="r-1", text="Once"))
    again = after.one("response.created")["response"]
    assert again["id"] != created
    assert again["conversation_id"] == cut["conversation_id"]


async def test_a_response_outside_the_conversation_is_cancelled(session):
    session.answers = [None]
    options = {"conversation": "none", "output_modalities": ["text"], "input": [], "metadata": {"a": "b"}}
    session.send("response.create", response=options)
    created = session.one("response.created")["response"]["id"]
    after = await come_back(session)
    await session.conversation.close()
    done = after.one("response.done")["response"]
    assert (done["id"], done["status"], done["metadata"]) == (created, "cancelled", {"a": "b"})
    assert done["conversation_id"] is None


async def test_outputs_that_no_response_was_requested_for_are_sent(with_call):
    item = {"type": "function_call_output", "call_id": CALL.id, "output": "rain"}
    with_call.send("conversation.item.create", item=item)
    with_call.config.change({"tools": [WEATHER]})
    waiting = agent_turn(RoundState(calls=[CALL]))
    after = await come_back(with_call, waiting)
    after.wait(6)
    assert after.commands.take() == [("answer_tool", CALL.id, "rain")]


async def test_outputs_that_were_lost_with_the_gateway_are_sent_again(with_call):
    item = {"type": "function_call_output", "call_id": CALL.id, "output": "rain"}
    with_call.send("conversation.item.create", item=item)
    with_call.send("response.create")
    with_call.config.change({"tools": [WEATHER]})
    after = await come_back(with_call, agent_turn(RoundState(calls=[CALL])))
    assert after.commands.take() == [("answer_tool", CALL.id, "rain")]
    assert "response.function_call_arguments.done" not in after.kinds()
    there = await come_back(with_call, agent_turn(LET_ME_LOOK))
    assert there.commands.take() == []


async def test_items_that_are_kept_are_bounded_and_the_newest(session):
    for number in range(64):
        content = [{"type": "input_text", "text": f"{number} " + "x" * 20_000}]
        item = {"type": "message", "role": "user", "content": content}
        session.send("conversation.item.create", item={**item, "id": f"item_{number}"})
    kept = session.conversation.state().items
    assert sum(item.size for item in kept) <= 262_144
    assert [item.id for item in kept] == [f"item_{number}" for number in range(64 - len(kept), 64)]
    after = await come_back(session)
    after.send("conversation.item.retrieve", item_id="item_63")
    after.one("conversation.item.retrieved")


async def test_a_call_of_an_mcp_server_is_lost_with_its_gateway(session, monkeypatch):
    session.config.mcp_functions = [Tool(name=CALL.name)]
    monkeypatch.setattr(session.conversation._mcp, "call", lambda *_: True)
    session.user_says("weather?")
    session.agent_calls((CALL.id, CALL.name))
    session.wait(0.03)
    waiting = RoundState(text="", said=False, calls=[CALL], results={})
    after = await come_back(session, agent_turn(waiting))
    (answer,) = [call for call in after.commands.take() if call[0] == "answer_tool"]
    assert answer[1] == CALL.id
    assert "may have been carried out" in answer[2]
    assert "response.created" in after.kinds()
