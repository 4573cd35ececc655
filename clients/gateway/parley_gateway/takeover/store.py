"""The store of sessions that can be taken over: one entry each, with the number of its owner.

The number, the *epoch*, fences: it grows with every takeover, and a gateway whose number is not the newest
can neither write nor extend an entry. So of two gateways that both hold a session, as when one is cut off
from its client, the one that has lost it notices, and what it writes late changes nothing.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import coredis
from coredis.exceptions import RedisError
from coredis.retry import NoRetryPolicy

from parley_gateway.errors import GatewaySettingsError
from parley_gateway.redis_address import read_redis_address
from parley_gateway.takeover.errors import TakeoverUnavailableError

_log = logging.getLogger("parley.gateway")
_PREFIX = "parley:session:"
_RETRY_S = 1.0
"""A store that failed is left alone for so long."""
_TOMBSTONE_S = 600.0
"""A gateway that has lost a session notices within this time."""
_CONNECTIONS = 64
_EPOCH_DIGITS = 15
"""Lua computes with as many digits exactly."""

# An entry is a hash with the fields `epoch`, `number` and `data`. KEYS[1]: of the session. ARGV[1]: the
# epoch. Redis may have lost an entry, and an earlier owner that was cut off from it written one again: what
# the newest one writes replaces that. ARGV[4] counts the writes of an owner: where packets are lost, one that
# was given up may arrive behind the next, over another connection. An epoch that is no number counts as 0.
_SAVE = """
local found = redis.call('HMGET', KEYS[1], 'epoch', 'number')
if (tonumber(found[1] or 0) or 0) > tonumber(ARGV[1]) then return 0 end
if found[1] == ARGV[1] and (tonumber(found[2] or 0) or 0) > tonumber(ARGV[4]) then return 1 end
redis.call('HSET', KEYS[1], 'epoch', ARGV[1], 'data', ARGV[2], 'number', ARGV[4])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
"""
_REFRESH = """
local found = redis.call('HMGET', KEYS[1], 'epoch', 'data')
if (tonumber(found[1] or 0) or 0) > tonumber(ARGV[1]) then return 0 end
if not found[2] or found[1] ~= ARGV[1] then return 2 end
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1
"""
# ARGV[2] is the digest of the data that the claim was checked against: the owner may have written since.
# ARGV[3] names the claim, which may come twice where the answer to the first one was lost.
_CLAIM = """
local found = redis.call('HMGET', KEYS[1], 'epoch', 'data', 'claim')
if found[3] == ARGV[3] then return 1 end
if found[1] ~= ARGV[1] or not found[2] or redis.sha1hex(found[2]) ~= ARGV[2] then return 0 end
redis.call('HSET', KEYS[1], 'epoch', ARGV[4], 'data', ARGV[5], 'claim', ARGV[3], 'number', 0)
redis.call('PEXPIRE', KEYS[1], ARGV[6])
return 1
"""
# The epoch stays, so that a late write of an earlier owner is still refused.
_END = """
local epoch = redis.call('HGET', KEYS[1], 'epoch')
if (tonumber(epoch or 0) or 0) > tonumber(ARGV[1]) then return 0 end
redis.call('HDEL', KEYS[1], 'data')
redis.call('HSET', KEYS[1], 'epoch', ARGV[2])
redis.call('PEXPIRE', KEYS[1], ARGV[3])
return 1
"""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Entry:
    """What the store has of a session."""

    epoch: int
    data: bytes


class RedisSessionStore:
    """Keeps sessions for other gateways, in Redis.

    Every method but :meth:`aclose` raises TakeoverUnavailableError if Redis fails.

    Args:
        address: ``redis://…`` or ``rediss://…``.
        timeout_s: How long an answer may take (seconds).
        on_change: Called with whether the store answers, when that changes.
        clock: Seconds, for how long a store that failed is left alone.

    Raises:
        GatewaySettingsError: the address cannot be used.
    """

    def __init__(
        self,
        address: str,
        *,
        timeout_s: float,
        on_change: Callable[[bool], None] = lambda _: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        address = read_redis_address("takeover.store", address)
        try:
            self._redis: coredis.Redis[bytes] = coredis.Redis.from_url(
                address,
                max_connections=_CONNECTIONS,
                connect_timeout=timeout_s,
                stream_timeout=timeout_s,
                retry_policy=NoRetryPolicy(),
            )
        except (RedisError, ValueError, TypeError) as error:
            # The address may hold a password.
            raise GatewaySettingsError(f"takeover.store cannot be used ({type(error).__name__})") from None
        self._timeout_s = timeout_s
        self._on_change = on_change
        self._clock = clock
        self._failed_at: float | None = None
        self._numbers = itertools.count(1)
        scripts = (_SAVE, _REFRESH, _CLAIM, _END)
        self._save, self._refresh, self._claim, self._end = map(self._redis.register_script, scripts)

    @property
    def is_available(self) -> bool:
        """Whether it has answered the last time, or has not been asked yet."""
        return self._failed_at is None

    async def find(self, name: str) -> Entry | None:
        """The entry of a session; None: there is none (any more)."""
        epoch, data = await self.look(name)
        return Entry(epoch, data) if epoch and data is not None else None

    async def look(self, name: str) -> tuple[int, bytes | None]:
        """The epoch of a session, 0 where there is none, and its data; None: it is over."""
        epoch, data = await self._ask(lambda: self._redis.hmget(_PREFIX + name, ["epoch", "data"]))
        if epoch is None:
            return 0, None
        if not epoch.isdigit() or len(epoch) > _EPOCH_DIGITS:
            _log.warning("the store of the sessions has a damaged entry: %s", name)
            return 0, None
        return int(epoch), data

    async def save(self, name: str, epoch: int, data: bytes, keep_s: float) -> bool:
        """Write an entry that lasts for ``keep_s``; returns False if the session has a newer owner."""
        return bool(await self._run(self._save, name, epoch, data, _ms(keep_s), next(self._numbers)))

    async def refresh(self, name: str, epoch: int, keep_s: float) -> Literal["kept", "gone", "lost"]:
        """Let an entry last for ``keep_s`` from now.

        ``gone``: there is none. ``lost``: it has a newer owner.
        """
        answer = await self._run(self._refresh, name, epoch, _ms(keep_s))
        return "lost" if answer == 0 else "kept" if answer == 1 else "gone"

    async def claim(self, name: str, entry: Entry, data: bytes, keep_s: float) -> bool:
        """Become the owner of an entry, with the epoch after its own, and write other data.

        Returns False, and changes nothing, if the entry is gone or is not this one any more.
        """
        # The only digest that Redis has in Lua. It notices a write in between, and protects nothing.
        known = hashlib.sha1(entry.data, usedforsecurity=False).hexdigest()
        claim = secrets.token_hex(8)
        arguments = (entry.epoch, known, claim, entry.epoch + 1, data, _ms(keep_s))
        return bool(await self._run(self._claim, name, *arguments))

    async def end(self, name: str, epoch: int, *, is_over: bool) -> None:
        """Remove the data. ``is_over``: no owner of this epoch may write again."""
        await self._run(self._end, name, epoch, epoch + is_over, _ms(_TOMBSTONE_S))

    async def aclose(self) -> None:
        """Drop the connections."""
        self._redis.connection_pool.disconnect()

    async def _run(self, script: Any, name: str, *arguments: str | int | bytes) -> Any:
        return await self._ask(lambda: script.execute(keys=[_PREFIX + name], args=list(arguments)))

    async def _ask(self, ask: Callable[[], Awaitable[T]]) -> T:
        failed_at = self._failed_at
        if failed_at is not None and self._clock() - failed_at < _RETRY_S:
            raise TakeoverUnavailableError("the store of the sessions does not answer")
        try:
            async with asyncio.timeout(self._timeout_s):
                try:
                    answer = await ask()
                except coredis.exceptions.ConnectionError:
                    answer = await ask()  # the connection was closed while it was idle
        except (RedisError, OSError, TimeoutError) as error:
            self._failed_at = self._clock()
            if failed_at is None:
                _log.warning(
                    "the store of the sessions does not answer (%s): until it does, no other gateway can "
                    "take sessions over",
                    type(error).__name__,
                )
                self._on_change(False)
            raise TakeoverUnavailableError("the store of the sessions does not answer") from error
        if failed_at is not None:
            self._failed_at = None
            _log.info("the store of the sessions answers again")
            self._on_change(True)
        return answer


def _ms(seconds: float) -> int:
    return round(1000 * seconds)
