"""Updates of one session: validated in their order, and limited in their number and size."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

import msgspec

from parley.agent.config import AgentConfig
from parley.agent.ports import Engines
from parley.agent.speech import check_voices
from parley.agent.validation import check_start, speech_language
from parley.errors import OverloadedError, ParleyError
from parley.protocol import Start, Update, encode
from parley.timeouts import loop_time
from parley.token_bucket import TokenBucket

_MAX_WAITING = 16
_BURST_BYTES = 32_768
"""Updates that are validated at once, in bytes of JSON; each counts at least :data:`_LEAST_BYTES`."""
_BYTES_PER_S = 8_192
_LEAST_BYTES = 1_024
_log = logging.getLogger(__name__)


class SessionUpdates:
    """Validates updates in their order.

    An update is validated at once, unless its voice may need a request to the synthesizer, or a flood of
    updates has used up what one session may take of the event loop of all. Then it waits, and so do later
    ones behind it.

    ``on_checked`` is called with the number of an update that waited, and the session's new options or the
    error.
    """

    def __init__(
        self,
        start: Start,
        engines: Engines,
        config: AgentConfig,
        *,
        on_checked: Callable[[int, Start | ParleyError], None],
    ) -> None:
        self._start = start
        self._engines = engines
        self._config = config
        self._on_checked = on_checked
        self._waiting: deque[tuple[Update, int]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._bytes = TokenBucket(_BURST_BYTES, _BYTES_PER_S)

    def request(self, update: Update, number: int) -> Start | None:
        """Check an update.

        Returns:
            The session's new options; None: the update waits.

        Raises:
            OverloadedError: too many updates are queued.
            InvalidInputError: the update is invalid.
        """
        wait_s = self._bytes.wait_s(loop_time())
        if self._task is None and not wait_s:
            start = self._checked(update)
            if not self._needs_voice_check(start):
                self._start = start
                return start
        if len(self._waiting) >= _MAX_WAITING:
            raise OverloadedError(
                f"{_MAX_WAITING} updates are queued already", retry_after_s=max(1.0, wait_s)
            )
        self._waiting.append((update, number))
        if self._task is None:
            self._task = asyncio.create_task(self._work(), name="session updates")
        return None

    @property
    def idle(self) -> bool:
        """Whether no update waits."""
        return self._task is None

    def close(self) -> set[asyncio.Task[None]]:
        """Drop queued updates; returns the tasks that are still ending."""
        self._waiting.clear()
        if self._task is None:
            return set()
        self._task.cancel()
        return {self._task}

    async def _work(self) -> None:
        try:
            while self._waiting:
                await asyncio.sleep(self._bytes.wait_s(loop_time()))
                await self._try(*self._waiting.popleft())
        finally:
            self._task = None

    async def _try(self, update: Update, number: int) -> None:
        outcome: Start | ParleyError
        try:
            start = self._checked(update)
            if self._needs_voice_check(start):
                synthesizer, limit_s = self._engines.synthesizer, self._config.deadlines.voice_s
                language = speech_language(start, synthesizer)
                await check_voices(synthesizer, [start.voice], language, limit_s)
            outcome = self._start = start
        except ParleyError as error:
            outcome = error
        except Exception:  # noqa: BLE001 - logged and reported; later updates go on
            _log.exception("an update of a session failed")
            outcome = ParleyError("the update failed unexpectedly")
        self._on_checked(number, outcome)

    def _checked(self, update: Update) -> Start:
        self._bytes.spend(max(_LEAST_BYTES, len(encode(update))), loop_time())
        given = {
            name: value
            for name, value in msgspec.structs.asdict(update).items()
            if value is not msgspec.UNSET
        }
        start = msgspec.structs.replace(self._start, **given)
        check_start(start, self._engines.synthesizer, self._config, self._engines.server_tools)
        return start

    def _needs_voice_check(self, start: Start) -> bool:
        synthesizer, is_new = self._engines.synthesizer, start.voice != self._start.voice
        return is_new and not synthesizer.check_known(start.voice, speech_language(start, synthesizer))
