"""Requests of Triton to a synthesizer, and its answers."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "serving"))

import fake_pb_utils as pb

from parley.errors import OverloadedError
from parley.models.synthesizer import SpeechModel
from parley.runtime.parameters import Parameters
from parley.tts.messages import AbortSpeech, SpeakRequest, SpeechChunk

AUDIO = np.arange(5, dtype=np.int16)


class Synthesizer:
    def __init__(self):
        self.sinks, self.aborted, self.closed = {}, [], 0

    def submit(self, request, sink):
        self.sinks[request.request_id] = sink

    def abort(self, request_id):
        self.aborted.append(request_id)

    def close(self):
        self.closed += 1


class Rig:
    def __init__(self, **options):
        self.synthesizer = Synthesizer()
        self.model = SpeechModel(pb, Parameters("voice", {}, environment={}), self.synthesizer, **options)

    def ask(self, message):
        raw = message if isinstance(message, bytes) else msgspec.json.encode(message)
        request = pb.Request({"REQUEST": np.array([raw], dtype=object)})
        self.model.execute([request])
        return request.sender


def chunk(offset=0):
    return SpeechChunk(sample_rate=24_000, offset=offset)


def test_a_text_that_goes_on_needs_an_id():
    rig = Rig()
    sender = rig.ask(SpeakRequest(text="Hello", final=False))
    assert [entry[0] for entry in sender.sent] == ["error", "final"]
    assert rig.synthesizer.sinks == {}


def test_audio_is_sent_with_its_description_and_then_the_end():
    rig = Rig()
    sender = rig.ask(SpeakRequest(request_id="a", text="Hello."))
    sink = rig.synthesizer.sinks["a"]
    assert sink.wanted
    assert sink.send(chunk(), AUDIO)
    sink.finish()
    kind, tensors = sender.sent[0]
    assert kind == "data"
    assert msgspec.json.decode(tensors["CHUNK"][0], type=SpeechChunk) == chunk()
    np.testing.assert_array_equal(tensors["AUDIO"], AUDIO)
    assert sender.sent[1:] == [("final",)]


@pytest.mark.parametrize(("check_every", "taken"), [(1, [False, False]), (2, [True, False])])
def test_a_caller_that_has_gone_is_noticed(check_every, taken):
    rig = Rig(check_every=check_every)
    sender = rig.ask(SpeakRequest(request_id="a"))
    sink = rig.synthesizer.sinks["a"]
    assert sink.send(chunk(), AUDIO)
    sender.gone = True
    assert [sink.send(chunk(), AUDIO) for _ in range(2)] == taken
    assert not sink.wanted


def test_an_abort_is_passed_on_and_answered():
    rig = Rig()
    assert rig.ask(AbortSpeech(request_id="a")).sent == [("final",)]
    assert rig.synthesizer.aborted == ["a"]


@pytest.mark.parametrize("raw", [b"", b"{", b'{"op": "sing"}', b'{"op": "abort"}', b"[" * 5_000, b"\xff"])
def test_what_cannot_be_read_is_answered(raw):
    sender = Rig().ask(raw)
    assert sender.sent[0][0] == "error"
    assert sender.sent[0][1].startswith("invalid_message")
    assert sender.sent[-1] == ("final",)


def test_requests_without_an_id_get_one_each():
    rig = Rig()
    for _ in range(2):
        rig.ask(b'{"op": "speak", "text": "Hello."}')
    assert len(rig.synthesizer.sinks) == 2
    assert all(rig.synthesizer.sinks)


def test_failures_have_their_code():
    rig = Rig()
    sender = rig.ask(SpeakRequest(request_id="a"))
    rig.synthesizer.sinks["a"].fail(OverloadedError("enough"))
    assert sender.sent[0] == ("error", "overloaded: enough")


def test_closing_closes_the_synthesizer():
    rig = Rig()
    rig.model.close()
    assert rig.synthesizer.closed == 1
