import sys
from pathlib import Path

import pytest
import torch

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parents[4] / "build")]


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    # Small networks: more threads only wait for each other.
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def weights(tmp_path_factory):
    """A small checkpoint."""
    from chatterbox_export.small_s3gen import write_small_s3gen
    from chatterbox_export.small_t3 import write_small_t3

    folder = write_small_t3(tmp_path_factory.mktemp("chatterbox"), layers=1)
    write_small_s3gen(folder, meanflow=False, layers=1)
    return folder


@pytest.fixture(scope="session")
def networks(weights):
    from parley_torch.tts.voices.enrollment import checkpoint

    return checkpoint.load(weights)


@pytest.fixture(scope="session")
def detect():
    from parley.runtime.onnx import open_session
    from parley.vad.silero import FILE, bundled_folder
    from parley_torch.tts.voices.enrollment.recordings import silero

    return silero(open_session(bundled_folder() / FILE))
