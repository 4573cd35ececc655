"""The offline networks on torch: what ONNX Runtime finds, in sizes that are prepared when they are loaded."""

import numpy as np
import pytest
import torch
from device_fakes import CPU, CountedCapture, same_tokens

from parley.asr import checkpoint
from parley.asr.decoding.batch import make_decoder
from parley.asr.decoding.boosting import compile_phrases
from parley.asr.decoding.words import text_of, words_of
from parley.asr.features import LogMel
from parley.asr.parakeet.networks import OnnxEncoder, OnnxJoint
from parley.errors import InferenceError, InvalidInputError
from parley.launcher.options import ROOT
from parley.runtime.batching import RowsNotFiniteError
from parley.runtime.onnx import open_session
from parley_torch.asr.loading import DeviceSettings, load_decoder, load_encoder
from parley_torch.asr.offline import RunSizes

SETTINGS = DeviceSettings(CPU, row_sizes=(1, 2))
SIZES = RunSizes(frames=(200, 600), rows=(1, 2), most=800)
PIECE = 16
"""Encoder frames that are decoded at once: fewer than recordings have."""


@pytest.fixture(scope="module")
def export():
    return checkpoint.load(ROOT / "models" / checkpoint.DEFAULT)


@pytest.fixture(scope="module")
def capture():
    return CountedCapture()


@pytest.fixture(scope="module")
def encoder(export, capture):
    return load_encoder(export, SETTINGS, SIZES, capture=capture)


@pytest.fixture(scope="module")
def decoder(export, encoder, capture):
    return load_decoder(export, SETTINGS, piece_frames=PIECE, capture=capture)


@pytest.fixture(scope="module")
def onnx(export):
    return OnnxEncoder(open_session(export.encoder)), OnnxJoint(open_session(export.decoder))


@pytest.fixture(scope="module")
def batch(export, spoken):
    """Features of five recordings of different lengths, f32 ``[5, 80, T]``, and their lengths."""
    mel = LogMel(export.config)
    own = [mel.normalized(mel.offline(clip.audio / np.float32(32768))) for clip in spoken]
    own = sorted((frames for frames in own if frames.shape[1] <= 600), key=lambda frames: frames.shape[1])
    own = [own[0], own[-1], own[1], own[2], own[-2]]
    features = np.zeros((5, 80, max(frames.shape[1] for frames in own)), np.float32)
    for row, frames in enumerate(own):
        features[row, :, : frames.shape[1]] = frames
    return features, np.array([frames.shape[1] for frames in own])


@pytest.fixture(autouse=True)
def nothing_is_captured(encoder, decoder, capture):
    # One row of 600 frames, two of 200; two sizes of decoding.
    assert SIZES.shapes() == [(1, 600), (2, 200), (1, 200)]
    yield
    assert capture.captured == 3 + 2


def test_texts_are_those_of_onnx(export, encoder, decoder, onnx, batch):
    expected, expected_lengths = onnx[0].encode(*batch)
    found, lengths = encoder.encode(*batch)
    assert lengths.tolist() == expected_lengths.tolist()
    assert lengths.max() > 2 * PIECE
    for row, length in enumerate(lengths):
        assert np.abs(found[row, :, :length] - expected[row, :, :length]).max() < 1e-4
    host = make_decoder(export, onnx[1])
    readings, state = host.decode(expected, expected_lengths, host.initial(5), None)
    own, own_state = decoder.decode(found, lengths, decoder.initial(5), None)
    for one, other in zip(own, readings, strict=True):
        assert same_tokens(one.settled, other.settled)
        assert one.settled.durations.tolist() == other.settled.durations.tolist()
        assert text_of(words_of(one.settled, export))
    assert own_state.keys() == state.keys()
    for name in ("targets", "skip", "phrase"):
        assert own_state[name].tolist() == state[name].tolist()
        assert own_state[name].dtype == state[name].dtype
    assert np.abs(own_state["hidden"] - state["hidden"]).max() < 1e-3


def test_phrases_are_decoded_as_by_onnx(export, decoder, onnx, batch):
    encoded, lengths = onnx[0].encode(*batch)
    boosting = [compile_phrases(["seattle", "tokyo"], 3.0, export.vocabulary)] * 5
    host = make_decoder(export, onnx[1])
    expected, _ = host.decode(encoded, lengths, host.initial(5), boosting)
    found, _ = decoder.decode(encoded, lengths, decoder.initial(5), boosting)
    for one, other in zip(found, expected, strict=True):
        assert same_tokens(one.settled, other.settled)


