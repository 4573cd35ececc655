"""A sign of an event loop that turns, for the launcher.

A model with several instances goes on answering while one of them hangs, so that no canary finds it.
"""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from parley.serving.model_control import FOLDER_VARIABLE

_INTERVAL_S = 1.0


def heartbeat_path(folder: Path, pid: int) -> Path:
    """The file that a process touches as long as its event loop turns."""
    return folder / f"{pid}.heartbeat"


async def beat(interval_s: float = _INTERVAL_S) -> None:
    """Touch this process's file for ever; returns at once if no launcher looks at it.

    Args:
        interval_s: between two times (seconds).
    """
    folder = os.environ.get(FOLDER_VARIABLE)
    while folder:
        heartbeat_path(Path(folder), os.getpid()).touch(mode=0o600)
        await asyncio.sleep(interval_s)
