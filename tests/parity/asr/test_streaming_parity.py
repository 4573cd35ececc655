"""The streaming step, at every look-ahead, against NeMo's."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from conftest import EXACT, entry_of

from nemo_export import accuracy
from parley.asr.features.frontend import LogMel
from parley.asr.streaming import checkpoint as streaming_checkpoint
from tiny.streaming_model import LOOK_AHEADS


@pytest.mark.parametrize("look_ahead", sorted(LOOK_AHEADS))
def test_encoder_and_tokens_are_nemos(streaming, clips, look_ahead):
    model, folder = streaming
    entry = entry_of("rnnt-streaming", look_aheads=(look_ahead,))
    expected = accuracy.by_nemo(model, entry, clips[:2])
    found = accuracy.by_export(folder, entry, clips[:2])
    measured = accuracy.compare(expected, found)
    measured.check(EXACT, f"look-ahead {look_ahead}")
    assert measured.reference_tokens > 20
    assert len({token for heard in expected for token in heard.tokens}) > 5


def test_features_are_not_normalised(streaming, clips):
    model, folder = streaming
    model.preprocessor.featurizer.dither = 0.0
    mel = LogMel(streaming_checkpoint.load(folder).checkpoint.config)
    clip = clips[0]
    with torch.no_grad():
        features, lengths = model.preprocessor(
            input_signal=torch.tensor(clip)[None], length=torch.tensor([len(clip)])
        )
    ours = mel.normalized(mel.offline(clip))
    np.testing.assert_allclose(ours, features[0, :, : int(lengths[0])].numpy(), atol=1e-4)
