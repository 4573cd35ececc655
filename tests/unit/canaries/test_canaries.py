"""What each model has to answer its canary, and what becomes of one that does not."""

from __future__ import annotations

import grpc
import msgspec
import numpy as np
import pytest
from fake_triton import FakeTriton, Servers, outputs

from parley.asr.messages import AsrReply, TranscribeReply
from parley.canaries import connection
from parley.canaries.asking import ask_canaries, call_canaries, profile_models
from parley.canaries.connection import ChannelPool
from parley.canaries.models import CANARIES, CanaryError, CanaryLateError, called_models
from parley.embeddings.messages import EmbeddingSpace, EmbedReply
from parley.errors import (
    DeadlineExceededError,
    OverloadedError,
    TooManySessionsError,
    WeightsNotFoundError,
)
from parley.launcher.options import ROOT
from parley.llm.messages import Completed, TextDelta
from parley.protocol import CANARY_PREFIX, Closed, Connected, ErrorEvent, encode
from parley.tts.messages import SpeechChunk
from parley.tts.voice_messages import VoicesReply
from parley_torch.tts.s3gen.messages import AudioChunk
from parley_torch.tts.t3.messages import TokensCompleted, TokensDrawn

DEADLINE_S = 10.0
NAN = np.float32(np.nan)


def floats(*shape, value=0.0):
    return np.full(shape, value, np.float32)


def audio(*values):
    return np.array(values, np.int16)


def integers(*values):
    return np.array([values], np.int32)


def encoded(values=None, length=2):
    values = floats(1, 4, 2) if values is None else values
    return [outputs(ENCODED=values, ENCODED_LENGTH=np.array([[length]], np.int64))]


def decoded(count=0, confidence=0.0):
    return [
        outputs(
            TOKENS=integers(-1),
            CONFIDENCES=floats(1, 1, value=confidence),
            TOKEN_COUNT=integers(count),
        )
    ]


def featured(length=1, duration_ms=100):
    return [
        outputs(
            FEATURES=floats(1, 80, 1),
            LENGTH=np.array([[length]], np.int64),
            SPAN=np.array([[duration_ms, 0, -1]], np.int64),
        )
    ]


def generated(*events):
    return [outputs(EVENT=event) for event in events]


def spoken(*samples):
    return [outputs(CHUNK=SpeechChunk(sample_rate=22_050, offset=0), AUDIO=audio(*samples))]


def sounded(*samples, final=True):
    chunk = AudioChunk(sample_rate=24_000, offset=0, start_ms=0, end_ms=80, final=final)
    return [outputs(CHUNK=chunk, AUDIO=audio(*samples))]


def drawn(*tokens, count=1):
    return [
        outputs(EVENT=TokensDrawn(offset=0), TOKENS=np.array(tokens, np.int32)),
        outputs(
            EVENT=TokensCompleted(finish_reason="length", generated_tokens=count),
            TOKENS=np.array([], np.int32),
        ),
    ]


def said(*events):
    return [outputs(EVENT=encode(event)) for event in events]


CONNECTED = Connected(session_id="canary", output_sample_rate=22_050)
CLOSED = Closed(reason="ended")
DONE = Completed(finish_reason="length", completion_tokens=1)
SPACE = EmbeddingSpace(fingerprint="f", dimensions=2, max_tokens=8)


def embedded(value):
    reply = EmbedReply(space=SPACE, tokens=3, is_truncated=False)
    return [outputs(EMBEDDING=floats(1, 2, value=value), REPLY=reply)]


