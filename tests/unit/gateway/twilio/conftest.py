"""A gateway with a telephone API, and an agent without a server."""

import contextlib

import pytest
from twilio_line import ACCOUNT, AUTH_TOKEN, PUBLIC_URL, TwilioLine, sign
from websockets.asyncio.client import connect


class Phone:
    """The gateway as Twilio sees it."""

    def __init__(self, one):
        self.http, self.app, self.agent = one.url, one.app, one.agents[0]
        self._socket = f"{one.ws_url}/v1/twilio/stream"

    @contextlib.asynccontextmanager
    async def stream(self, signature=None, path=""):
        address = f"wss{PUBLIC_URL.removeprefix('https')}/v1/twilio/stream"
        headers = {"X-Twilio-Signature": sign(address) if signature is None else signature}
        async with connect(self._socket + path, additional_headers=headers, open_timeout=10) as socket:
            yield TwilioLine(socket)


@pytest.fixture
def gateway(gateway, tmp_path):
    """Opens a gateway with agents of given behaviours, and other settings by section."""

    @contextlib.asynccontextmanager
    async def open_gateway(*behaviours, twilio=None, **parts):
        (tmp_path / "token").write_text(AUTH_TOKEN + "\n")
        own = {"auth_token_file": str(tmp_path / "token"), "account": ACCOUNT, "own_twiml": True}
        yield Phone(
            await gateway(
                *behaviours,
                listen={"public_url": PUBLIC_URL},
                security={"insecure_allow_anonymous": True},
                twilio=own | (twilio or {}),
                **parts,
            )
        )

    return open_gateway
