"""What the network models answer to several requests of one execution."""

import numpy as np
import pytest
from asr_fakes import DURATIONS, FEATURES, VOCABULARY, RandomJoint, same_tokens

from parley.asr.decoding.batch import DecoderRows
from parley.asr.decoding.beam import BeamDecoder
from parley.asr.decoding.boosting import build
from parley.asr.decoding.greedy import TransducerDecoder
from parley.asr.parakeet.networks import piece_inputs, read_decoded
from parley.errors import InferenceError, InvalidInputError
from parley.models.parakeet_decoder import DecoderService
from parley.models.parakeet_encoder import EncoderBuckets, EncoderService


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


def test_request_with_one_band_is_broadcast_alone():
    narrow = {name: value[:, :1] for name, value in features(1, 10, 3.0).items()}
    encoder = Doubler()
    alone, other = EncoderService(encoder, bands=4).serve([narrow, features(1, 12)])
    assert encoder.shapes == [(2, 4, 12)]
    assert alone["ENCODED"].shape == (1, 4, 5)
    assert (alone["ENCODED"] == 6.0).all()
    assert (other["ENCODED"] == 2.0).all()


def test_runs_are_padded_to_shapes_that_were_prepared():
    encoder = Doubler()
    service = EncoderService(encoder, bands=4, buckets=EncoderBuckets(frames=(16, 40), rows=(1, 4)))
    service.warm_up()
    prepared = set(encoder.shapes)
    assert len(prepared) == 4
    assert encoder.shapes[0] == (4, 4, 40), "the largest first"
    encoder.shapes.clear()
    results = service.serve([features(1, 10, 1.0), features(2, 31, 2.0)])
    service.serve([features(1, 16)])
    assert set(encoder.shapes) <= prepared
    assert [result["ENCODED"].shape for result in results] == [(1, 4, 5), (2, 4, 16)]
    assert [result["ENCODED_LENGTH"].tolist() for result in results] == [[[5]], [[16], [16]]]
    assert (results[0]["ENCODED"] == 2.0).all()
    assert (results[1]["ENCODED"] == 4.0).all()


def test_a_run_beyond_the_largest_shape_has_its_own():
    encoder = Doubler()
    service = EncoderService(encoder, bands=4, buckets=EncoderBuckets(frames=(16,), rows=(2,)))
    (result,) = service.serve([features(3, 20)])
    assert encoder.shapes == [(3, 4, 20)]
    assert result["ENCODED"].shape == (3, 4, 10)


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


def greedy(network=None):
    return DecoderRows(
        TransducerDecoder(network or RandomJoint(), blank=VOCABULARY, durations=DURATIONS, max_symbols=10)
    )


def beam(network=None):
    return DecoderRows(
        BeamDecoder(
            network or RandomJoint(), blank=VOCABULARY, durations=DURATIONS, max_symbols=10, beam_size=3
        )
    )


DECODERS = pytest.mark.parametrize("decoder", [greedy, beam])
PHRASES = [[3, 7, 7], [7, 1], [5, 2, 9, 4]]


def speech(rows, frames, seed):
    values = np.random.default_rng(seed).standard_normal((rows, FEATURES, frames)).astype(np.float32)
    return {"ENCODED": values, "ENCODED_LENGTH": np.full((rows, 1), frames, np.int64)}


def tokens_of(result):
    return [
        [result[name][row, :count].tolist() for name in ("TOKENS", "FRAMES", "DURATIONS", "CONFIDENCES")]
        for row, count in enumerate(result["TOKEN_COUNT"][:, 0])
    ]


class PoisonedJoint(RandomJoint):
    """Its scores are not finite for frames that begin with a large value."""

    def step(self, frames, targets, hidden, cell):
        scores, *states = super().step(frames, targets, hidden, cell)
        return np.where(frames[:, :1] > 1e6, np.nan, scores), *states


@DECODERS
def test_infinite_scores_fail_their_request_and_the_others_are_decoded_again(decoder):
    requests = [speech(1, 12, seed) for seed in range(8)]
    requests[3]["ENCODED"][0, 0, :] = 1e7
    expected = [tokens_of(DecoderService(decoder()).serve([request])[0]) for request in requests]
    service = DecoderService(decoder(PoisonedJoint()))
    runs = []
    own = service._decoder.decode
    service._decoder.decode = lambda encoded, *rest: runs.append(len(encoded)) or own(encoded, *rest)
    found = service.serve(requests)
    assert runs == [8, 7]
    assert isinstance(found.pop(3), InferenceError)
    del expected[3]
    assert [tokens_of(result) for result in found] == expected


