"""A gateway that listens, in front of a server whose models answer as the tests say."""

import sys
from contextlib import AsyncExitStack
from pathlib import Path

import httpx
import pytest

sys.path.append(str(Path(__file__).parents[2] / "client"))

from fake_models import serving_fake

from parley_gateway.app import create_app
from parley_gateway.model_health import ModelReport
from parley_gateway.servers import Servers
from parley_gateway.serving import running
from parley_gateway.settings import load_settings


class StageGateway:
    """A gateway; ``models`` is the server behind it."""

    def __init__(self, models, url, http, app):
        self.models = models
        self.url = url
        self.ws_url = "ws" + url.removeprefix("http")
        self.http = http
        self.gateway = app.state.gateway


async def always_ready(channel, timeout_s):
    pass


@pytest.fixture
async def start():
    """Starts gateways with settings by part; stops them at the end.

    ``before`` are addresses of other servers, which are asked first.
    """
    async with AsyncExitStack() as stack:

        async def begin(**parts):
            models = await stack.enter_async_context(serving_fake())
            addresses = [*parts.pop("before", ()), models.address]
            parts = {"servers": {"addresses": addresses}, "listen": {"port": 0}} | parts
            settings = load_settings(flags=parts)
            app = create_app(
                settings,
                servers=Servers(settings.servers, probe=always_ready, ask_models=lambda *_: ModelReport([])),
            )
            url = (await stack.enter_async_context(running(settings, app=app))).url
            http = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=10))
            return StageGateway(models, url, http, app)

        yield begin


@pytest.fixture
async def gateway(start):
    return await start()
