"""What the store has of a session."""

from typing import get_type_hints

from parley.protocol import Checkpoint
from parley_gateway.apis.sessions.record import SessionRecord, digest_of, name_in, new_token

NAME = "gateway-0_5e1c07aa-977b-4b0e-8f5e-0123456789ab"


def test_a_record_takes_every_answer_that_a_checkpoint_has():
    assert get_type_hints(SessionRecord)["answers"] == get_type_hints(Checkpoint)["answers"]


def test_a_token_names_its_session_and_is_new_each_time():
    one, other = new_token(NAME), new_token(NAME)
    assert one != other
    assert name_in(one[0]) == NAME
    assert one[1] == digest_of(one[0])
    assert name_in(one[0] + "x") is None
