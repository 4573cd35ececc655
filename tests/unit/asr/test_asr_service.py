"""What parakeet_tdt answers to the requests of an execution."""

import json
import time

import numpy as np
import pytest
from asr_fakes import LoudnessModels
from recorded_spans import PARENT, Spans

from parley.asr.checkpoint import Checkpoint, ParakeetConfig
from parley.asr.messages import AsrReply
from parley.asr.parakeet.pipeline import OfflinePipeline
from parley.asr.parakeet.stream import StreamLimits
from parley.asr.service import RecognitionService, SessionTable, StreamRequest
from parley.errors import (
    InferenceError,
    InvalidAudioError,
    InvalidMessageError,
    SessionNotFoundError,
    TooManySessionsError,
    UnsupportedLanguageError,
)
from parley.inference import text_tensor
from parley.triton.model_traces import ModelTraces

CHECKPOINT = Checkpoint(
    None, ParakeetConfig(features_size=8), tuple(f"▁t{number}" for number in range(2000)), blank=1999
)
MS = 16
SPEECH = np.concatenate([np.full(640 * MS, 8000, np.int16), np.zeros(352 * MS, np.int16)])


class Server:
    """A service with a clock in the test's hand."""

    def __init__(self, tracing=None):
        self.now = 0.0
        self.models = LoudnessModels()
        self.sessions = SessionTable(3, 60.0, clock=lambda: self.now)
        self._service = RecognitionService(
            OfflinePipeline(CHECKPOINT, self.models, StreamLimits()),
            self.sessions,
            languages=("en", "de"),
            max_chunk_ms=1000,
            begin_span=ModelTraces("parakeet_tdt", tracing).begin,
        )

    def serve(self, *requests):
        return self._service.serve(requests)

    def sweep(self):
        return self._service.sweep()

    def one(self, *args, **kwargs):
        return self.serve(request(*args, **kwargs))[0]


def request(key="a", audio=None, message=b"{}", *, start=False, end=False):
    samples = np.zeros(0, np.int16) if audio is None else audio
    return StreamRequest(key, start, end, samples.reshape(1, -1), message)


def texts(reply):
    return [event.text for event in reply.events if hasattr(event, "text")]


@pytest.fixture
def server():
    return Server()


def test_a_stream_from_start_to_end(server):
    assert server.one(start=True).stream_ms == 0
    assert texts(server.one(audio=SPEECH)) == ["t96"]
    assert server.one(end=True).stream_ms == 992
    assert len(server.sessions) == 0


def test_the_reply_to_start_has_the_languages(server):
    message = b'{"options":{"language":""}}'
    assert server.one(start=True, message=message).languages == ["en", "de"]
    assert server.one(audio=SPEECH).languages == []


def test_whole_utterance_in_one_request_is_recognised(server):
    message = json.dumps({"flush": True, "options": {"vad": {"threshold": 0.3}}}).encode()
    reply = server.one(audio=SPEECH[: 640 * MS], message=message, start=True, end=True)
    assert texts(reply) == ["t64"]
    assert len(server.sessions) == 0


def test_options_are_read_at_the_start(server):
    server.one(start=True, message=b'{"options":{"words":false,"partial_interval_ms":0}}')
    transcript = server.one(audio=SPEECH).events[-1]
    assert transcript.words == []


def test_start_again_begins_anew(server):
    server.one(start=True)
    server.one(audio=SPEECH[:8000])
    assert server.one(start=True).stream_ms == 0
    assert texts(server.one(audio=SPEECH)) == ["t96"]


def test_an_empty_message_stands_for_the_defaults(server):
    assert server.one(start=True, message=b"").stream_ms == 0
    assert texts(server.one(audio=SPEECH, message=text_tensor("", batched=True))) == ["t96"]


def test_two_requests_in_one_fail_alone(server):
    server.one(start=True)
    both = np.array([[b"{}"], [b"{}"]], np.object_)
    refused, served = server.serve(
        StreamRequest("b", True, True, np.zeros((2, 100), np.int16), both), request(audio=SPEECH)
    )
    assert isinstance(refused, InvalidMessageError)
    assert texts(served) == ["t96"]


@pytest.mark.parametrize(
    "raw",
    [
        b"garbage",
        b"[]",
        b"\xff\xfe",
        b'{"flush":1}',
        b'{"options":{"words":"x"}}',
        b'{"options":{"nbest":17}}',
        b"[" * 10_000,
    ],
)
def test_a_message_that_cannot_be_read_is_refused_and_the_stream_lives_on(server, raw):
    server.one(start=True)
    server.one(audio=SPEECH[:8000])
    assert isinstance(server.one(audio=SPEECH[:100], message=raw), InvalidMessageError)
    assert server.one(audio=SPEECH[:16]).stream_ms == 501


