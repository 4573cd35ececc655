"""Utterances run in virtual time."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "unit" / "agent"))

from virtual_loop import VirtualLoop


def pytest_asyncio_loop_factories(config, item):
    return {"virtual": VirtualLoop}
