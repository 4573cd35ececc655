"""Torch with one thread: several would wait for each other where tests run side by side."""

import pytest
import torch
from clip_fixtures import clips, export, models, spoken

__all__ = ["clips", "export", "models", "spoken"]


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
