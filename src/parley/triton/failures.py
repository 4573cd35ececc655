"""Errors as texts of Triton, and back; imported by the launcher, which has neither numpy nor gRPC."""

from __future__ import annotations

import re

from parley.errors import InferenceError, ModelUnavailableError, ParleyError, ShuttingDownError, from_wire

# Triton's answer to every call while it stops. It is the same while it starts, when there are no calls.
_STOPPING = re.compile(r"server not ready", re.IGNORECASE)
# Triton's answer for a model that is missing, unloaded or still loading.
_UNAVAILABLE = re.compile(
    r"is not ready|is not found|unknown model|not loaded|has no available version|unavailable|connect",
    re.IGNORECASE,
)
_DEAD_PROCESS = re.compile(r"stub process .* is not healthy|failed to obtain the health mutex", re.IGNORECASE)


def wire_text(error: BaseException) -> str:
    """The text of a Triton error: code and message; unexpected errors become ``internal_error``."""
    if isinstance(error, ParleyError):
        return error.to_wire()
    return f"{ParleyError.code}: {type(error).__name__}: {error}"


def is_of_dead_process(text: str) -> bool:
    """Whether Triton says that an instance's process is dead, with its mutex locked or not."""
    return _DEAD_PROCESS.search(text) is not None


def read_failure(text: str) -> ParleyError:
    """The error behind the text of a Triton error."""
    error = from_wire(text)
    if type(error) is InferenceError and _STOPPING.search(text):
        return ShuttingDownError(text)
    if type(error) is InferenceError and (_UNAVAILABLE.search(text) or is_of_dead_process(text)):
        return ModelUnavailableError(text)
    return error
