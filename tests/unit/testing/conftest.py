"""Calls run in virtual time."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "perf"))
sys.path.insert(0, str(Path(__file__).parents[1] / "agent"))

from virtual_loop import VirtualLoop


def pytest_asyncio_loop_factories(config, item):
    return {"virtual": VirtualLoop}
