from pathlib import Path

import numpy as np
import pytest
import soundfile

from parley.errors import InferenceError
from parley.runtime.onnx import open_session
from parley.vad.silero import CONTEXT, FILE, STATE, WINDOW, SileroVad, bundled_folder

CLIPS = Path(__file__).resolve().parents[2] / "data/asr_eval"


@pytest.fixture(scope="module")
def vad():
    return SileroVad(open_session(bundled_folder() / FILE))


@pytest.fixture(scope="module")
def recordings():
    """Windows of four real clips, f32 [W, 512] each."""
    audio = [soundfile.read(path, dtype="float32")[0] for path in sorted(CLIPS.glob("s*.flac"))[4:40:10]]
    return [samples[: len(samples) // WINDOW * WINDOW].reshape(-1, WINDOW) for samples in audio]


def fresh(rows):
    return np.zeros((rows, *STATE), np.float32), np.zeros((rows, CONTEXT), np.float32)


def alone(vad, windows):
    counts = np.array([len(windows)], np.int32)
    return vad.detect(windows[None], counts, *fresh(1))[0][0]


def test_probabilities_are_those_of_silero_s_own_sequence_graph(vad, recordings):
    """That graph takes all windows of a recording at once, with the context before each."""
    graph = open_session(bundled_folder() / "silero_vad_16k_sequence.onnx")
    zero = np.zeros((1, 1, 128), np.float32)
    for windows in recordings:
        context = np.vstack([np.zeros((1, CONTEXT), np.float32), windows[:-1, -CONTEXT:]])
        feed = {"input": np.hstack([context, windows]), "h": zero, "c": zero}
        expected = graph.run(["speech_probs"], feed)[0]
        found = alone(vad, windows)
        assert np.abs(found - expected).max() < 1e-3
        assert found.max() > 0.9


def test_streams_in_a_batch_of_unequal_lengths_are_as_alone(vad, recordings):
    counts = np.array([len(windows) for windows in recordings], np.int32)
    batch = np.full((len(counts), counts.max(), WINDOW), 0.5, np.float32)
    for row, windows in enumerate(recordings):
        batch[row, : counts[row]] = windows
    probabilities, state, context = vad.detect(batch, counts, *fresh(len(counts)))
    for row, windows in enumerate(recordings):
        own, own_state, own_context = vad.detect(windows[None], counts[row : row + 1], *fresh(1))
        assert np.abs(probabilities[row, : counts[row]] - own[0]).max() < 1e-5
        assert not probabilities[row, counts[row] :].any()
        assert np.abs(state[row] - own_state[0]).max() < 1e-4
        assert np.array_equal(context[row], own_context[0])


def test_carried_state_makes_pieces_equal_the_whole(vad, recordings):
    windows = recordings[0]
    carried, found, at = fresh(1), [], 0
    for size in (1, 3, 2, 5, 1000):
        piece = windows[at : at + size]
        scored, *carried = vad.detect(piece[None], np.array([len(piece)], np.int32), *carried)
        found += scored[0].tolist()
        at += size
    assert np.abs(np.array(found) - alone(vad, windows)).max() < 1e-5


def test_the_caller_s_arrays_are_left_alone(vad, recordings):
    state, context = fresh(1)
    vad.detect(recordings[0][None, :3], np.array([3], np.int32), state, context)
    assert not state.any()
    assert not context.any()


def test_no_window_at_all_is_not_given_to_the_network():
    """It would end the process."""
    state, context = np.full((2, *STATE), 0.5, np.float32), np.full((2, CONTEXT), 0.5, np.float32)
    found = SileroVad(None).detect(
        np.zeros((2, 5, WINDOW), np.float32), np.zeros(2, np.int32), state, context
    )
    assert [array.tolist() for array in found] == [
        np.zeros((2, 5)).tolist(),
        state.tolist(),
        context.tolist(),
    ]


def test_a_failing_network_is_an_inference_error(vad):
    with pytest.raises(InferenceError, match="voice activity"):
        vad.detect(np.zeros((1, 1, 7), np.float32), np.array([1], np.int32), *fresh(1))
