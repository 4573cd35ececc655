"""The remedy where the server's Python lacks the packages of Parley. It imports none of them."""

from __future__ import annotations

import sys
from pathlib import Path


def describe(package: str) -> str:
    """One sentence for the log and the error of loading."""
    programs = Path(__file__).resolve().parents[3] / ".venv" / "bin"
    return (
        f"the Python of the server ({sys.prefix}) has no package {package}: start tritonserver with "
        f"PATH={programs}:$PATH, or name an environment in EXECUTION_ENV_PATH (docs/plain-triton.md)"
    )
