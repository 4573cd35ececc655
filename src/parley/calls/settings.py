"""What an agent's file says of recordings and webhooks."""

from __future__ import annotations

from typing import Annotated, Literal, TypeAlias

import msgspec

WebhookEvent: TypeAlias = Literal["call.started", "step.changed", "call.transferred", "call.ended"]
Delivery: TypeAlias = Literal["delivered", "refused", "failed", "dropped"]
"""What became of an event for a webhook."""


class RecordSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is kept of a call with ``record = true``."""

    consent: Annotated[str, msgspec.Meta(max_length=500)] = ""
    """Spoken before the greeting, such as "This call is recorded." Empty: nothing is said."""
    retention_days: Annotated[int, msgspec.Meta(ge=1, le=3650)] = 30
    """After so many days the server deletes the recording."""
    audio: bool = True
    """Whether the audio of both sides is kept."""
    hide: Annotated[list[Literal["tools", "keys", "collected"]], msgspec.Meta(max_length=3)] = []
    """What is not kept: ``tools`` (arguments, progress, results), ``keys`` (of the telephone), ``collected``
    (values). What was said of them is kept: transcripts, the agent's text, audio."""
    max_minutes: Annotated[int, msgspec.Meta(ge=1, le=600)] = 120
    """Of a longer call the rest is not kept."""


class WebhookSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A URL to which events of calls are posted."""

    url: str
    """Its host stands in ``tools.allowed_hosts`` or ``tools.private_hosts``."""
    secret_file: str
    """File with the key of the signatures. A relative path begins at the folder of agents."""
    events: Annotated[list[WebhookEvent], msgspec.Meta(min_length=1, max_length=4)]
    """Of ``call.started``, ``step.changed``, ``call.transferred``, ``call.ended``."""
    timeout_ms: Annotated[int, msgspec.Meta(ge=100, le=30_000)] = 10_000
    """For one attempt, of five."""
    summary: bool = False
    """Whether ``call.ended`` has a summary of the call by the agent's language model."""
