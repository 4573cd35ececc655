"""Tools of your own: .venv/bin/parley talk --tools examples/tools.py.

The name, the docstring's first line and the type hints are what the language model sees.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Literal

from parley_client import tool

_STOCK = {"coffee": 12, "tea": 0}
_lights = {"kitchen": False, "bedroom": False}


@tool
def check_stock(item: Annotated[str, "What is looked for."]) -> dict[str, int]:
    """Tell how many of an item are in stock."""
    if item not in _STOCK:
        raise LookupError(f"{item} is not sold here")  # the model is told so, and explains it
    return {"in_stock": _STOCK[item]}


@tool(name="switch_light", timeout_s=2.0)
async def switch(
    room: Annotated[Literal["kitchen", "bedroom"], "Which room."],
    on: Annotated[bool, "On or off."] = True,
) -> dict[str, bool]:
    """Switch the light of a room."""
    await asyncio.sleep(0.1)  # a coroutine may wait for a device; others go on meanwhile
    _lights[room] = on
    return {"on": _lights[room]}
