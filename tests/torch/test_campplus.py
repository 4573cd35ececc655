"""The graph of CAM++ against the network in PyTorch, with random weights."""

import io
import zipfile

import numpy as np
import pytest
import torch

from parley.errors import InferenceError, ModelLoadingError
from parley.runtime.onnx import open_session
from parley.speakers.campplus import BANK, make_graph
from parley.speakers.embedding import FILE, LEAST, MOST, SpeakerEmbedding
from parley_torch.tts.voices.enrollment.networks import SpeakerEncoder


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    made = SpeakerEncoder(front=4, first=16, growth=4, inner=8, layers=(2, 2, 1), size=12).eval()
    for name, values in made.state_dict().items():
        if name.endswith(("running_mean", "running_var")):
            values.uniform_(0.5, 1.5)
    return made


@pytest.fixture(scope="module")
def file(network, tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / FILE
    torch.save(network.state_dict(), path)
    return path


@pytest.fixture(scope="module")
def session(file):
    return open_session(file, part=make_graph(file))


@pytest.mark.parametrize(("rows", "frames"), [(1, 48), (1, 200), (2, 151)])
def test_embeddings_are_those_of_the_network(network, session, rows, frames):
    bank = np.random.default_rng(frames).normal(size=(rows, frames, 80)).astype(np.float32)
    (found,) = session.run(None, {BANK: bank})
    with torch.inference_mode():
        wanted = [network.xvector(network.head(torch.from_numpy(one.T[None])))[0].numpy() for one in bank]
    assert found == pytest.approx(np.stack(wanted), rel=1e-3, abs=1e-4)


def test_vector_has_the_length_1_for_any_length_of_speech(session):
    speech = np.random.default_rng(0).integers(-3_000, 3_000, MOST, np.int16)
    for samples in (LEAST, MOST // 2, MOST):
        vector = SpeakerEmbedding(session).embed(speech[:samples])
        assert vector.shape == (12,)
        assert np.linalg.norm(vector) == pytest.approx(1.0, abs=1e-5)


def test_vector_does_not_depend_on_the_level_of_speech(session):
    speech = np.random.default_rng(0).integers(-3_000, 3_000, LEAST, np.int16)
    louder = SpeakerEmbedding(session).embed(speech * 4)
    assert louder @ SpeakerEmbedding(session).embed(speech) == pytest.approx(1.0, abs=1e-3)


def test_failure_of_the_network_is_an_inference_error():
    with pytest.raises(InferenceError):
        SpeakerEmbedding(None).embed(np.zeros(LEAST, np.int16))


def test_file_without_the_network_is_refused(tmp_path):
    torch.save({"weight": torch.zeros(3)}, tmp_path / FILE)
    with pytest.raises(ModelLoadingError, match="no CAM"):
        make_graph(tmp_path / FILE)


def zipped(pickled):
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("model/data.pkl", pickled)
    return made.getvalue()


@pytest.mark.parametrize("content", [b"", b"no zip", *map(zipped, (b"", b"0.", b"K\x01Q.", b"]."))])
def test_file_that_is_none_of_torch_is_refused(tmp_path, content):
    (tmp_path / FILE).write_bytes(content)
    with pytest.raises(ModelLoadingError, match="not a file of tensors"):
        make_graph(tmp_path / FILE)


def test_file_with_code_is_not_run(tmp_path):
    torch.save({"weight": pytest.approx}, tmp_path / FILE)
    with pytest.raises(ModelLoadingError, match="it has a"):
        make_graph(tmp_path / FILE)
