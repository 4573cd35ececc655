"""The AsyncAPI document: the messages of a session's WebSocket, from the types that read and write it."""

from __future__ import annotations

import inspect
from typing import Any

from parley_gateway.apis.sessions import design
from parley_gateway.apis.sessions.messages import FROM_CLIENT, FROM_GATEWAY, SUBPROTOCOL
from parley_gateway.schemas import components_of
from parley_gateway.websocket import __doc__ as closing

_DESCRIPTION = (
    f"A session's stream; subprotocol `{SUBPROTOCOL}`. Credentials as in HTTP; browsers send the session's "
    "token as the subprotocols `bearer, <token>`. How it is closed:\n\n" + inspect.cleandoc(closing or "")
)
_DESIGN = inspect.cleandoc(design.__doc__ or "") + (
    f"\n\nChosen with `?protocol=design`, or with the subprotocol `{design.SUBPROTOCOL}`."
)
_AUDIO = {
    "from_client": "The user's audio: 16 kHz, mono, PCM16 little endian, of any length.",
    "from_gateway": (
        "The agent's audio: mono, PCM16 little endian. It belongs to the `audio` message right before it: "
        "that says where in which response it is, its rate, and which words begin in it."
    ),
}
"""What binary messages are."""
_DESIGN_AUDIO = dict.fromkeys(_AUDIO, f"Audio: at most {design.MAX_CHUNK_BYTES} bytes.")


def asyncapi(version: str) -> dict[str, Any]:
    """The document of a gateway of this version."""
    kinds = (*FROM_CLIENT, *FROM_GATEWAY, *design.FROM_CLIENT, *design.FROM_GATEWAY)
    return {
        "asyncapi": "3.0.0",
        "info": {"title": "Parley gateway", "version": version},
        "defaultContentType": "application/json",
        "channels": {
            "session": _channel(_DESCRIPTION, (*FROM_CLIENT, *FROM_GATEWAY), _AUDIO),
            "design": _channel(_DESIGN, (*design.FROM_CLIENT, *design.FROM_GATEWAY), _DESIGN_AUDIO),
        },
        "operations": {
            "session_from_client": _operation("receive", "session", FROM_CLIENT, "audio_from_client"),
            "session_from_gateway": _operation("send", "session", FROM_GATEWAY, "audio_from_gateway"),
            "design_from_client": _operation("receive", "design", design.FROM_CLIENT, "audio_from_client"),
            "design_from_gateway": _operation("send", "design", design.FROM_GATEWAY, "audio_from_gateway"),
        },
        "components": {"schemas": components_of(kinds)[1]},
    }


def _channel(description: str, kinds: tuple[type, ...], audio: dict[str, str]) -> dict[str, Any]:
    binary = {
        f"audio_{direction}": {
            "contentType": "application/octet-stream",
            "description": text,
            "payload": {"type": "string", "format": "binary"},
        }
        for direction, text in audio.items()
    }
    return {
        "address": "/v1/sessions/{session_id}/stream",
        "description": description,
        "parameters": {"session_id": {"description": "As REST has answered."}},
        "messages": {kind.__name__: _message(kind) for kind in kinds} | binary,
        "bindings": {"ws": {"method": "GET"}},
    }


def _message(kind: type) -> dict[str, Any]:
    return {
        "name": kind.__struct_config__.tag,  # type: ignore[attr-defined]
        "summary": (inspect.getdoc(kind) or "").split("\n\n")[0].replace("\n", " "),
        "payload": {"$ref": f"#/components/schemas/{kind.__name__}"},
    }


def _operation(action: str, channel: str, kinds: tuple[type, ...], audio: str) -> dict[str, Any]:
    at = f"#/channels/{channel}"
    names = [*(kind.__name__ for kind in kinds), audio]
    return {
        "action": action,
        "channel": {"$ref": at},
        "messages": [{"$ref": f"{at}/messages/{name}"} for name in names],
    }
