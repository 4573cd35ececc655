"""Gateways in front of fake models."""

from contextlib import AsyncExitStack

import pytest
from listening_gateway import GatewayUnderTest
from scripted_agent import Agent
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


@pytest.fixture
def agent():
    return Agent()


@pytest.fixture
async def agent_gateway(agent):
    """Starts gateways with settings by section, in front of an agent."""
    async with AsyncExitStack() as stack:

        async def begin(behaviour=agent, **parts):
            one = GatewayUnderTest((behaviour,), parts)
            await one.start()
            stack.push_async_callback(one.stop)
            return one

        yield begin
