"""A gateway that listens, in front of a server whose models behave as a test sets them."""

from contextlib import asynccontextmanager

import httpx
from fake_models import serving_fake
from listening_gateway import NO_CERTIFICATES, always_ready

from parley_gateway.app import create_app
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


@asynccontextmanager
async def serving(*, before=(), timeout_s=10, **parts):
    """A gateway with settings by section; ``before`` are addresses of servers that are tried first."""
    async with serving_fake() as models:
        parts = {
            "servers": {"addresses": [*before, models.address], "metrics_url": ""},
            "listen": {"port": 0},
        } | parts
        settings = load_settings(flags=parts)
        servers = Servers(settings.servers, probe=always_ready, ask_models=lambda *_: [])
        app = create_app(settings, servers=servers)
        async with (
            running(settings, app=app) as one,
            httpx.AsyncClient(base_url=one.url, timeout=timeout_s, verify=NO_CERTIFICATES) as http,
        ):
            yield StageGateway(models, one.url, http, app)
