"""Nothing clicks where audio was joined; ``perf/eval_seams.py`` asks many more."""

import random

import numpy as np
import pytest
from random_streams import random_streams

from parley.tts.clicks import clicks, seam_scores


@pytest.fixture(scope="module")
def streams(networks):
    from s3gen_fakes import CPU

    from parley.tts.s3gen.synthesizer import AudioSynthesizer

    return list(random_streams(AudioSynthesizer(networks, CPU), random.Random(4), 30))


def test_no_seam_of_any_utterance_clicks(streams):
    scores = []
    for stream in streams:
        assert stream.clicks() == []
        assert len(stream.audio) == pytest.approx(len(stream.tokens) * stream.rate / 25, abs=1)
        scores += list(seam_scores(stream.audio, stream.seams(), stream.rate))
    assert len(scores) > 80
    assert max(scores) < 1.5, "seams are no rougher than what is around them"


def test_a_click_at_a_seam_is_found(streams):
    found = []
    for stream in streams:
        for seam in stream.seams():
            loud = stream.audio.astype(float)
            loud[seam] += 4 * loud.std()
            clicking = np.clip(loud, -32768, 32767).astype(np.int16)
            found.append(clicks(clicking, [seam], stream.rate) == [seam])
    assert np.mean(found) > 0.9, "the test above must be able to fail"
