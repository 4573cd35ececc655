"""chatterbox-tts' own modules beside ours, with the same random weights."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / folder) for folder in ("build", "src")]

from chatterbox_export import upstream  # noqa: E402

upstream.make_importable()


@pytest.fixture(scope="session", autouse=True)
def _one_thread():
    # Small networks: more threads only wait for each other.
    torch.set_num_threads(1)
