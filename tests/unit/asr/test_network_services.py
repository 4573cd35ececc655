"""What the network models answer to several requests of one execution."""

import numpy as np
import pytest
from asr_fakes import DURATIONS, FEATURES, LAYERS, VOCABULARY, WIDTH, RandomJoint

from parley.asr.network_services import DecoderService, EncoderService, VadService
from parley.asr.transducer import TransducerDecoder
from parley.errors import InferenceError, InvalidInputError


class Doubler:
    """An encoder that keeps every second frame, and cannot take more than 50."""

    def __init__(self):
        self.shapes = []

    def encode(self, features, lengths):
        self.shapes.append(features.shape)
        if features.shape[2] > 50:
            raise InferenceError("too long")
        return features[:, :, ::2] * 2, (lengths + 1) // 2


class LongEncoder(Doubler):
    """One without that limit."""

    def encode(self, features, lengths):
        self.shapes.append(features.shape)
        return features, lengths


class Echo:
    """A voice activity network that answers a window's first sample."""

    def __init__(self):
        self.calls = 0

    def detect(self, windows, counts, state, context):
        self.calls += 1
        real = np.arange(windows.shape[1]) < counts[:, None]
        return windows[:, :, 0] * real, state + 1, context + 2


def features(rows, frames, value=1.0):
    return {
        "FEATURES": np.full((rows, 4, frames), value, np.float32),
        "LENGTH": np.full((rows, 1), frames, np.int64),
    }


def test_encoder_requests_share_one_run_and_get_their_own_rows():
    encoder = Doubler()
    service = EncoderService(encoder, bands=4)
    results = service.serve([features(1, 10, 1.0), features(2, 31, 2.0), features(1, 4, 3.0)])
    assert encoder.shapes == [(4, 4, 31)]
    assert [result["ENCODED"].shape for result in results] == [(1, 4, 5), (2, 4, 16), (1, 4, 2)]
    assert [result["ENCODED_LENGTH"].tolist() for result in results] == [[[5]], [[16], [16]], [[2]]]
    for result, value in zip(results, (2.0, 4.0, 6.0), strict=True):
        assert (result["ENCODED"] == value).all()


def test_a_request_that_breaks_the_common_run_fails_alone():
    service = EncoderService(Doubler(), bands=4)
    good, bad, other = service.serve([features(1, 10), features(1, 60), features(1, 20)])
    assert isinstance(bad, InferenceError)
    assert good["ENCODED"].shape == (1, 4, 5)
    assert other["ENCODED"].shape == (1, 4, 10)


@pytest.mark.parametrize(
    "change",
    [
        {"FEATURES": np.zeros((1, 5, 10), np.float32)},
        {"FEATURES": np.full((1, 4, 10), np.nan, np.float32)},
        {"LENGTH": np.array([[0]])},
        {"LENGTH": np.array([[11]])},
        {"LENGTH": np.array([10])},
    ],
)
def test_features_that_cannot_be_encoded_never_reach_the_network(change):
    encoder = Doubler()
    bad, good = EncoderService(encoder, bands=4).serve([features(1, 10) | change, features(1, 8)])
    assert isinstance(bad, InvalidInputError)
    assert good["ENCODED"].shape == (1, 4, 4)
    assert encoder.shapes == [(1, 4, 8)]


def windows(rows, count, value):
    return {
        "WINDOWS": np.full((rows, count, 512), value, np.float32),
        "COUNT": np.full((rows, 1), count, np.int32),
        "STATE": np.full((rows, 2, 128), value, np.float32),
        "CONTEXT": np.full((rows, 64), value, np.float32),
    }


def test_windows_of_several_requests_share_one_call():
    vad = Echo()
    first, second = VadService(vad).serve([windows(1, 3, 0.25), windows(2, 1, 0.5)])
    assert vad.calls == 1
    assert first["PROBABILITIES"].tolist() == [[0.25] * 3]
    assert second["PROBABILITIES"].tolist() == [[0.5], [0.5]]
    assert (first["NEXT_STATE"] == 1.25).all()
    assert (second["NEXT_CONTEXT"] == 2.5).all()


@pytest.mark.parametrize(
    "change",
    [
        {"COUNT": np.array([[4]], np.int32)},
        {"COUNT": np.array([[-1]], np.int32)},
        {"STATE": np.full((1, 2, 128), np.inf, np.float32)},
    ],
)
def test_windows_that_make_no_sense_are_refused(change):
    vad = Echo()
    (result,) = VadService(vad).serve([windows(1, 3, 0.5) | change])
    assert isinstance(result, InvalidInputError)
    assert vad.calls == 0


