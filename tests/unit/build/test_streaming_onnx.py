"""The shipped streaming export, run chunk by chunk."""

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime")

import itertools

from tiny.streaming_onnx import StreamingOnnx

MODEL = Path(__file__).parents[3] / "models/tiny-nemotron-streaming"
HISTORY = 9
SILENCE = np.float32(-16.6355)


def features(streams: int, frames: int) -> np.ndarray:
    return np.random.default_rng(0).normal(-9, 4, (streams, 80, frames)).astype(np.float32)


@pytest.fixture(params=(0, 1, 6, 13), scope="module")
def look_ahead(request):
    return request.param


@pytest.fixture(scope="module")
def model(look_ahead):
    return StreamingOnnx(MODEL, look_ahead)


def test_chunks_hold_all_features_after_silence_and_before_a_flush(model, look_ahead):
    audio = features(1, 150)
    chunks = list(model.chunks(audio))
    new = np.concatenate([chunk[:, :, HISTORY:] for chunk in chunks], axis=2)
    assert model.chunk_frames == 8 * (look_ahead + 1)
    assert np.array_equal(new[:, :, :150], audio)
    assert np.all(new[:, :, 150:] == SILENCE)
    assert model.chunk_frames <= new.shape[2] - 150 < 2 * model.chunk_frames
    assert np.all(chunks[0][:, :, :HISTORY] == SILENCE)
    for before, chunk in itertools.pairwise(chunks):
        assert np.array_equal(chunk[:, :, :HISTORY], before[:, :, -HISTORY:])


def test_each_chunk_makes_a_frame_more_than_its_look_ahead(model, look_ahead):
    shapes = {output.shape for output in model.encode(features(2, 300))}
    assert shapes == {(2, 144, look_ahead + 1)}


def test_a_stream_hears_the_same_in_a_batch_as_alone(model):
    together = features(3, 300)
    batched = np.concatenate(list(model.encode(together)), axis=2)
    for row in range(3):
        alone = np.concatenate(list(model.encode(together[row : row + 1])), axis=2)
        np.testing.assert_allclose(batched[row], alone[0], atol=1e-5)


def test_streams_of_different_age_share_a_step(model):
    old, young = features(2, 600)
    *before, last = model.chunks(old[None])
    caches = model.caches(1)
    for chunk in before:
        _, caches = model.step(chunk, caches)
    first = next(model.chunks(young[None]))
    both = [np.concatenate(pair) for pair in zip(caches, model.caches(1), strict=True)]
    outputs, _ = model.step(np.concatenate([last, first]), both)
    np.testing.assert_allclose(outputs[0], model.step(last, caches)[0][0], atol=1e-5)
    np.testing.assert_allclose(outputs[1], model.step(first, model.caches(1))[0][0], atol=1e-5)
