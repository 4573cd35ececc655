"""Reading streaming exports, and the encoder that they hold."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from parley.asr.features.log_mel import LogMel
from parley.asr.streaming.encoder import (
    CACHES,
    CHANNEL,
    HISTORY,
    LENGTH,
    TIME,
    CacheAwareEncoder,
    choose,
    load,
)
from parley.asr.streaming.recognizer import StreamingRecognizer
from parley.errors import InferenceError, ModelLoadingError, WeightsNotFoundError

CONFIG = {
    "model_type": "nemo-conformer-rnnt",
    "normalize": "NA",
    "streaming": {
        "look_aheads": [0, 1],
        "cache_last_channel": [2, 70, 8],
        "cache_last_time": [2, 8, 4],
        "history_frames": 9,
    },
}


@pytest.fixture
def export(tmp_path):
    """Writes an export whose configuration is changed a little."""

    def write(**changes):
        (tmp_path / "config.json").write_text(json.dumps(CONFIG | changes))
        (tmp_path / "vocab.txt").write_text("▁a 0\n<blk> 1\n")
        for name in ("decoder_joint-model.onnx", "encoder-r0.onnx"):
            (tmp_path / name).touch()
        return tmp_path

    return write


def test_an_export_is_read(export):
    found = load(export())
    assert found.checkpoint.blank == 1
    assert found.checkpoint.config.durations == ()
    assert found.streaming.look_aheads == (0, 1)
    assert found.streaming.cache_last_channel == (2, 70, 8)
    assert choose(found, [80]) == {0: found.encoder(0)}


@pytest.mark.parametrize(
    "changes",
    [
        {"streaming": {}},
        {"streaming": CONFIG["streaming"] | {"history_frames": 5}},
        {"streaming": CONFIG["streaming"] | {"cache_last_time": [2]}},
        {"normalize": "per_feature"},
    ],
)
def test_what_cannot_stream_is_refused(export, changes):
    with pytest.raises(ModelLoadingError):
        load(export(**changes))


def test_a_look_ahead_without_an_encoder_is_named(export):
    found = load(export())
    with pytest.raises(ModelLoadingError, match=r"560.*has those for 80, 160"):
        choose(found, [80, 560])
    with pytest.raises(WeightsNotFoundError, match="encoder-r1"):
        choose(found, [80, 160])
    (found.checkpoint.folder / "vocab.txt").unlink()
    with pytest.raises(WeightsNotFoundError, match="vocab"):
        load(found.checkpoint.folder)


class Session:
    """An encoder that adds one to everything that it is given."""

    def __init__(self, inputs=("audio_signal", "length", *CACHES)):
        self._inputs = inputs
        self.failure = None

    def get_inputs(self):
        return [SimpleNamespace(name=name, shape=["batch", 5, "frames"]) for name in self._inputs]

    def run(self, names, feed):
        if self.failure:
            raise self.failure
        assert names[2:] == ["cache_last_channel_next", "cache_last_time_next", "cache_last_channel_next_len"]
        assert feed["length"].tolist() == [feed["audio_signal"].shape[2]] * len(feed["audio_signal"])
        encoded = feed["audio_signal"][:, :, -2:]
        return [encoded, np.full(len(encoded), 2), *(feed[name] + 1 for name in CACHES)]


def encoder(session, lookahead=1, channel=(2, 70, 8)):
    return CacheAwareEncoder(session, lookahead=lookahead, channel=channel, time=(2, 8, 4))


def test_an_encoder_takes_a_chunk_after_its_history_and_gives_the_next_caches():
    found = encoder(Session())
    assert found.chunk == 16
    assert {name: value.shape for name, value in found.initial.items()} == {
        CHANNEL: (2, 70, 8),
        TIME: (2, 8, 4),
        LENGTH: (),
    }
    found.warm_up()
    caches = {name: np.stack([value, value]) for name, value in found.initial.items()}
    features = np.zeros((2, 5, HISTORY + 16), np.float32)
    encoded, lengths, after = found.encode(features, caches | {"other": np.zeros(2)})
    assert (encoded.shape, lengths.tolist()) == ((2, 5, 2), [2, 2])
    assert set(after) == set(CACHES)
    assert all((after[name] == 1).all() for name in CACHES)


def test_an_encoder_that_fails_or_cannot_stream_says_so():
    session = Session()
    found = encoder(session)
    session.failure = RuntimeError("out of memory")
    with pytest.raises(InferenceError, match="out of memory"):
        found.warm_up()
    with pytest.raises(ModelLoadingError, match="cache_last_time"):
        encoder(Session(("audio_signal", "length", CHANNEL, LENGTH)))


def test_encoders_of_different_models_are_refused(export):
    mel = LogMel(load(export()).checkpoint.config)
    with pytest.raises(ModelLoadingError, match="not of one model"):
        StreamingRecognizer(
            {8: encoder(Session(), 0), 16: encoder(Session(), 1, channel=(2, 70, 9))},
            None,
            mel,
            slots=1,
            audio=1,
        )
