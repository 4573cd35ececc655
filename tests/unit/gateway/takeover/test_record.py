"""What the store has of a session."""

from typing import get_type_hints

from parley.chat import ToolCall
from parley.checkpoint import CHECKPOINT_VERSION, BackgroundCall, HistoryState, SessionState
from parley.protocol import Checkpoint, Start, Tool, ToolRequest
from parley_gateway.apis.sessions.record import SessionClaim, SessionRecord, digest_of, name_in, new_token

NAME = "gateway-0_5e1c07aa-977b-4b0e-8f5e-0123456789ab"


def test_a_record_takes_every_answer_that_a_checkpoint_has():
    assert get_type_hints(SessionRecord)["answers"] == get_type_hints(Checkpoint)["answers"]


def test_a_token_names_its_session_and_is_new_each_time():
    one, other = new_token(NAME), new_token(NAME)
    assert one != other
    assert name_in(one[0]) == NAME
    assert one[1] == digest_of(one[0])
    assert name_in(one[0] + "x") is None


def test_the_client_owes_results_of_its_own_calls_beside_the_conversation():
    background = [
        BackgroundCall(turn=1, call=ToolCall(id=name, name=name, arguments={}), result=result)
        for name, result in (("own", None), ("done", "1"), ("server", None))
    ]
    record = SessionRecord(
        settings=Start(tools=[Tool(name="own"), Tool(name="done")]),
        history=HistoryState(),
        state=SessionState(version=CHECKPOINT_VERSION, turns=3, background=background),
        encoding="pcm16",
        tokens=[],
    )
    claim = SessionClaim(name=NAME, epoch=1, token="", tokens=[], record=record)
    assert claim.waiting_tools() == [ToolRequest(turn=1, call_id="own", name="own", arguments={})]
    assert [one.call.id for one in claim.checkpoint().state.background] == ["own"]
