"""chatterbox-tts' own modules, to compare with, in the environment .venv-export.

Its package as a whole imports a watermarker, a loudness meter and more that nothing here needs, so its
modules are imported one by one. They and torchaudio lie apart from the environment's other
packages (``build/requirements/chatterbox.in``).
"""

from __future__ import annotations

import sys
import types
from importlib.machinery import ModuleSpec
from pathlib import Path

FOLDER = Path(sys.prefix) / "apart"


def make_importable() -> None:
    """Let ``import chatterbox.models...`` work, in this process and from now on.

    Raises:
        ModuleNotFoundError: this is not the environment that has it.
    """
    if str(FOLDER) in sys.path:
        return
    root = FOLDER / "chatterbox"
    if not root.is_dir():
        raise ModuleNotFoundError(f"{root} is missing")
    sys.path.append(str(FOLDER))
    package = types.ModuleType("chatterbox")
    package.__path__ = [str(root)]
    package.__spec__ = ModuleSpec("chatterbox", None, is_package=True)
    sys.modules["chatterbox"] = package
    # torchaudio's library is built for GPUs; what is used of torchaudio is Python.
    extension = types.ModuleType("torchaudio._extension")
    extension.__dict__.update(_IS_TORCHAUDIO_EXT_AVAILABLE=False, fail_if_no_align=lambda function: function)
    sys.modules["torchaudio._extension"] = extension