RIGHT = {
    "embeddings": embedded(0.5**0.5),
    "speaker_embedding": [outputs(EMBEDDING=floats(1, 4, value=0.5))],
    "smart_turn": [outputs(PROBABILITY=floats(1, 1, value=0.4))],
    "parakeet_encoder": encoded(),
    "parakeet_decoder": decoded(),
    "parakeet_transcribe": [outputs(REPLY=TranscribeReply(text="", duration_ms=100))],
    "parakeet_features": featured(),
    "parakeet_text": [outputs(REPLY=TranscribeReply(text="", duration_ms=100))],
    "parakeet_ensemble": [outputs(REPLY=TranscribeReply(text="", duration_ms=100))],
    "parakeet_tdt": [outputs(REPLY=AsrReply(stream_ms=32))],
    "nemotron_streaming": [outputs(REPLY=AsrReply(stream_ms=32))],
    "moonshine": [outputs(REPLY=AsrReply(stream_ms=32))],
    "moonshine_transcribe": [outputs(REPLY=TranscribeReply(text="", duration_ms=100))],
    "whisper": [outputs(REPLY=AsrReply(stream_ms=32))],
    "whisper_transcribe": [outputs(REPLY=TranscribeReply(text="", duration_ms=100))],
    "sherpa_onnx": [outputs(REPLY=AsrReply(stream_ms=32))],
    "sherpa_onnx_transcribe": [outputs(REPLY=TranscribeReply(text="", duration_ms=100))],
    "espeak": spoken(0, 5, -3),
    "piper": [],
    "hibari": [],
    "kokoro": [],
    "qwen3": generated(TextDelta(text="Hi"), DONE),
    "t3": drawn(6_560),
    "s3gen": sounded(0, 0, 0),
    "voice_enrollment": [outputs(REPLY=VoicesReply())],
    "chatterbox": [],
    "voice_agent": said(CONNECTED, CLOSED),
}
WRONG = {
    "not of length 1": ("embeddings", embedded(0.5)),
    "not a number": ("embeddings", embedded(NAN)),
    "above 1": ("smart_turn", [outputs(PROBABILITY=floats(1, 1, value=1.5))]),
    "nothing": ("smart_turn", [outputs()]),
    "not finite": ("parakeet_encoder", encoded(floats(1, 4, 2, value=np.inf))),
    "empty": ("parakeet_encoder", encoded(floats(1, 4, 0))),
    "too long": ("parakeet_encoder", encoded(length=3)),
    "too many tokens": ("parakeet_decoder", decoded(count=2)),
    "confidence": ("parakeet_decoder", decoded(confidence=NAN)),
    "length": ("parakeet_transcribe", [outputs(REPLY=TranscribeReply(text="", duration_ms=0))]),
    "more than there are": ("parakeet_features", featured(length=2)),
    "another recording": ("parakeet_features", featured(duration_ms=50)),
    "a text of no token": ("parakeet_text", [outputs(REPLY=TranscribeReply(text="ah"))]),
    "stale": ("parakeet_tdt", [outputs(REPLY=AsrReply(stream_ms=64))]),
    "unreadable": ("nemotron_streaming", [outputs(REPLY=b"{")]),
    "silent": ("espeak", spoken(0, 0, 0)),
    "no audio": ("espeak", []),
    "cut": ("qwen3", generated(TextDelta(text="Hi"))),
    "no token": ("qwen3", generated(Completed(finish_reason="stop"))),
    "aborted": ("qwen3", generated(Completed(finish_reason="abort", completion_tokens=1))),
    "outside the codes": ("t3", drawn(6_561)),
    "none drawn": ("t3", drawn(count=0)),
    "no sound": ("s3gen", sounded()),
    "not the last": ("s3gen", sounded(1, final=False)),
    "audio of nothing": ("kokoro", spoken(1)),
    "no session": ("voice_agent", said(CLOSED)),
    "no end": ("voice_agent", said(CONNECTED)),
    "error": ("voice_agent", said(ErrorEvent.of(DeadlineExceededError("late")), CLOSED)),
}


@pytest.fixture
def serve():
    servers = Servers()
    yield servers.start
    servers.stop()


def test_every_model_of_the_repository_has_a_canary():
    assert sorted(CANARIES) == sorted(
        path.parent.name for path in ROOT.glob("model_repository/*/config.pbtxt")
    )


def test_a_model_comes_after_those_that_it_calls():
    order = list(CANARIES)
    for model in CANARIES:
        needed = called_models(model)
        assert all(order.index(called) < order.index(model) for called in needed)
    assert called_models("voice_agent") >= {"nemotron_streaming", "parakeet_encoder"}


@pytest.mark.parametrize("model", CANARIES)
def test_a_right_answer(serve, model):
    triton = FakeTriton(**{model: RIGHT[model]})
    (seen,) = call_canaries(serve(triton), [model, "missing"], DEADLINE_S)
    assert seen.startswith(model)
    sequences = [dict(request.parameters) for request in triton.requests]
    starts = [one["sequence_start"].bool_param for one in sequences if "sequence_start" in one]
    ends = [one["sequence_end"].bool_param for one in sequences if "sequence_end" in one]
    assert sum(starts) == sum(ends), "every sequence is ended"
    assert all(one["sequence_id"].string_param.startswith(CANARY_PREFIX) for one in sequences if one)


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_answer(serve, case):
    model, answer = WRONG[case]
    with pytest.raises(CanaryError, match=f"^{model}: "):
        call_canaries(serve(FakeTriton(**{model: answer})), [model], DEADLINE_S)


@pytest.mark.parametrize(
    "refusal", [OverloadedError("all 2 are taken"), TooManySessionsError("all are open")]
)
@pytest.mark.parametrize("model", ["parakeet_tdt", "qwen3"])
def test_a_model_that_says_it_is_full_has_answered(serve, model, refusal):
    address = serve(FakeTriton(**{model: refusal.to_wire()}))
    assert call_canaries(address, [model], DEADLINE_S) == [f"{model} answered, and is full: {refusal}"]


def messages(triton):
    """The JSON messages of the requests that a fake has got."""
    for request in triton.requests:
        for tensor, content in zip(request.inputs, request.raw_input_contents, strict=True):
            if tensor.name in ("REQUEST", "MESSAGE") and content[4:]:
                yield msgspec.json.decode(content[4:])


@pytest.mark.parametrize("model", ["parakeet_transcribe", "parakeet_features", "parakeet_tdt", "voice_agent"])
def test_models_are_asked_in_a_language_of_their_own(serve, model):
    triton = FakeTriton(**{model: RIGHT[model]})
    call_canaries(serve(triton), [model], DEADLINE_S)
    (message,) = messages(triton)
    assert (message.get("options") or message)["language"] == ""


