"""A gateway with the settings of its environment; prints its address when it listens.

One API more serves what records the page's sound: browsers load that from nowhere else.
"""

import asyncio
import os
from pathlib import Path

from fastapi import APIRouter
from starlette.responses import FileResponse

from parley_gateway.app import APIS, create_app
from parley_gateway.serving import serve
from parley_gateway.settings import load_settings


def routes(_):
    router = APIRouter()

    @router.get("/tap.js")
    async def tap():
        return FileResponse(Path(__file__).with_name("tap.js"))

    return router


settings = load_settings(environment=os.environ)
one = create_app(settings, apis=(*APIS, routes))
asyncio.run(serve(settings, lambda running: print(running.url, flush=True), app=one))
