"""The client's audio, as it comes in base64."""

import base64
import json

import numpy as np
import pytest
from openai_session import run


def append(audio):
    return json.dumps({"type": "input_audio_buffer.append", "event_id": "e", "audio": audio})


def tone(seconds):
    at = np.arange(24_000 * seconds)
    return (8_000 * np.sin(at * 2 * np.pi * 440 / 24_000)).astype("<i2").tobytes()


def test_others_get_their_turn_while_long_audio_is_read(session):
    turns = run(session.conversation.receive(append(base64.b64encode(tone(60)).decode())))
    assert turns > 60
    assert session.port.audio_samples == pytest.approx(60 * 16_000, abs=300)


def test_long_audio_is_heard_as_if_it_had_come_in_pieces(make_session):
    heard = []
    for step in (len(tone(5)), 4_801):
        session, pieces = make_session(), []
        session.port.audio = pieces.append
        for at in range(0, len(tone(5)), step):
            session.receive(append(base64.b64encode(tone(5)[at : at + step]).decode()))
        heard.append(np.concatenate(pieces))
    whole, in_pieces = heard
    assert whole.shape == in_pieces.shape
    # Resampled in other pieces: a float32 sum near a half may be rounded to the neighbour.
    assert np.abs(whole.astype(int) - in_pieces).max() <= 1


@pytest.mark.parametrize(
    "wrong", ["A" * 200_000 + "?", "A" * 65_534 + "==" + "A" * 65_536, "A" * 70_001, "é" * 8]
)
def test_nothing_is_heard_of_what_is_not_base64(session, wrong):
    session.receive(append(wrong))
    error = session.one("error")["error"]
    assert (error["code"], error["param"], error["event_id"]) == ("invalid_value", "audio", "e")
    assert session.port.audio_samples == 0
