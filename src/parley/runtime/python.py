"""The interpreter that programs of the project run in, from within a process that embeds Python."""

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
