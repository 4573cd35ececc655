"""A gateway with a telephone API, in this process, and an agent without a server."""

import contextlib

import pytest
from fake_agent import FakeAgent
from twilio_line import ACCOUNT, AUTH_TOKEN, PUBLIC_URL, TwilioLine, sign
from websockets.asyncio.client import connect

from parley_gateway.apis.settings import TwilioSettings
from parley_gateway.app import create_app
from parley_gateway.security.settings import SecuritySettings
from parley_gateway.servers import Servers, ServerSettings
from parley_gateway.serving import running
from parley_gateway.settings import Settings
from parley_gateway.settings_sections import ListenSettings


class Phone:
    """The gateway as Twilio sees it."""

    def __init__(self, url):
        self.http = url
        self._socket = f"ws{url.removeprefix('http')}/v1/twilio/stream"

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
    """Opens a gateway with agents of given behaviours, and other settings."""

    @contextlib.asynccontextmanager
    async def gateway(*behaviours, **settings):
        (tmp_path / "token").write_text(AUTH_TOKEN + "\n")
        twilio = {
            "auth_token_file": str(tmp_path / "token"),
            "account": ACCOUNT,
            "own_twiml": True,
        } | settings.pop("twilio", {})
        settings.setdefault("servers", ServerSettings(metrics_url=""))
        settings.setdefault("security", SecuritySettings(insecure_allow_anonymous=True))
        configured = Settings(
            listen=ListenSettings(port=0, public_url=PUBLIC_URL), twilio=TwilioSettings(**twilio), **settings
        )
        agent = FakeAgent(*behaviours)
        app = create_app(
            configured,
            servers=Servers(configured.servers, probe=ready, ask_models=lambda *_: []),
            transport=lambda _: agent,
        )
        async with running(configured, app=app) as found:
            phone = Phone(found.url)
            phone.app, phone.agent = app, agent
            yield phone
        await agent.close()

    return gateway