def decoder_service(network=None):
    decoder = TransducerDecoder(
        network or RandomJoint(), blank=VOCABULARY, durations=DURATIONS, max_symbols=10
    )
    return DecoderService(decoder)


def speech(rows, frames, seed):
    values = np.random.default_rng(seed).standard_normal((rows, FEATURES, frames)).astype(np.float32)
    return {"ENCODED": values, "ENCODED_LENGTH": np.full((rows, 1), frames, np.int64)}


def tokens_of(result):
    return [
        [result[name][row, :count].tolist() for name in ("TOKENS", "FRAMES", "DURATIONS", "CONFIDENCES")]
        for row, count in enumerate(result["TOKEN_COUNT"][:, 0])
    ]


def test_decoder_requests_share_one_loop_and_equal_single_ones():
    requests = [speech(1, 30, 1), speech(3, 12, 2), speech(1, 45, 3)]
    alone = [decoder_service().serve([request])[0] for request in requests]
    networks = [RandomJoint() for _ in range(4)]
    together = decoder_service(networks[0]).serve(requests)
    for request, network in zip(requests, networks[1:], strict=True):
        decoder_service(network).serve([request])
    assert len(networks[0].rows_seen) == max(len(network.rows_seen) for network in networks[1:])
    for own, shared in zip(alone, together, strict=True):
        assert tokens_of(own) == tokens_of(shared)
        for name in ("NEXT_TARGET", "NEXT_HIDDEN", "NEXT_CELL", "NEXT_SKIP"):
            assert np.array_equal(own[name], shared[name])


def test_a_piece_may_carry_on_where_another_ended():
    whole = speech(2, 40, 5)
    (expected,) = decoder_service().serve([whole])
    service, carried, found = decoder_service(), {}, [[], []]
    for start in range(0, 40, 9):
        encoded = whole["ENCODED"][:, :, start : start + 9]
        lengths = np.full((2, 1), encoded.shape[2], np.int64)
        # Another stream's first piece in the same execution must not matter.
        result, _ = service.serve(
            [{"ENCODED": encoded, "ENCODED_LENGTH": lengths} | carried, speech(1, 20, start)]
        )
        for row, (ids, *_) in enumerate(tokens_of(result)):
            found[row] += ids
        carried = {name: result[f"NEXT_{name}"] for name in ("TARGET", "HIDDEN", "CELL", "SKIP")}
    assert found == [ids for ids, *_ in tokens_of(expected)]


def test_speech_without_a_token_still_has_a_column():
    (result,) = decoder_service().serve([speech(1, 4, 0) | {"ENCODED_LENGTH": np.array([[0]])}])
    assert result["TOKENS"].tolist() == [[-1]]
    assert result["TOKEN_COUNT"].tolist() == [[0]]


def state(**change):
    shape = (1, LAYERS, WIDTH)
    return {
        "TARGET": np.array([[VOCABULARY]], np.int32),
        "HIDDEN": np.zeros(shape, np.float32),
        "CELL": np.zeros(shape, np.float32),
        "SKIP": np.array([[0]], np.int32),
    } | change


@pytest.mark.parametrize(
    "given",
    [
        {"SKIP": np.array([[0]], np.int32)},
        state(TARGET=np.array([[VOCABULARY + 1]], np.int32)),
        state(TARGET=np.array([[-1]], np.int32)),
        state(SKIP=np.array([[-1]], np.int32)),
        state(HIDDEN=np.zeros((1, LAYERS, WIDTH + 1), np.float32)),
        state(CELL=np.full((1, LAYERS, WIDTH), np.nan, np.float32)),
        {"ENCODED": np.full((1, FEATURES, 6), np.inf, np.float32)},
        {"ENCODED_LENGTH": np.array([[7]])},
        {"ENCODED": np.zeros((1, 6), np.float32)},
    ],
)
def test_a_state_or_speech_that_makes_no_sense_is_refused_alone(given):
    bad, good = decoder_service().serve([speech(1, 6, 0) | given, speech(1, 6, 0)])
    assert isinstance(bad, InvalidInputError)
    assert tokens_of(good) == tokens_of(decoder_service().serve([speech(1, 6, 0)])[0])


def test_warming_up_runs_the_networks():
    encoder, joint = LongEncoder(), RandomJoint()
    EncoderService(encoder, bands=4).warm_up()
    decoder_service(joint).warm_up()
    assert encoder.shapes == [(1, 4, 1000)]
    assert joint.rows_seen
    with pytest.raises(InferenceError):
        EncoderService(Doubler(), bands=4).warm_up()