def test_beams_are_those_of_onnx(export, onnx, batch):
    encoded, lengths = onnx[0].encode(*batch)
    host = make_decoder(export, onnx[1], beam_size=3)
    beams = load_decoder(export, SETTINGS, piece_frames=PIECE, beam_size=3)
    expected, _ = host.decode(encoded[:2], lengths[:2], host.initial(2), None)
    found, _ = beams.decode(encoded[:2], lengths[:2], beams.initial(2), None)
    for one, other in zip(found, expected, strict=True):
        assert same_tokens(one.best, other.best)


def test_input_longer_than_prepared_is_refused(encoder):
    with pytest.raises(InvalidInputError, match="a row has 601 frames; at most 600 are prepared for"):
        encoder.encode(np.zeros((1, 80, 601), np.float32), np.array([601]))


def test_values_that_are_not_finite_are_an_error(encoder, decoder, batch):
    features, lengths = batch
    with pytest.raises(RowsNotFiniteError, match="output is not finite") as caught:
        encoder.encode(np.where(np.arange(5)[:, None, None] == 2, np.nan, features), lengths)
    assert caught.value.rows == (2,)
    encoded = np.zeros((3, 144, 3), np.float32)
    encoded[1] = np.nan
    with pytest.raises(RowsNotFiniteError, match="scores are not finite") as caught:
        decoder.decode(encoded, np.array([3, 3, 3]), decoder.initial(3), None)
    assert caught.value.rows == (1,)
    # The memory of the runs is good for others.
    assert np.isfinite(encoder.encode(features, lengths)[0]).all()
    decoder.decode(np.zeros((1, 144, 3), np.float32), np.array([3]), decoder.initial(1), None)


def test_a_row_without_a_frame_has_no_frames_and_changes_no_other_row(export, encoder, decoder, onnx, batch):
    features, lengths = batch
    empty = np.where(np.arange(5) == 3, 0, lengths)
    for network in (encoder, onnx[0]):
        expected, counts = network.encode(features, lengths)
        found, own = network.encode(features, empty)
        assert own.tolist() == np.where(np.arange(5) == 3, 0, counts).tolist()
        for row in (0, 1, 2, 4):
            assert np.abs(found[row, :, : counts[row]] - expected[row, :, : counts[row]]).max() < 1e-4
        for decode in (decoder, make_decoder(export, onnx[1])):
            readings, _ = decode.decode(found, own, decode.initial(5), None)
            assert not len(readings[3].settled.ids)
            assert len(readings[1].settled.ids)
        nothing, none = network.encode(features[:1], np.array([0]))
        assert (none.tolist(), bool(np.isfinite(nothing).all())) == ([0], True)


def test_a_device_that_fails_is_an_error_of_the_request(encoder, decoder, monkeypatch):
    def broken():
        raise torch.OutOfMemoryError("CUDA out of memory")

    for networks in (encoder, decoder):
        runs = {shape: (broken, result) for shape, (_, result) in networks._runs.items()}
        monkeypatch.setattr(networks, "_runs", runs)
    with pytest.raises(InferenceError, match=r"the encoder failed on \[1, 200\]: CUDA out of memory"):
        encoder.encode(np.zeros((1, 80, 9), np.float32), np.array([9]))
    with pytest.raises(InferenceError, match=r"the decoder failed on \[1, 16\]: CUDA out of memory"):
        decoder.decode(np.zeros((1, 144, 3), np.float32), np.array([3]), decoder.initial(1), None)


def test_rows_are_put_into_runs_that_fit():
    sizes = RunSizes(frames=(10, 20), rows=(1, 2, 4), most=40)
    assert sizes.rows_of(10) == [1, 2, 4]
    assert sizes.rows_of(20) == [1, 2]
    runs = sizes.runs(np.array([3, 20, 11, 9, 15, 10]))
    assert runs == [([0, 3, 5], 4, 10), ([2, 4], 2, 20), ([1], 1, 20)]
    assert RunSizes(frames=(50,), rows=(2, 4), most=40).shapes() == [(2, 50)]