def test_a_bad_start_leaves_no_stream_behind(server):
    server.one(start=True)
    assert isinstance(
        server.one(start=True, message=b'{"options":{"vad":{"threshold":7}}}'), InvalidMessageError
    )
    assert isinstance(
        server.one(start=True, message=b'{"options":{"language":"xx"}}'), UnsupportedLanguageError
    )
    assert isinstance(server.one(audio=SPEECH), SessionNotFoundError)
    assert len(server.sessions) == 0


def test_audio_that_is_too_long_or_of_another_type_is_refused(server):
    server.one(start=True)
    assert isinstance(server.one(audio=np.zeros(1000 * MS + 1, np.int16)), InvalidAudioError)
    assert isinstance(server.one(audio=np.zeros(10, np.float32)), InvalidAudioError)
    assert server.one(audio=np.zeros(1000 * MS, np.int16)).stream_ms == 1000


def test_a_chunk_without_a_start_is_refused(server):
    assert isinstance(server.one(audio=SPEECH), SessionNotFoundError)
    server.one(start=True, end=True)
    assert isinstance(server.one(audio=SPEECH), SessionNotFoundError)


def test_stream_beyond_the_limit_is_refused_until_another_ends(server):
    for key in "abc":
        server.one(key, start=True)
    assert isinstance(server.one("d", start=True), TooManySessionsError)
    assert server.one("a", start=True).stream_ms == 0  # begins anew in its own place
    server.one("a", end=True)
    assert isinstance(server.one("d", start=True), AsrReply)
    assert len(server.sessions) == 3


def test_an_idle_stream_is_freed_and_a_used_one_is_not(server):
    server.one("a", start=True)
    server.one("b", start=True)
    server.now = 50.0
    server.one("b", audio=SPEECH[:10])
    server.now = 70.0
    assert server.sweep() == 1
    assert isinstance(server.one("a"), SessionNotFoundError)
    assert isinstance(server.one("b"), AsrReply)


def test_an_end_frees_the_stream_even_when_it_fails(server):
    server.one(start=True)
    assert isinstance(server.one(message=b"garbage", end=True), InvalidMessageError)
    assert len(server.sessions) == 0
    server.one(start=True)
    server.models.failure = {"detect": InferenceError("out of order")}
    assert isinstance(server.one(audio=SPEECH, end=True), InferenceError)
    assert len(server.sessions) == 0


def test_bad_requests_do_not_touch_the_others_of_their_batch(server):
    server.one("a", start=True)
    server.one("b", start=True)
    first, second, third, fourth = server.serve(
        request("a", SPEECH),
        request("b", SPEECH, b"garbage"),
        request("c", SPEECH),
        request("d", SPEECH, start=True),
    )
    assert texts(first) == texts(fourth) == ["t96"]
    assert isinstance(second, InvalidMessageError)
    assert isinstance(third, SessionNotFoundError)
    assert first.batch == 2


def test_after_a_failed_network_the_same_chunk_is_accepted_again(server):
    server.one(start=True)
    server.models.failure = {"decode": InferenceError("out of order")}
    assert isinstance(server.one(audio=SPEECH), InferenceError)
    server.models.failure = {}
    reply = server.one(audio=SPEECH)
    assert (texts(reply), reply.stream_ms) == (["t96"], 992)


def test_the_decoder_gets_the_phrases_of_each_stream():
    server = Server()
    options = json.dumps({"options": {"phrases": ["t5 t7"], "phrase_weight": 2.0}}).encode()
    server.one("a", SPEECH[: 640 * MS], options, start=True)
    server.one("b", SPEECH[: 640 * MS], start=True)
    server.serve(request("a", SPEECH[640 * MS :]), request("b", SPEECH[640 * MS :]))
    with_phrases, without = server.models.boosting
    assert with_phrases.bonus.tolist() == [2.0, 2.0]
    assert len(without.bonus) == 0


@pytest.mark.parametrize(
    "options", [{"phrases": ["?"]}, {"phrases": ["t5"] * 201}, {"phrases": ["t5"], "phrase_weight": -1}]
)
def test_phrases_that_cannot_be_boosted_are_refused(options):
    refused = Server().one("a", message=json.dumps({"options": options}).encode(), start=True)
    assert isinstance(refused, InvalidMessageError)


def test_a_final_text_is_a_span_and_a_chunk_is_none():
    spans = Spans(clock=time.monotonic)
    server = Server(spans.tracing)
    start = json.dumps({"options": {"traceparent": PARENT}}).encode()
    server.serve(request("a", message=start, start=True), request("b", start=True))
    for _ in range(3):
        server.serve(*(request(key, SPEECH) for key in "ab"))
    server.serve(request("a", np.zeros(16_000, np.int16)), request("b", np.zeros(16_000, np.int16)))
    texts = spans.named("transcribe parakeet_tdt")
    assert texts == list(spans.all())
    assert [span.attributes["parley.utterance"] for span in texts] == list(range(1, len(texts) + 1))
    assert texts
    assert {f"{span.parent.span_id:016x}" for span in texts} == {PARENT.split("-")[2]}
    assert all(span.attributes["parley.audio_ms"] > 0 for span in texts)
