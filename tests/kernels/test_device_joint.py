"""A network on the device whose best classes the fused kernel finds, as beam search asks for them."""

import numpy as np
import pytest
import torch

from parley.asr.decoding.beam import BeamDecoder
from parley_torch.asr.joint import DeviceJoint
from parley_torch.asr.topk import plain_top_k
from parley_torch.asr.topk_triton import top_k as kernel_top_k
from parley_torch.asr.transducer import Transducer

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
TOKENS, WIDTH, JOINT, INPUTS = 40, 8, 8, 6
LSTM = "decoder.prediction.dec_rnn.lstm"


def random_network(durations):
    draw = torch.Generator().manual_seed(0)
    shapes = {
        "decoder.prediction.embed.weight": (TOKENS + 1, WIDTH),
        "joint.enc.weight": (JOINT, INPUTS),
        "joint.enc.bias": (JOINT,),
        "joint.pred.weight": (JOINT, WIDTH),
        "joint.pred.bias": (JOINT,),
        "joint.joint_net.2.weight": (TOKENS + 1 + len(durations), JOINT),
        "joint.joint_net.2.bias": (TOKENS + 1 + len(durations),),
        f"{LSTM}.weight_ih_l0": (4 * WIDTH, WIDTH),
        f"{LSTM}.weight_hh_l0": (4 * WIDTH, WIDTH),
        f"{LSTM}.bias_ih_l0": (4 * WIDTH,),
        f"{LSTM}.bias_hh_l0": (4 * WIDTH,),
    }
    weights = {name: torch.randn(shape, generator=draw) for name, shape in shapes.items()}
    weights["joint.joint_net.2.bias"][TOKENS] += 2.0
    return Transducer(weights, blank=TOKENS, durations=durations, device=DEVICE)


@pytest.mark.parametrize("durations", [(), (0, 1, 2)])
def test_the_kernel_leads_to_the_same_readings_as_plain_torch(durations):
    network = random_network(durations)
    lengths = np.array([6, 4])
    encoded = np.random.default_rng(0).standard_normal((2, INPUTS, 6)).astype(np.float32)
    readings = []
    for best in (kernel_top_k, plain_top_k):
        search = BeamDecoder(
            DeviceJoint(network, best), blank=TOKENS, durations=durations, max_symbols=3, beam_size=3
        )
        readings.append(search.decode(encoded, lengths, search.initial_state(2))[0])
    for own, other in zip(*readings, strict=True):
        assert [one.tokens.ids.tolist() for one in own.nbest] == [
            one.tokens.ids.tolist() for one in other.nbest
        ]
        scores = [[one.score for one in reading.nbest] for reading in (own, other)]
        assert np.allclose(*scores, atol=1e-4)
        assert len(own.nbest) > 1


def test_on_a_gpu_the_kernel_is_what_a_network_uses():
    if DEVICE.type != "cuda":
        pytest.skip("needs a GPU; the choice is by device")
    scores = torch.randn(4, TOKENS + 1, device=DEVICE)
    joint = DeviceJoint(random_network(()))
    found, expected = joint._best(scores, 3), kernel_top_k(scores, 3)
    assert torch.equal(found[1], expected[1])
