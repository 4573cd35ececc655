"""A gateway process as ``parley gateway`` starts one, in front of an agent and models that answer everything.

Its settings come from its environment; it prints its address when it listens, and ends with its input.
"""

import asyncio
import contextlib
import logging
import os
import sys

from fake_models import serving_fake
from fuzzed_gateway import TalkativeAgents, prepare
from listening_gateway import always_ready

from parley_gateway.app import create_app
from parley_gateway.logs import log_to_stderr
from parley_gateway.servers import Servers
from parley_gateway.serving import running
from parley_gateway.settings import load_settings


async def main():
    async with contextlib.AsyncExitStack() as stack:
        models = await stack.enter_async_context(serving_fake())
        prepare(models)
        settings = load_settings(
            environment=os.environ,
            flags={
                "servers": {"addresses": [models.address], "metrics_url": ""},
                "listen": {"port": 0},
            },
        )
        agents = TalkativeAgents()
        servers = Servers(settings.servers, probe=always_ready, ask_models=lambda *_: [])
        app = create_app(settings, servers=servers, transport=lambda _: agents)
        stack.enter_context(log_to_stderr(settings.security.audit_file, logging.INFO))
        one = await stack.enter_async_context(running(settings, app=app))
        print(one.url, flush=True)
        await asyncio.to_thread(sys.stdin.read)


asyncio.run(main())
