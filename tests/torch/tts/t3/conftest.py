import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[4] / "build"))

from chatterbox_export.small_t3 import write_small_t3
from parley_torch.tts.t3.checkpoint import find_checkpoint, read_shape


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory):
    """Small checkpoints by variant, written when they are first asked for."""
    made = {}

    def get(variant):
        if variant not in made:
            folder = write_small_t3(tmp_path_factory.mktemp(variant), variant, layers=1)
            made[variant] = find_checkpoint(folder)
        return made[variant], read_shape(made[variant])

    return get
