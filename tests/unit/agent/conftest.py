"""Tests of the agent run in virtual time."""

from __future__ import annotations

from virtual_loop import VirtualLoop


def pytest_asyncio_loop_factories(config, item):
    return {"virtual": VirtualLoop}
