"""The generator of small checkpoints, whose folder has the name of an installed package."""

import importlib.util
from pathlib import Path

_PATH = Path(__file__).parents[4] / "build" / "chatterbox" / "small_t3.py"


def load():
    spec = importlib.util.spec_from_file_location("small_t3", _PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


write_small_t3 = load().write_small_t3
