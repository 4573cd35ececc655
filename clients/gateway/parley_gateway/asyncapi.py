"""The AsyncAPI document: what is said on WebSockets, from the types that read and write it."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from parley_gateway.apis.sessions import messages
from parley_gateway.schemas import components_of
from parley_gateway.websocket import __doc__ as closing

_VERSION = "3.0.0"


@dataclass(frozen=True)
class Channel:
    """One kind of WebSocket."""

    name: str
    address: str
    description: str
    from_client: tuple[type, ...]
    from_gateway: tuple[type, ...]
    audio_from_client: str
    """What binary messages to the gateway are."""
    audio_from_gateway: str
    """What binary messages from it are."""


SESSIONS = Channel(
    name="session",
    address="/v1/sessions/{session_id}/stream",
    description=(
        f"A session's stream; subprotocol `{messages.SUBPROTOCOL}`. Credentials as in HTTP; browsers send "
        "the session's token as the subprotocols `bearer, <token>`. How it is closed:\n\n"
        + inspect.cleandoc(closing or "")
    ),
    from_client=messages.FROM_CLIENT,
    from_gateway=messages.FROM_GATEWAY,
    audio_from_client="The user's audio: 16 kHz, mono, PCM16 little endian, of any length.",
    audio_from_gateway=(
        "The agent's audio: mono, PCM16 little endian. It belongs to the `audio` message right before it: "
        "that says where in which response it is, its rate, and which words begin in it."
    ),
)


def asyncapi(version: str, channels: tuple[Channel, ...] = (SESSIONS,)) -> dict[str, Any]:
    """The document.

    Args:
        version: Of the gateway.
        channels: What it describes.
    """
    kinds = [kind for channel in channels for kind in (*channel.from_client, *channel.from_gateway)]
    return {
        "asyncapi": _VERSION,
        "info": {"title": "Parley gateway", "version": version},
        "defaultContentType": "application/json",
        "channels": {channel.name: _channel(channel) for channel in channels},
        "operations": {
            name: operation for channel in channels for name, operation in _operations(channel).items()
        },
        "components": {"schemas": components_of(kinds)[1]},
    }


def _channel(channel: Channel) -> dict[str, Any]:
    parameters = {
        part[1:-1]: {"description": "As REST has answered."}
        for part in channel.address.split("/")
        if part.startswith("{")
    }
    binary = {"from_client": channel.audio_from_client, "from_gateway": channel.audio_from_gateway}
    return {
        "address": channel.address,
        "description": channel.description,
        "parameters": parameters,
        "messages": {
            **{kind.__name__: _message(kind) for kind in (*channel.from_client, *channel.from_gateway)},
            **{
                f"audio_{direction}": {
                    "contentType": "application/octet-stream",
                    "description": text,
                    "payload": {"type": "string", "format": "binary"},
                }
                for direction, text in binary.items()
            },
        },
        "bindings": {"ws": {"method": "GET"}},
    }


def _message(kind: type) -> dict[str, Any]:
    return {
        "name": kind.__struct_config__.tag,  # type: ignore[attr-defined]
        "summary": (inspect.getdoc(kind) or "").split("\n\n")[0].replace("\n", " "),
        "payload": {"$ref": f"#/components/schemas/{kind.__name__}"},
    }


def _operations(channel: Channel) -> dict[str, Any]:
    def operation(action: str, kinds: tuple[type, ...], audio: str) -> dict[str, Any]:
        at = f"#/channels/{channel.name}"
        names = [*(kind.__name__ for kind in kinds), audio]
        return {
            "action": action,
            "channel": {"$ref": at},
            "messages": [{"$ref": f"{at}/messages/{name}"} for name in names],
        }

    return {
        f"{channel.name}_from_client": operation("receive", channel.from_client, "audio_from_client"),
        f"{channel.name}_from_gateway": operation("send", channel.from_gateway, "audio_from_gateway"),
    }
