"""What a client changes in a session that runs."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

import msgspec

from parley.agent.config import AgentConfig
from parley.agent.engines import Engines
from parley.agent.validation import check_start
from parley.agent.voice import check_voice
from parley.errors import OverloadedError, ParleyError
from parley.protocol import Start, Update

_MAX_WAITING = 16
_log = logging.getLogger(__name__)


class Changes:
    """Checks what the client wants to be otherwise, and keeps the order.

    Nearly all can be checked and done at once. Only of a new voice, where voices come and go, somebody else
    has to be asked; what is asked for meanwhile waits.

    Args:
        start: what the session began with.
        engines: that it runs on.
        config: limits and deadlines.
        apply: takes what the session is like from now on.
        refuse: is told what was wrong with a change that had to wait.
    """

    def __init__(
        self,
        start: Start,
        engines: Engines,
        config: AgentConfig,
        *,
        apply: Callable[[Start], None],
        refuse: Callable[[ParleyError], None],
    ) -> None:
        self._start = start
        self._engines = engines
        self._config = config
        self._apply = apply
        self._refuse = refuse
        self._waiting: deque[Update] = deque()
        self._task: asyncio.Task[None] | None = None

    def ask(self, update: Update) -> None:
        """Change the session, at once or as soon as that is possible.

        Raises:
            OverloadedError: too many changes are waiting.
            InvalidInputError: of the kind that says what is wrong.
        """
        if self._task is None:
            start = self._checked(update)
            if not self._asks_for(start):
                self._do(start)
                return
        if len(self._waiting) >= _MAX_WAITING:
            raise OverloadedError(f"{_MAX_WAITING} changes are waiting")
        self._waiting.append(update)
        if self._task is None:
            self._task = asyncio.create_task(self._work(), name="changes of a session")

    def close(self) -> set[asyncio.Task[None]]:
        """Change nothing more; returns what is still ending."""
        self._waiting.clear()
        if self._task is None:
            return set()
        self._task.cancel()
        return {self._task}

    async def _work(self) -> None:
        try:
            while self._waiting:
                await self._try(self._waiting.popleft())
        finally:
            self._task = None

    async def _try(self, update: Update) -> None:
        try:
            start = self._checked(update)
            if self._asks_for(start):
                limit_s = self._config.deadlines.voice_s
                await check_voice(self._engines.synthesizer, start.voice, start.language, limit_s)
            self._do(start)
        except ParleyError as error:
            self._refuse(error)
        except Exception:  # noqa: BLE001 - logged and told to the client; the next change is another one
            _log.exception("a change of a session failed")
            self._refuse(ParleyError("the change failed unexpectedly"))

    def _checked(self, update: Update) -> Start:
        given = {
            name: value
            for name, value in msgspec.structs.asdict(update).items()
            if value is not msgspec.UNSET
        }
        start = msgspec.structs.replace(self._start, **given)
        check_start(start, self._engines.synthesizer, self._config, self._engines.server_tools)
        return start

    def _asks_for(self, start: Start) -> bool:
        """Whether somebody has to be asked for the voice."""
        new = start.voice != self._start.voice
        return new and not self._engines.synthesizer.check_known(start.voice, start.language)

    def _do(self, start: Start) -> None:
        self._start = start
        self._apply(start)
