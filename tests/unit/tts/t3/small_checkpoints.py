"""The generator of small checkpoints."""

import importlib.util
from pathlib import Path

_PATH = Path(__file__).parents[4] / "build" / "chatterbox_export" / "small_t3.py"


def load():
    spec = importlib.util.spec_from_file_location("small_t3", _PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


write_small_t3 = load().write_small_t3
