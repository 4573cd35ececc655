"""Gateways in front of fake models."""

from contextlib import AsyncExitStack

import pytest
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
