"""Open calls and the voices of other callers."""

import json
from dataclasses import replace

import pytest
from listening_gateway import receive

from parley_gateway.security.principal import ANONYMOUS, Principal
from parley_gateway.voice_owners import may_use, prefix_of

ANN = Principal(id="ann", scopes=frozenset({"agent"}))
BEN = Principal(id="ben", scopes=frozenset({"agent"}))


@pytest.mark.parametrize(
    ("voice", "principal", "may"),
    [
        ("joe", ANN, True),
        ("vera", ANN, True),
        ("{ann}1234", ANN, True),
        ("{ann}1234", BEN, False),
        ("chatterbox/{ann}1234", ANN, True),
        ("chatterbox/{ann}1234", BEN, False),
        ("{ann}1234", replace(ANONYMOUS, address="192.0.2.1"), False),
        ("{ann}1234", replace(BEN, kind="signature"), True),
    ],
)
def test_a_voice_is_for_its_owner_and_other_names_are_for_all(voice, principal, may):
    assert may_use(voice.format(ann=prefix_of(ANN)), principal) == may


async def test_update_to_the_voice_of_another_caller_is_refused(gateway):
    one = await gateway()
    foreign = f"{prefix_of(ANN)}1234"
    async with one.stream() as socket:
        await receive(socket, "connected")
        await socket.send(json.dumps({"type": "update", "voice": foreign}))
        refusal = await receive(socket, "error")
        await socket.send(json.dumps({"type": "text", "text": "hi"}))
    assert (refusal["code"], refusal["retryable"]) == ("unsupported_voice", False)
    assert not any(b"update" in frame.message for frame in one.agents[0].streams[0].seen if frame.message)
