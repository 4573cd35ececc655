"""A session of which the store has the newest checkpoint, so that another gateway can go on with it.

The client gets a checkpoint, and every event behind it, once the store has it. So what a client knows is
never ahead of what the next gateway goes on from, unless the store is late (``takeover.hold_s``) or away.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable

import msgspec

from parley import protocol
from parley.timeouts import is_set_within, loop_time
from parley_client.call import Call
from parley_client.resumption import CallCheckpoint
from parley_gateway.apis.sessions.record import SessionClaim, SessionRecord, shown
from parley_gateway.metrics import Metrics
from parley_gateway.security.rates import Bucket
from parley_gateway.takeover.errors import SessionTakenOverError, TakeoverUnavailableError
from parley_gateway.takeover.sealing import OVERHEAD_BYTES, Sealer
from parley_gateway.takeover.settings import TakeoverSettings
from parley_gateway.takeover.store import RedisSessionStore

_log = logging.getLogger("parley.gateway")
# Between two signs of life: how long a connection that has lost its session goes on at most (seconds).
_REFRESH_S = 5.0
_BURST_S = 2.0
_RETRY_S = 1.0
_LAST_SAVE_S = 1.0
# More than a call has messages that a checkpoint may not contain: those beyond it are forgotten early.
_MOST_NUMBERS = 512


class KeptSession:
    """One open session."""

    def __init__(
        self,
        *,
        settings: TakeoverSettings,
        metrics: Metrics,
        store: RedisSessionStore,
        sealer: Sealer,
        call: Call,
        tell: Callable[[protocol.Checkpoint], None],
        owner: str,
        claim: SessionClaim,
        api_state: Callable[[], bytes] | None,
    ) -> None:
        self.token = claim.token
        """With which the client takes the session over."""
        self._settings = settings
        self._metrics = metrics
        self._store = store
        self._sealer = sealer
        self._call = call
        self._tell = tell
        self._owner = owner
        self._name = claim.name
        self._epoch = claim.epoch
        self._tokens = claim.tokens
        self._encoding = claim.record.encoding
        self._api_state = api_state
        # Messages are counted as the client counts them, which are all but those on playback.
        self._received = claim.record.state.handled or 0
        # Messages that the saved state does not contain: the call's count of each, and the client's.
        self._numbers: deque[tuple[int, int]] = deque()
        self._turns = claim.record.turns
        self._saved: CallCheckpoint | None = None
        self._passed_on = 0  # checkpoints
        self._is_lost = False
        self._is_too_large = False
        self._due = asyncio.Event()
        self._changed = asyncio.Event()
        self._writes = Bucket(settings.writes_per_s, _BURST_S, loop_time)
        self._bytes = Bucket(settings.bytes_per_s, _BURST_S, loop_time)

    def lose(self) -> None:
        """The session belongs to another connection now."""
        self._is_lost = True
        self._due.set()

    # --- what the stream says

    def on_message(self) -> None:
        """A message of the client was given to the call as its newest."""
        self._received += 1
        self._numbers.append((self._call.messages, self._received))
        if len(self._numbers) > _MOST_NUMBERS and (newest := self._call.checkpoint) is not None:
            self._forget_contained(newest)
        self.on_client()

    def on_refused(self) -> None:
        """A message of the client was refused: it is not to be repeated."""
        self._received += 1

    def on_client(self) -> None:
        """The client has sent something, so it has this connection's token."""
        if len(self._tokens) > 1:
            self._tokens = self._tokens[:1]
            self._due.set()

    def on_change(self) -> None:
        """What is kept beside the checkpoint has changed."""
        self._due.set()

    def on_done(self) -> None:
        """A response is complete."""
        self._turns += 1

    async def on_checkpoint(self) -> None:
        """The next checkpoint of the call: wait until the store has it, within ``takeover.hold_s``.

        The call may have newer ones already, which are not waited for: where they come faster than they may
        be written, events would come ever later.
        """
        self._passed_on += 1
        number = self._passed_on
        if self._is_saved(number):
            return
        self._due.set()
        try:
            async with asyncio.timeout(self._settings.hold_s):
                while not self._is_saved(number) and self._store.is_available and not self._is_too_large:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            self._metrics.checkpoints.labels("late").inc()

    # --- the task

    async def run(self) -> None:
        """Write checkpoints, and the signs of life between them.

        Raises:
            SessionTakenOverError: the session belongs to another connection now.
        """
        while True:
            if not self._due.is_set():
                await is_set_within(self._due, _REFRESH_S)
            if self._is_lost:
                raise SessionTakenOverError("another connection has taken this session over")
            try:
                await self._write()
            except TakeoverUnavailableError:
                self._metrics.checkpoints.labels("failed").inc()
                self._due.set()
                self._changed.set()
                await asyncio.sleep(_RETRY_S)

    async def _write(self) -> None:
        newest = self._call.checkpoint
        is_due = self._due.is_set() or self._has_changed(newest)
        self._due.clear()
        if newest is not None and is_due:
            await self._save(newest)
        elif self._saved is not None and not self._is_too_large:
            found = await self._store.refresh(self._name, self._epoch, self._settings.keep_s)
            if found == "lost":
                self.lose()
            elif found == "gone":
                self._due.set()

    async def _save(self, newest: CallCheckpoint) -> None:
        """Write a checkpoint, or a newer one that came while it had to wait."""
        while wait_s := self._writes.take(1):  # noqa: ASYNC110 - it fills with time
            await asyncio.sleep(wait_s)
        newest = self._call.checkpoint or newest
        record = self._make_record(newest)
        content = msgspec.json.encode(record)
        if not self._fits(content):
            await self._give_up(len(content))
            return
        self._is_too_large = False
        size = min(len(content), self._settings.bytes_per_s)
        while wait_s := self._bytes.take(size):  # noqa: ASYNC110 - likewise
            await asyncio.sleep(wait_s)
        if not await self._write_content(content):
            self.lose()
            return
        self._metrics.checkpoints.labels("saved").inc()
        self._saved = newest
        self._forget_contained(newest)
        self._changed.set()
        self._tell(shown(record, settled=newest.settled))

    def _fits(self, content: bytes) -> bool:
        return len(content) + OVERHEAD_BYTES <= self._settings.record_bytes

    async def _write_content(self, content: bytes) -> bool:
        """Write a record; returns False if the session has a newer owner."""
        sealed = self._sealer.seal(content, name=self._name, owner=self._owner, epoch=self._epoch)
        return await self._store.save(self._name, self._epoch, sealed, self._settings.keep_s)

    async def _give_up(self, size: int) -> None:
        """Nothing rather than a state that is too old."""
        if not self._is_too_large:
            self._is_too_large = True
            self._metrics.checkpoints.labels("too_large").inc()
            _log.warning("a session of %d bytes is too large to be taken over", size)
        self._changed.set()
        await self._store.end(self._name, self._epoch, is_over=False)

    def _make_record(self, checkpoint: CallCheckpoint) -> SessionRecord:
        state = checkpoint.state
        if state.handled is not None:
            # The call has other messages too, and lacks those that were refused.
            missing = [number for index, number in self._numbers if not _contains(checkpoint, index)]
            state = msgspec.structs.replace(state, handled=self._received, unfinished=missing)
        api_state = self._api_state
        return SessionRecord(
            settings=msgspec.structs.replace(checkpoint.settings, resume=None),
            history=checkpoint.history,
            state=state,
            answers=checkpoint.answers,
            encoding=self._encoding,
            tokens=self._tokens,
            turns=self._turns,
            api_state=msgspec.Raw(api_state() if api_state else b"null"),
            changes=checkpoint.changes if api_state else [],
            progress=checkpoint.progress if api_state else None,
        )

    def _forget_contained(self, checkpoint: CallCheckpoint) -> None:
        self._numbers = deque(entry for entry in self._numbers if not _contains(checkpoint, entry[0]))

    def _has_changed(self, newest: CallCheckpoint | None) -> bool:
        return newest is not None and not self._is_saved(newest.number)

    def _is_saved(self, number: int) -> bool:
        return self._saved is not None and self._saved.number >= number

    # --- the end

    async def finish(self, *, is_over: bool) -> None:
        """The connection is gone; :meth:`run` has ended.

        Args:
            is_over: Nothing can go on with the session; otherwise it can be taken over for
                ``takeover.keep_s`` from now.
        """
        if self._is_lost:
            return
        try:
            async with asyncio.timeout(_LAST_SAVE_S):
                if is_over:
                    await self._store.end(self._name, self._epoch, is_over=True)
                elif not self._is_too_large and (newest := self._call.checkpoint) is not None:
                    content = msgspec.json.encode(self._make_record(newest))
                    if self._fits(content):
                        await self._write_content(content)
                    else:
                        await self._give_up(len(content))
        except (TakeoverUnavailableError, TimeoutError):
            _log.debug("the store of the sessions was not told of the end of one")


def _contains(checkpoint: CallCheckpoint, index: int) -> bool:
    """Whether a checkpoint of a call contains its message ``index``."""
    return index <= checkpoint.sent and index not in checkpoint.missing
