"""A gateway with the settings of its environment; prints its address when it listens.

One API more serves what records the page's sound: browsers load that from nowhere else.
"""

import asyncio
import os
from pathlib import Path

from fastapi import APIRouter
from starlette.responses import FileResponse

from parley_gateway import app


def routes(_):
    router = APIRouter()

    @router.get("/tap.js")
    async def tap():
        return FileResponse(Path(__file__).with_name("tap.js"))

    return router


app.APIS = (*app.APIS, routes)

from parley_gateway.serving import serve  # noqa: E402
from parley_gateway.settings import load_settings  # noqa: E402

asyncio.run(serve(load_settings(environment=os.environ), lambda one: print(one.url, flush=True)))
