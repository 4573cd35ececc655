"""Sessions whose audio is a telephone's."""

import json

import numpy as np
import pytest
from fake_agent import serve
from listening_gateway import frame_of, receive

from parley import protocol
from parley_gateway.audio.codecs import decode_alaw, decode_ulaw, encode_alaw, encode_ulaw

SPOKEN = np.round(8_000 * np.sin(np.arange(800) / 10)).astype(np.int16)
WORDS = protocol.Audio(turn=1, response_id="r1", offset_ms=0, sample_rate=8_000, samples=800, text="Hello")


async def speaking(stream):
    await serve(stream, lambda frame: frame.audio and stream.say(WORDS, SPOKEN))


@pytest.mark.parametrize(
    ("encoding", "encode", "decode"), [("ulaw", encode_ulaw, decode_ulaw), ("alaw", encode_alaw, decode_alaw)]
)
async def test_g711_goes_both_ways(gateway, encoding, encode, decode):
    one = await gateway(speaking)
    session = await one.create(encoding=encoding, output_sample_rate=24_000)
    async with one.stream(session) as socket:
        connected = json.loads(await socket.recv())
        await socket.send(encode(SPOKEN))
        audio = await receive(socket, "audio")
        heard = decode(await socket.recv())
    assert connected["encoding"] == encoding
    assert connected["input_sample_rate"] == 8_000
    started = await frame_of(one.agents[0], lambda frame: frame.start)
    assert protocol.decode_message(started.message).output_sample_rate == 8_000
    assert audio["samples"] == len(heard) == 800
    assert np.abs(heard.astype(int) - SPOKEN).max() < 300
    sent = np.frombuffer((await frame_of(one.agents[0], lambda frame: frame.audio)).audio, "<i2")
    # The agent hears the same, of 16 kHz and 2 ms later.
    assert len(sent) == 1_600
    assert np.abs(sent[133::2][:700].astype(int) - SPOKEN[50:750]).max() < 2_500


async def test_other_encodings_are_refused(gateway):
    one = await gateway()
    answer = await one.http.post("/v1/sessions", json={"encoding": "opus"})
    assert answer.status_code == 400
    assert answer.json()["error"]["code"] == "invalid_message"
