"""Greedy decoding and beam search with networks on a device, against the decoders of arrays."""

import numpy as np
import pytest
import torch
from device_fakes import CPU, same_tokens

from parley.asr.decoding.beam import BeamDecoder
from parley.asr.decoding.greedy import TransducerDecoder
from parley.asr.decoding.greedy import tsallis_confidence as expected_confidence
from parley.errors import InferenceError
from parley_torch.asr.joint import DeviceJoint
from parley_torch.asr.transducer import (
    DecoderPool,
    GreedyDecoder,
    Progress,
    Transducer,
    is_left,
    read_tokens,
    tsallis_confidence,
)

TOKENS, WIDTH, JOINT, INPUTS = 12, 6, 7, 5
DURATIONS = (0, 1, 2, 3, 4)
LSTM = "decoder.prediction.dec_rnn.lstm"


def random_weights(durations, seed=0):
    draw = torch.Generator().manual_seed(seed)

    def normal(*shape, scale=1.0):
        return scale * torch.randn(shape, generator=draw)

    weights = {
        "decoder.prediction.embed.weight": normal(TOKENS + 1, WIDTH),
        "joint.enc.weight": normal(JOINT, INPUTS, scale=2.0),
        "joint.enc.bias": normal(JOINT),
        "joint.pred.weight": normal(JOINT, WIDTH, scale=2.0),
        "joint.pred.bias": normal(JOINT),
        "joint.joint_net.2.weight": normal(TOKENS + 1 + len(durations), JOINT),
        "joint.joint_net.2.bias": normal(TOKENS + 1 + len(durations)),
    }
    # About as many blanks as tokens.
    weights["joint.joint_net.2.bias"][TOKENS] += 3.0
    for layer in range(2):
        weights |= {
            f"{LSTM}.weight_ih_l{layer}": normal(4 * WIDTH, WIDTH),
            f"{LSTM}.weight_hh_l{layer}": normal(4 * WIDTH, WIDTH),
            f"{LSTM}.bias_ih_l{layer}": normal(4 * WIDTH),
            f"{LSTM}.bias_hh_l{layer}": normal(4 * WIDTH),
        }
    return weights


@pytest.fixture(params=[(), DURATIONS], ids=["rnnt", "tdt"])
def network(request):
    weights = random_weights(request.param)
    return Transducer(weights, blank=TOKENS, durations=request.param, device=CPU)


def decode(decoder, encoded, lengths, state, *, steps):
    """All runs of a piece; the tokens, where decoding stands, and the number of runs."""
    network = decoder.network
    progress = Progress(
        projected=network.project(torch.from_numpy(encoded.transpose(0, 2, 1).copy())),
        lengths=torch.from_numpy(lengths),
        at=state.skip,
        symbols=torch.zeros_like(state.skip),
        failed=torch.zeros(len(lengths), dtype=torch.bool),
        state=state,
    )
    runs = []
    while not runs or is_left(runs[-1]):
        progress, packed = decoder.run(progress, steps)
        runs.append(packed.numpy())
    return read_tokens(runs), progress.state, len(runs)


def speech(lengths, seed=0):
    return (
        np.random.default_rng(seed).standard_normal((len(lengths), INPUTS, max(lengths))).astype(np.float32)
    )


@pytest.mark.parametrize("steps", [1, 3, 200])
@torch.inference_mode()
def test_greedy_decoding_on_the_device_is_that_of_arrays(network, steps):
    lengths = np.array([40, 17, 1, 9, 0])
    reference = TransducerDecoder(
        DeviceJoint(network), blank=TOKENS, durations=network.durations, max_symbols=3
    )
    decoder = GreedyDecoder(network, max_symbols=3)
    state, expected_state = DecoderPool.allocate(network, len(lengths)), reference.initial_state(len(lengths))
    emitted = 0
    for piece in range(3):
        encoded = speech(lengths, seed=piece)
        expected, expected_state = reference.decode(encoded, lengths, expected_state)
        found, state, runs = decode(decoder, encoded, lengths, state, steps=steps)
        assert (runs == 1) == (steps == 200)
        for own, other in zip(found, expected, strict=True):
            assert same_tokens(own, other)
            assert own.durations.tolist() == other.durations.tolist()
            emitted += len(own.ids)
        assert state.targets.tolist() == expected_state.targets.tolist()
        assert state.skip.tolist() == expected_state.skip.tolist()
        assert np.abs(state.hidden.numpy() - expected_state.hidden).max() < 1e-5
    assert emitted > 30


@torch.inference_mode()
def test_a_row_that_is_not_finite_fails_alone_and_ends(network):
    lengths = np.array([20, 20, 20])
    encoded = speech(lengths)
    decoder = GreedyDecoder(network, max_symbols=3)
    expected, *_ = decode(decoder, encoded, lengths, DecoderPool.allocate(network, 3), steps=4)
    encoded[1, 2, 5:] = np.nan  # a duration may pass over a single frame
    found, *_ = decode(decoder, encoded, lengths, DecoderPool.allocate(network, 3), steps=4)
    assert isinstance(found[1], InferenceError)
    assert str(found[1]) == "the joint network's scores are not finite"
    assert same_tokens(found[0], expected[0], tolerance=1e-6)
    assert same_tokens(found[2], expected[2], tolerance=1e-6)


def test_confidences_are_those_of_arrays():
    logits = 3 * np.random.default_rng(0).standard_normal((9, 40)).astype(np.float32)
    logits[0] = 0.0
    logits[1, 3] = 90.0
    found = tsallis_confidence(torch.from_numpy(logits)).numpy()
    assert np.abs(found - expected_confidence(logits)).max() < 1e-4


class WithoutTopK:
    """A network that gives away all scores."""

    def __init__(self, joint):
        self.inputs, self.layers, self.width = joint.inputs, joint.layers, joint.width
        self.step = joint.step
        self.scan = joint.scan


def test_the_best_classes_of_the_device_lead_to_the_same_readings(network):
    kinds = {"blank": TOKENS, "durations": network.durations, "max_symbols": 3, "beam_size": 4}
    calls = []

    def counted(scores, k, bonus=None):
        calls.append(tuple(scores.shape))
        values, ids = scores.sort(dim=-1, descending=True, stable=True)
        return values[:, :k] - scores.logsumexp(-1, keepdim=True), ids[:, :k]

    on_device = BeamDecoder(DeviceJoint(network, counted), **kinds)
    plain = BeamDecoder(WithoutTopK(DeviceJoint(network)), **kinds)
    lengths = np.array([30, 11])
    state, expected_state = on_device.initial_state(2), plain.initial_state(2)
    for piece in range(2):
        encoded = speech(lengths, seed=10 + piece)
        found, state = on_device.decode(encoded, lengths, state)
        expected, expected_state = plain.decode(encoded, lengths, expected_state)
        for own, other in zip(found, expected, strict=True):
            assert same_tokens(own.best, other.best)
            assert [one.tokens.ids.tolist() for one in own.nbest] == [
                one.tokens.ids.tolist() for one in other.nbest
            ]
            assert np.allclose(
                [one.score for one in own.nbest], [one.score for one in other.nbest], atol=1e-4
            )
    assert calls
    assert {classes for _, classes in calls} == {TOKENS + 1}


def test_scores_that_are_not_finite_are_refused_by_the_search(network):
    search = BeamDecoder(
        DeviceJoint(network), blank=TOKENS, durations=network.durations, max_symbols=3, beam_size=2
    )
    encoded = speech([5])
    encoded[0, 0] = np.inf
    with pytest.raises(InferenceError, match="scores are not finite"):
        search.decode(encoded, np.array([5]), search.initial_state(1))
