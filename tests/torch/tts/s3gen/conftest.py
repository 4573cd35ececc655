"""A small S3Gen with random weights."""

import sys
from pathlib import Path

import pytest
import torch
from s3gen_fakes import CPU, make_voice

sys.path.insert(0, str(Path(__file__).parents[4] / "build"))

from parley_torch.tts.s3gen import checkpoint
from parley_torch.tts.s3gen.synthesizer import AudioSynthesizer


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    # Small networks: more threads only wait for each other.
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def networks():
    from chatterbox_export.small_s3gen import small_s3gen

    return checkpoint.build(small_s3gen())


@pytest.fixture(scope="session")
def guided_networks():
    from chatterbox_export.small_s3gen import small_s3gen

    return checkpoint.build(small_s3gen(meanflow=False))


@pytest.fixture
def synthesizer(networks):
    return AudioSynthesizer(networks, CPU)


@pytest.fixture(scope="session")
def voice():
    return make_voice(40)
