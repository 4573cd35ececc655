"""How programs of the project are called: their interpreter, and the command ``parley``."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path


def find_python(environment: Mapping[str, str]) -> str | None:
    """The Python whose packages this process uses; None: it is not found.

    In the processes of Triton's models ``sys.executable`` is Triton's own program.
    """
    if Path(sys.executable or "").name.startswith("python"):
        return sys.executable
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    installed = Path(sys.prefix) / "bin" / name
    return str(installed) if installed.exists() else shutil.which(name, path=environment.get("PATH"))


def parley_command(checkout: Path, environment: Mapping[str, str]) -> str:
    """What to write for the command ``parley`` in a text for people: as it is called from a terminal here.

    An image has it on its PATH. A clone has it in its environment, which need not be activated.
    """
    own = Path(".venv", "bin", "parley")
    is_on_path = shutil.which("parley", path=environment.get("PATH")) is not None
    return "parley" if is_on_path or not (checkout / own).exists() else str(own)