@pytest.mark.parametrize("model", ["smart_turn", "espeak"])
@pytest.mark.parametrize(
    ("answer", "words"), [("", r"no answer within 0\.2 s"), ("Exceeds maximum queue size", "queue size")]
)
def test_model_that_may_have_too_much_to_do_is_late(serve, model, answer, words):
    address = serve(FakeTriton(**({model: answer} if answer else {})))
    with pytest.raises(CanaryLateError, match=words):
        call_canaries(address, [model], 0.2)


@pytest.mark.parametrize("answer", [RIGHT["espeak"], 3 * WRONG["silent"][1], "unsupported_voice: no voice"])
def test_a_stream_is_left_to_end_by_itself(serve, answer):
    triton = FakeTriton(espeak=answer)
    ask_canaries(serve(triton), {"espeak": ""}, DEADLINE_S)
    # Cancelled just as it ends, it could take the server with it.
    assert triton.stream_ends.get(timeout=DEADLINE_S) is grpc.StatusCode.OK


def test_channel_pool_opens_one_channel_and_another_after_a_failure(serve, monkeypatch):
    opened = []

    def open_channel(address):
        opened.append(real(address))
        return opened[-1]

    real = connection.open_blocking_channel
    monkeypatch.setattr(connection, "open_blocking_channel", open_channel)
    pool = ChannelPool(serve(FakeTriton(smart_turn=RIGHT["smart_turn"], espeak=RIGHT["espeak"])))
    for model in ("smart_turn", "espeak", "smart_turn"):
        CANARIES[model](pool, DEADLINE_S)
    assert len(opened) == 1
    with pytest.raises(CanaryLateError):
        CANARIES["qwen3"](pool, 0.2)
    CANARIES["espeak"](pool, DEADLINE_S)
    assert len(opened) == 2
    in_use = pool.take()
    pool.close()
    pool.put_back(in_use)
    with pytest.raises(ValueError, match="closed"):
        in_use.unary_unary("/any")(b"")


def test_all_models_are_asked_and_each_has_its_result(serve):
    address = serve(FakeTriton(**RIGHT | {"smart_turn": WRONG["above 1"][1], "echo": []}))
    models = dict.fromkeys(RIGHT, "") | {"broken": "unavailable: no weights", "echo": "", "other": ""}
    results = {result.model: result for result in ask_canaries(address, models, DEADLINE_S)}
    assert list(results) == list(models)
    failed = {model: result.detail for model, result in results.items() if not result.ok}
    assert failed == {
        "smart_turn": "PROBABILITY has values outside 0 to 1",
        "broken": "unavailable: no weights",
        "other": "the server calls it not ready",
    }
    assert "has no canary" in results["echo"].detail
    assert [result.detail for result in results.values() if result.detail.startswith(result.model)] == []


@pytest.mark.parametrize("has_agent", [True, False])
def test_models_that_are_not_served_beside_an_agent_are_no_part_of_the_result(serve, has_agent):
    answers = RIGHT | {
        "kokoro": "weights_not_found: kokoro has no weights on this server",
        "whisper": "not_in_profile: whisper is not part of the profile tiny",
        "t3": "model_loading_failed: t3 cannot serve on this server",
    }
    models = dict.fromkeys(("espeak", "kokoro", "whisper", "t3", *(["voice_agent"] * has_agent)), "")
    results = ask_canaries(serve(FakeTriton(**answers)), models, DEADLINE_S)
    failed = [result.model for result in results if not result.ok]
    assert failed == (["t3"] if has_agent else ["kokoro", "whisper", "t3"])


def test_an_agent_that_lacks_a_model_has_failed(serve):
    refusal = said(ErrorEvent.of(WeightsNotFoundError("qwen3 has no weights")), CLOSED)
    address = serve(FakeTriton(voice_agent=refusal, qwen3="weights_not_found: qwen3 has no weights"))
    (result,) = ask_canaries(address, {"qwen3": "", "voice_agent": ""}, DEADLINE_S)
    assert (result.model, result.ok) == ("voice_agent", False)


def test_asking_takes_a_bounded_time_though_nothing_answers(serve):
    results = ask_canaries(serve(FakeTriton()), dict.fromkeys(CANARIES, ""), 0.2)
    assert not any(result.ok for result in results)
    assert [result.detail for result in results if result.detail.startswith("not asked")]


def test_the_models_of_a_profile(serve):
    triton = FakeTriton(espeak=[], qwen3=[])
    address = serve(triton)
    assert profile_models(address, DEADLINE_S) == {"espeak": "", "qwen3": ""}
    triton.index = [
        ("qwen3", "UNAVAILABLE", "no weights"),
        ("espeak", "UNAVAILABLE", "version 2 is broken"),
        ("espeak", "READY", ""),
        ("t3", "", ""),
        ("s3gen", "UNAVAILABLE", "unloaded"),
    ]
    assert profile_models(address, DEADLINE_S) == {"espeak": "", "qwen3": "unavailable: no weights"}
