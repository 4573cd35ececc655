"""A gateway for telephones, an agent without a server, and a telephone."""

import asyncio
from contextlib import asynccontextmanager

import pytest
from telephone import HOST, Telephone, free_port, until
from telephone_agent import TelephoneAgent

from parley_gateway.security.keys import new_key
from parley_gateway.sip.routes import APIS


class TelephoneGateway:
    """A gateway that telephones reach at `url`; `agents` are those of its calls, in order."""

    def __init__(self, one, url, agents, keys):
        self.key, self.weak_key = ({"Authorization": f"Bearer {key.secret}"} for key in keys)
        self.http, self.gateway, self.url, self.agents = one.http, one.gateway, url, agents

    async def agent(self, number=0):
        """The agent of a call, once the call has begun."""
        await until(lambda: len(self.agents) > number)
        await asyncio.wait_for(self.agents[number].start, 10)
        return self.agents[number]

    def registered(self):
        """What the metric of registrations says."""
        return self.gateway.metrics.sip_registered._value.get()

    async def idle(self):
        """Wait until no call is left."""
        await until(lambda: not self.gateway.calls.count)


@pytest.fixture
def telephones(gateway, tmp_path):
    """Opens a gateway for telephones, with settings of SIP and others by section."""

    @asynccontextmanager
    async def open_gateway(*, opening_s=0.0, sip=None, **parts):
        agents = []

        async def behave(stream):
            agents.append(agent := TelephoneAgent())
            await asyncio.sleep(opening_s)
            await agent(stream)

        keys = [new_key("dialer", ["dial"]), new_key("kiosk", ["agent"])]
        (tmp_path / "keys.toml").write_text("\n".join(key.line for key in keys))
        url = f"sip:{HOST}:{free_port()}"
        one = await gateway(
            behave,
            apis=APIS,
            sip={"listen": url, "transfer_s": 5.0} | (sip or {}),
            security={"keys_file": str(tmp_path / "keys.toml")},
            **parts,
        )
        yield TelephoneGateway(one, f"sip:agent@{url.removeprefix('sip:')}", agents, keys)

    return open_gateway


@pytest.fixture
def call(telephones):
    """An open call: (the telephone, its agent, the gateway)."""

    @asynccontextmanager
    async def call(*, telephone=None, **settings):
        async with telephones(**settings) as gateway, Telephone(**(telephone or {})).on() as phone:
            phone.call(gateway.url)
            agent = await gateway.agent()
            await phone.state("ready")
            yield phone, agent, gateway

    return call