@DECODERS
def test_decoder_requests_share_one_loop_and_equal_single_ones(decoder):
    requests = [speech(1, 30, 1), speech(3, 12, 2), speech(1, 45, 3)]
    phrases = {0: build(PHRASES, 2.0), 2: build([[2, 2]], 3.0)}
    for number, automaton in phrases.items():
        encoded, lengths = requests[number].values()
        requests[number] = piece_inputs(encoded, lengths[:, 0], boosting=[automaton])
    networks = [RandomJoint() for _ in range(4)]
    together = DecoderService(decoder(networks[0])).serve(requests)
    alone = [
        DecoderService(decoder(network)).serve([request])[0]
        for request, network in zip(requests, networks[1:], strict=True)
    ]
    assert len(networks[0].rows_seen) == max(len(network.rows_seen) for network in networks[1:])
    for own, shared in zip(alone, together, strict=True):
        for one, other in zip(read_decoded(own), read_decoded(shared), strict=True):
            assert same_tokens(one.tokens, other.tokens)


@DECODERS
def test_request_with_one_encoded_value_is_broadcast_alone(decoder):
    length = np.ones((1, 1), np.int64)
    narrow = {"ENCODED": np.full((1, 1, 1), 0.5, np.float32), "ENCODED_LENGTH": length}
    wide = {"ENCODED": np.full((1, FEATURES, 1), 0.5, np.float32), "ENCODED_LENGTH": length}
    found, other = DecoderService(decoder()).serve([narrow, speech(1, 6, 0)])
    assert tokens_of(found) == tokens_of(DecoderService(decoder()).serve([wide])[0])
    assert tokens_of(other) == tokens_of(DecoderService(decoder()).serve([speech(1, 6, 0)])[0])


def test_the_readings_of_a_beam_are_those_of_the_search():
    inputs = speech(3, 30, 1)
    search = beam()._decoder
    expected, _ = search.decode(inputs["ENCODED"], np.full(3, 30), search.initial_state(3))
    (result,) = DecoderService(beam()).serve([inputs])
    for decoded, found in zip(read_decoded(result), expected, strict=True):
        before = found.settled.ids.tolist()
        own = decoded.alternatives
        assert [ids for ids, _ in own] == [before + one.tokens.ids.tolist() for one in found.nbest]
        assert [score for _, score in own] == pytest.approx([one.score for one in found.nbest])
        assert own[0][0] == decoded.tokens.ids.tolist()
        assert len(own) > 1
    assert read_decoded(DecoderService(greedy()).serve([speech(1, 6, 0)])[0])[0].alternatives == []


@DECODERS
def test_every_number_of_an_answer_can_be_written_as_json(decoder):
    (result,) = DecoderService(decoder()).serve([speech(2, 12, 0)])
    assert all(np.isfinite(tensor).all() for tensor in result.values())


@DECODERS
def test_speech_without_a_token_still_has_a_column(decoder):
    request = speech(1, 4, 0) | {"ENCODED_LENGTH": np.array([[0]])}
    (result,) = DecoderService(decoder()).serve([request])
    assert result["TOKENS"].tolist() == [[-1]]
    assert result["TOKEN_COUNT"].tolist() == [[0]]


def phrases(**change):
    inputs = piece_inputs(*speech(1, 6, 0).values(), boosting=[build([[1, 2]], 1.0)])
    names = ("PHRASE_ARCS", "PHRASE_BONUS", "PHRASE_FALLBACK")
    return {name: inputs[name] for name in names} | change


ARCS = phrases()["PHRASE_ARCS"]


@pytest.mark.parametrize(
    ("decoder", "given"),
    [
        (greedy, {"ENCODED": np.full((1, FEATURES, 6), np.inf, np.float32)}),
        (greedy, {"ENCODED": np.zeros((1, FEATURES - 1, 6), np.float32)}),
        (greedy, {"ENCODED_LENGTH": np.array([[7]])}),
        (greedy, {"ENCODED": np.zeros((1, 6), np.float32)}),
        (greedy, {"PHRASE_BONUS": np.zeros((1, 2), np.float32)}),
        (greedy, phrases(PHRASE_ARCS=ARCS[:, :, :2])),
        (greedy, phrases(PHRASE_ARCS=ARCS[:, ::-1])),
        (greedy, phrases(PHRASE_ARCS=ARCS + np.array([0, VOCABULARY, 0]))),
        (greedy, phrases(PHRASE_ARCS=ARCS + np.array([0, 0, 2]))),
        (greedy, phrases(PHRASE_BONUS=np.full((1, 2), np.inf, np.float32))),
        (greedy, phrases(PHRASE_FALLBACK=np.ones((1, 3), np.float32))),
        (greedy, phrases(PHRASE_FALLBACK=np.zeros((1, 0), np.float32))),
    ],
)
def test_invalid_request_is_refused_alone(decoder, given):
    service = DecoderService(decoder())
    bad, good = service.serve([speech(1, 6, 0) | given, speech(1, 6, 0)])
    assert isinstance(bad, InvalidInputError)
    assert tokens_of(good) == tokens_of(DecoderService(decoder()).serve([speech(1, 6, 0)])[0])


def test_warming_up_runs_the_networks():
    encoder, joint = LongEncoder(), RandomJoint()
    EncoderService(encoder, bands=4).warm_up()
    DecoderService(greedy(joint)).warm_up()
    assert encoder.shapes == [(1, 4, 1000)]
    assert joint.rows_seen
    with pytest.raises(InferenceError):
        EncoderService(Doubler(), bands=4).warm_up()
