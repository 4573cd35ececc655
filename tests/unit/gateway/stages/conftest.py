"""Gateways in front of fake models."""

import sys
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[2] / "client"))

from stage_gateway import serving


@pytest.fixture
async def start():
    """Starts gateways with settings by section; stops them at the end."""
    async with AsyncExitStack() as stack:

        async def begin(**parts):
            return await stack.enter_async_context(serving(**parts))

        yield begin


@pytest.fixture
async def gateway(start):
    return await start()
