"""What every API is handed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from parley_gateway.agent_descriptions import AgentDescriptions
from parley_gateway.audio.decoders import Decoders
from parley_gateway.calls import Calls
from parley_gateway.connections import ConnectionLimiter
from parley_gateway.metrics import Metrics
from parley_gateway.peers import Peers
from parley_gateway.security.guard import Guard
from parley_gateway.servers import Servers
from parley_gateway.spool import Spool

if TYPE_CHECKING:
    # The settings consist of those of the APIs, which need this module.
    from parley_gateway.apis.sessions.keeper import SessionKeeper
    from parley_gateway.settings import Settings


@dataclass(frozen=True)
class Gateway:
    """The parts of one gateway process; made once, by :func:`parley_gateway.app.create_app`."""

    settings: Settings
    instance: str
    """Its name in the ids that it makes."""
    servers: Servers
    calls: Calls
    descriptions: AgentDescriptions
    guard: Guard
    metrics: Metrics
    spool: Spool
    decoders: Decoders
    connections: ConnectionLimiter
    kept: SessionKeeper
    peers: Peers
    beside: list[Callable[[], AbstractAsyncContextManager[None]]] = field(default_factory=list)
    """What APIs run while the gateway listens."""
