"""What a session begins with."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from parley_gateway.doors.realtime.events import new_id
from parley_gateway.doors.realtime.session_config import SessionConfig
from parley_gateway.gateway import Gateway

DEFAULT_MODEL = "parley"


def first_config(
    gateway: Gateway, model: str | None, given: Mapping[str, Any], *, webrtc: bool = False
) -> SessionConfig:
    """The settings that a session begins with.

    Raises:
        Refusal: ``given`` cannot be had.
    """
    settings = gateway.settings.realtime
    config = SessionConfig(
        new_id("sess"),
        model or DEFAULT_MODEL,
        voices=settings.voices,
        expires_at=round(time.time() + settings.session_s),
        webrtc=webrtc,
    )
    if given:
        config.change(given)
    return config
