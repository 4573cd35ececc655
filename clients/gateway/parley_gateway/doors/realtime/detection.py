"""When a turn of the user's is over: OpenAI's settings as the agent's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from parley import protocol
from parley_gateway.doors.realtime.session_fields import SemanticVad, ServerVad, TurnDetection

_EAGERNESS: Mapping[str | None, Literal["eager", "normal", "patient"]] = {
    "low": "patient",
    "medium": "normal",
    "high": "eager",
}
_LEAST_PAUSE_MS = 100
_FIRST_PAUSE_MS = 200
"""After so much silence an answer can be begun, which is held back until the turn is certainly over."""


def pause_ms(detection: ServerVad) -> int:
    """The pause that ends a turn."""
    wanted = detection.silence_duration_ms
    return max(_LEAST_PAUSE_MS, 500 if wanted is None else wanted)


def threshold_of(detection: ServerVad) -> float:
    """Speech probability at which speech begins."""
    return 0.5 if detection.threshold is None else detection.threshold


def vad_of(detection: TurnDetection | None) -> protocol.VadOptions:
    """When sound counts as speech."""
    if not isinstance(detection, ServerVad):
        return protocol.VadOptions()
    silence_ms = min(pause_ms(detection), _FIRST_PAUSE_MS)
    return protocol.VadOptions(threshold=threshold_of(detection), silence_ms=silence_ms)


def turn_of(detection: TurnDetection | None) -> protocol.TurnOptions:
    """When a pause ends a turn; None: only the client does."""
    if detection is None:
        return protocol.TurnOptions(detection="manual", answer=False)
    answers = detection.create_response is not False
    if isinstance(detection, SemanticVad):
        return protocol.TurnOptions(eagerness=_EAGERNESS.get(detection.eagerness, "normal"), answer=answers)
    silence_ms = pause_ms(detection)
    return protocol.TurnOptions(
        eagerness="normal",
        complete_ms=silence_ms,
        incomplete_ms=silence_ms,
        unfinished_ms=silence_ms,
        limit_ms=silence_ms,
        answer=answers,
    )


def echo_of(detection: TurnDetection | None) -> dict[str, Any] | None:
    """How turns end, as the client is told: with what it has left out."""
    if detection is None:
        return None
    defaults = type(detection)()
    values = {
        name: getattr(defaults, name) if value is None else value
        for name, value in msgspec.structs.asdict(detection).items()
    }
    return {"type": "server_vad" if isinstance(detection, ServerVad) else "semantic_vad", **values}
