"""A gateway with a telephone door, in this process, and an agent without a server."""

import asyncio
import contextlib
import logging
import sys
from pathlib import Path

import pytest
import uvicorn
from websockets.asyncio.client import connect

from parley_gateway.app import create_app
from parley_gateway.doors.twilio.settings import TwilioSettings
from parley_gateway.listening import ListenSettings
from parley_gateway.servers import Servers, ServerSettings
from parley_gateway.settings import Settings

sys.path.append(str(Path(__file__).parents[2] / "client"))  # fake_agent

from fake_agent import FakeAgent
from twilio_line import ACCOUNT, AUTH_TOKEN, PUBLIC_URL, TwilioLine, sign


class Uvicorn(uvicorn.Server):
    """Says when it listens, and leaves signals alone."""

    def __init__(self, config):
        super().__init__(config)
        self.listens = asyncio.Event()

    async def startup(self, sockets=None):
        await super().startup(sockets)
        self.listens.set()

    @contextlib.contextmanager
    def capture_signals(self):
        yield


class Phone:
    """The gateway as Twilio sees it."""

    def __init__(self, port):
        self.http = f"http://127.0.0.1:{port}"
        self._socket = f"ws://127.0.0.1:{port}/v1/twilio/stream"

    @contextlib.asynccontextmanager
    async def stream(self, signature=None, path=""):
        address = f"wss{PUBLIC_URL.removeprefix('https')}/v1/twilio/stream"
        headers = {"X-Twilio-Signature": sign(address) if signature is None else signature}
        async with connect(self._socket + path, additional_headers=headers, open_timeout=10) as socket:
            yield TwilioLine(socket)


async def ready(*_):
    """The probe of a server that is always ready."""


@pytest.fixture
def gateway(tmp_path):
    """Opens a gateway with agents that behave as told, and other settings."""

    @contextlib.asynccontextmanager
    async def gateway(*behaviours, **settings):
        (tmp_path / "token").write_text(AUTH_TOKEN + "\n")
        twilio = {"auth_token_file": str(tmp_path / "token"), "account": ACCOUNT} | settings.pop("twilio", {})
        configured = Settings(
            listen=ListenSettings(public_url=PUBLIC_URL), twilio=TwilioSettings(**twilio), **settings
        )
        agent = FakeAgent(*behaviours)
        app = create_app(
            configured, servers=Servers(ServerSettings(), probe=ready), transport=lambda _: agent
        )
        server = Uvicorn(
            uvicorn.Config(app, host="127.0.0.1", port=0, ws="websockets-sansio", log_config=None)
        )
        running = asyncio.create_task(server.serve())
        await asyncio.wait_for(server.listens.wait(), 10)
        phone = Phone(server.servers[0].sockets[0].getsockname()[1])
        phone.app, phone.agent = app, agent
        try:
            yield phone
        finally:
            server.should_exit = True
            await asyncio.wait_for(running, 10)
            await agent.close()

    return gateway


@pytest.fixture(autouse=True)
def quiet():
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
