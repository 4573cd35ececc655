"""A client of Deepgram's WebSockets."""

import json
from contextlib import suppress

import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus


async def say(socket, kind, **fields):
    """Send a message."""
    await socket.send(json.dumps({"type": kind, **fields}))


async def rest(socket):
    """The JSON messages until the end, and how the socket is closed."""
    messages = []
    with suppress(ConnectionClosed):
        while True:
            message = await socket.recv()
            if isinstance(message, str):
                messages.append(json.loads(message))
    return messages, (socket.close_code, socket.close_reason)


async def refusal(connecting):
    """The response to a refused connection, and its JSON body."""
    with pytest.raises(InvalidStatus) as caught:
        async with connecting:
            pass
    return caught.value.response, json.loads(caught.value.response.body)
