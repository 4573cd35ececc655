"""Streaming exports, the encoder that they hold, and the slots of its caches."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from parley.asr.features import LogMel
from parley.asr.streaming.encoder import (
    CHANNEL,
    HISTORY,
    LENGTH,
    TIME,
    CacheAwareEncoder,
    SlotArrays,
    choose,
    load,
    put,
    take,
)
from parley.asr.streaming.recognizer import StreamingRecognizer
from parley.errors import InferenceError, ModelLoadingError, OverloadedError, WeightsNotFoundError

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
def test_network_without_streaming_is_refused(export, changes):
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


NEMO = (CHANNEL, TIME, LENGTH)


class Session:
    """An encoder that adds one to everything that it is given."""

    def __init__(self, inputs=("audio_signal", "length", *NEMO)):
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
        return [encoded, np.full(len(encoded), 2), *(feed[name] + 1 for name in NEMO)]


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
    encoded, lengths, after = found.encode(features, caches | {"other": np.zeros(2)}, np.array([3, 5]))
    assert (encoded.shape, lengths.tolist()) == ((2, 5, 2), [2, 2])
    assert set(after) == set(NEMO)
    assert all((after[name] == 1).all() for name in NEMO)


def test_failed_or_unsuitable_encoder_is_reported():
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


INITIAL = {"state": np.array([7.0, 8.0], np.float32), "length": np.array(3)}


def test_a_reused_slot_begins_with_the_initial_values():
    slots = SlotArrays(1, INITIAL)
    slot = np.array([slots.acquire()])
    slots.scatter(slot, {"state": np.ones((1, 2), np.float32), "length": np.array([9])})
    assert slots.gather(slot)["length"].tolist() == [9]
    slots.release(0)
    assert slots.acquire() == 0
    assert slots.gather(slot)["state"].tolist() == [[7, 8]]
    assert slots.gather(slot)["length"].tolist() == [3]


def test_slot_beyond_the_limit_is_refused_until_one_is_free():
    slots = SlotArrays(2, INITIAL)
    first, second = slots.acquire(), slots.acquire()
    assert {first, second} == {0, 1}
    with pytest.raises(OverloadedError):
        slots.acquire()
    slots.release(second)
    assert (slots.free, slots.acquire()) == (1, second)


def test_rows_are_copies_in_the_order_asked_for_and_only_theirs_are_written():
    slots = SlotArrays(4, {"value": np.array(0)})
    for _ in range(4):
        slots.acquire()
    everything = np.arange(4)
    slots.scatter(everything, {"value": np.array([10, 11, 12, 13])})
    chosen = np.array([3, 1])
    rows = slots.gather(chosen)
    assert rows["value"].tolist() == [13, 11]
    rows["value"][:] = 0
    assert slots.gather(everything)["value"].tolist() == [10, 11, 12, 13]
    slots.scatter(chosen, {"value": np.array([93, 91])})
    assert slots.gather(everything)["value"].tolist() == [10, 91, 12, 93]


def test_selected_rows_are_taken_and_put_back():
    rows = {"value": np.array([1, 2, 3]), "other": np.zeros(3)}
    assert take(rows, np.array([0, 1, 2]), ["value"]) == {"value": rows["value"]}
    assert take(rows, np.array([0, 1, 2]), ["value"])["value"] is rows["value"]
    some = np.array([0, 2])
    assert take(rows, some, ["value"])["value"].tolist() == [1, 3]
    put(rows, some, {"value": np.array([5, 6])})
    assert rows["value"].tolist() == [5, 2, 6]
    put(rows, np.arange(3), {"value": np.array([7, 8, 9])})
    assert rows["value"].tolist() == [7, 8, 9]
