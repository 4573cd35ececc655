"""S3Gen with random weights: of the published size, or every width an integer fraction of it.

All layers are kept, so that the parts cost in proportion what the published ones cost.
"""

from __future__ import annotations

import torch
from torch import nn

from parley.tts.s3gen.checkpoint import Networks
from parley.tts.s3gen.conformer import TokenEncoder
from parley.tts.s3gen.estimator import Estimator
from parley.tts.s3gen.flow import Flow
from parley.tts.s3gen.hift import Vocoder

VOCABULARY = 6561
_ENCODER, _HIDDEN, _HEADS, _LAYERS, _UP_LAYERS = 512, 2048, 8, 6, 4
_ESTIMATOR, _INNER, _BLOCKS, _MID_LEVELS = 256, 512, 4, 12
_VOCODER, _PITCH = 512, 512


def random_networks(fraction: int, *, meanflow: bool = True) -> Networks:
    """Networks whose widths are the published ones divided by ``fraction`` (1 to 8, a power of two)."""
    torch.manual_seed(0)
    encoder = TokenEncoder(_ENCODER // fraction, _HEADS, _HIDDEN // fraction, _LAYERS, _UP_LAYERS)
    estimator = Estimator(_ESTIMATOR // fraction, _INNER // fraction, _BLOCKS, _MID_LEVELS, meanflow=meanflow)
    flow = Flow(VOCABULARY, encoder, estimator)
    vocoder = Vocoder(_VOCODER // fraction, _PITCH // fraction)
    nn.init.constant_(vocoder.f0_predictor.classifier.bias, 150.0)  # hertz: voiced, as speech mostly is
    for network in (flow, vocoder):
        network.eval().requires_grad_(False)
    return Networks(flow, vocoder)
