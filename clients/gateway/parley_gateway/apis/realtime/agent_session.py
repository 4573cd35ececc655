"""The agent's session: opened late, changed later, in the order of the client's wishes."""

from __future__ import annotations

import copy
from collections import deque
from dataclasses import dataclass
from typing import Any

from parley import protocol
from parley_gateway.apis.realtime import client_events as client
from parley_gateway.apis.realtime.agent_commands import AgentCommands
from parley_gateway.apis.realtime.server_events import REFUSED_CHANGES, ClientEventError, Emit
from parley_gateway.apis.realtime.session_config import SessionConfig

_PENDING = 64


@dataclass(frozen=True)
class _Pending:
    event_id: str | None
    before: SessionConfig
    echo: dict[str, Any]
    started: protocol.Start | None
    """How the agent's session was before; None: it is not asked to change."""


class AgentSession:
    """Opens the session with the first event that needs it: the first ``session.update`` is in time then.

    Args:
        config: What the client wants.
        port: To the agent.
        emit: Sends server events.
    """

    def __init__(self, config: SessionConfig, port: AgentCommands, emit: Emit) -> None:
        self._config = config
        self._port = port
        self._emit = emit
        self._start: protocol.Start | None = None
        self._opened = False
        self._pending: deque[_Pending] = deque()

    def open(self) -> None:
        """Open it, unless it is."""
        if self._start is None:
            self._start = self._config.start()
            self._port.open(self._start)

    def opened(self) -> None:
        """It is open."""
        self._opened = True
        self._answer_unchanged()

    def change(self, event: client.SessionUpdate) -> None:
        """Change it as the client wishes.

        Raises:
            Refusal: that cannot be done.
        """
        if len(self._pending) >= _PENDING:
            raise ClientEventError("Too many updates at once.", code="too_many_updates")
        before = copy.copy(self._config)
        self._config.change(event.session)
        echo = self._config.echo()
        started, update = self._start, None
        if started is None:
            self.open()
        else:
            self._start, update = self._config.update_since(started)
        changed = None if update is None else started
        self._pending.append(_Pending(event.event_id, before, echo, changed))
        if update is not None:
            self._port.update(update)
        elif self._opened:
            self._answer_unchanged()

    def updated(self) -> None:
        """The agent has changed it."""
        if self._pending:
            self._emit("session.updated", session=self._pending.popleft().echo)
        self._answer_unchanged()

    def refused(self, code: str | None = None) -> tuple[bool, str | None]:
        """The agent refuses something.

        Args:
            code: Of its error; None: it refuses the session.

        Returns:
            Whether it was a change, and the id of the client's event.
        """
        if not self._pending or not (code is None or code in REFUSED_CHANGES):
            return False, None
        pending = self._pending.popleft()
        self._config.restore(pending.before)
        self._start = pending.started or self._start
        self._answer_unchanged()
        return True, pending.event_id

    def _answer_unchanged(self) -> None:
        """Updates of which the agent need not know; all are answered in their order."""
        while self._pending and self._pending[0].started is None:
            self._emit("session.updated", session=self._pending.popleft().echo)
