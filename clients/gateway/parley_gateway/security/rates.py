"""Rate limits: requests and sessions in sliding windows, messages of one WebSocket in token buckets.

The windows are counted in this process, or in Redis for several.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import ClassVar, Literal, TypeAlias, TypeVar, get_args

import limits
from limits.aio.storage import MemoryStorage, RedisStorage
from limits.aio.storage.redis.coredis import CoredisBridge
from limits.aio.strategies import SlidingWindowCounterRateLimiter
from limits.errors import ConfigurationError, StorageError
from limits.storage import storage_from_string

from parley_gateway.errors import GatewayError, GatewaySettingsError, MessageTooLargeError, RateLimitedError
from parley_gateway.redis_address import read_redis_address
from parley_gateway.security.settings import RateSettings

_LOG = logging.getLogger(__name__)
_RETRY_STORE_S = 5.0
_MEMORY = "memory://"

T = TypeVar("T")
What: TypeAlias = Literal["key_requests", "key_sessions", "ip_requests", "ip_sessions", "auth_failures"]


class RatesUnavailableError(GatewayError):
    """The rate limit store is unavailable, and the settings refuse all requests then."""

    code: ClassVar[str] = "rates_unavailable"
    status = 503
    retryable = True


class Rates:
    """Sliding windows of requests, sessions and failed authentications.

    Raises:
        GatewaySettingsError: a limit or the store cannot be read.
    """

    def __init__(self, settings: RateSettings, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._settings = settings
        self._clock = clock
        self._limits = {name: parse_rate(f"rates.{name}", getattr(settings, name)) for name in get_args(What)}
        self._local_store = MemoryStorage()
        self._local = SlidingWindowCounterRateLimiter(self._local_store)
        self._shared_store = _shared_store(settings.store)
        self._shared = (
            SlidingWindowCounterRateLimiter(self._shared_store) if self._shared_store is not None else None
        )
        self._store_failed_at: float | None = None

    async def hit(self, what: What, who: str, own: str | None = None) -> None:
        """Count one, by the common limit or ``own``.

        Raises:
            RateLimitedError: it is one too many; it is not counted.
            RatesUnavailableError: the store is unavailable, and the settings refuse all requests then.
        """
        await self._try("hit", what, who, own)

    async def check(self, what: What, who: str) -> None:
        """Whether one more would be too many, without counting it; raises as :meth:`hit`."""
        await self._try("test", what, who, None)

    async def _try(self, method: Literal["hit", "test"], what: What, who: str, own: str | None) -> None:
        for item in self._limits[what] if own is None else parse_rate(what, own):

            async def wait_s(
                limiter: SlidingWindowCounterRateLimiter, item: limits.RateLimitItem = item
            ) -> float | None:
                """Until there may be room again; None: there is."""
                if await getattr(limiter, method)(item, what, who):
                    return None
                stats = await limiter.get_window_stats(item, what, who)
                return max(1.0, stats.reset_time - time.time())

            if (wait := await self._ask(wait_s)) is not None:
                raise RateLimitedError(f"{_WHY[what]}: {item} allowed", retry_after_s=wait)

    async def first(self, name: str, ttl_s: float) -> bool:
        """Whether no gateway of this store has used this name before; True without a store."""
        store = self._shared_store
        if store is None:
            return True

        async def count(limiter: SlidingWindowCounterRateLimiter) -> float | None:
            # A storage and its limiter come in pairs; only the shared one is asked about names.
            if limiter is not self._shared:
                return None
            return None if await store.incr(f"parley/first/{name}", max(1, round(ttl_s))) == 1 else 1.0

        return await self._ask(count) is None

    async def aclose(self) -> None:
        """Close the connections to the store."""
        if self._shared_store is not None:
            bridge = self._shared_store.bridge
            assert isinstance(bridge, CoredisBridge)
            bridge.storage.connection_pool.disconnect()

    async def _ask(self, ask: Callable[[SlidingWindowCounterRateLimiter], Awaitable[T | None]]) -> T | None:
        """Ask the shared store, or what the settings put in its place while it fails."""
        if self._shared is None:
            return await ask(self._local)
        failed_at = self._store_failed_at
        if failed_at is None or self._clock() - failed_at >= _RETRY_STORE_S:
            try:
                async with asyncio.timeout(self._settings.store_timeout_s):
                    answer = await ask(self._shared)
            except (StorageError, OSError, TimeoutError) as error:
                # The address of the store may hold its password.
                _LOG.warning(
                    "the store of the rates does not answer (%s); until it does: %s",
                    type(error.__cause__ or error).__name__,
                    self._settings.store_failure,
                )
                self._store_failed_at = self._clock()
            else:
                if failed_at is not None:
                    _LOG.info("the store of the rates answers again")
                self._store_failed_at = None
                return answer
        if self._settings.store_failure == "refuse":
            raise RatesUnavailableError(
                "rate limit store unavailable; try again later", retry_after_s=_RETRY_STORE_S
            )
        return None if self._settings.store_failure == "allow" else await ask(self._local)


_WHY: dict[What, str] = {
    "key_requests": "too many requests with these credentials",
    "key_sessions": "too many connections with these credentials",
    "ip_requests": "too many requests from this address",
    "ip_sessions": "too many connections from this address",
    "auth_failures": "too many wrong credentials from this address",
}


def parse_rate(name: str, text: str) -> list[limits.RateLimitItem]:
    """The limits in a text such as ``600/minute``; none if it is empty.

    Raises:
        GatewaySettingsError: it cannot be read.
    """
    try:
        return limits.parse_many(text) if text.strip() else []
    except ValueError as error:
        raise GatewaySettingsError(f"{name}: {text!r} is not a rate such as 600/minute") from error


def _shared_store(address: str) -> RedisStorage | None:
    if address == _MEMORY:
        return None
    address = read_redis_address("rates.store, if it is not memory://,", address)
    try:
        store = storage_from_string(f"async+{address}", wrap_exceptions=True)
    except (ConfigurationError, ValueError) as error:
        raise GatewaySettingsError(f"rates.store cannot be used ({type(error).__name__})") from error
    assert isinstance(store, RedisStorage)
    return store


class Bucket:
    """A token bucket; it holds the tokens of ``burst_s`` seconds."""

    def __init__(self, per_s: float, burst_s: float, clock: Callable[[], float]) -> None:
        self._per_s = per_s
        self._most = per_s * burst_s
        self._clock = clock
        self._left = self._most
        self._filled_at = clock()

    def take(self, amount: float) -> float:
        """Take tokens; seconds until there are enough, or 0 if they were taken."""
        now = self._clock()
        self._left = min(self._most, self._left + (now - self._filled_at) * self._per_s)
        self._filled_at = now
        if amount > self._left:
            return (amount - self._left) / self._per_s
        self._left -= amount
        return 0.0


class Meter:
    """Limits of the messages of one WebSocket."""

    def __init__(self, settings: RateSettings, clock: Callable[[], float] = time.monotonic) -> None:
        self._largest = settings.message_bytes
        self._messages = Bucket(settings.messages_per_s, settings.burst_s, clock)
        self._bytes = Bucket(settings.bytes_per_s, settings.burst_s, clock)

    def message(self, size: int) -> None:
        """Count a message of ``size`` bytes.

        Raises:
            MessageTooLargeError: it is too large.
            RateLimitedError: there are too many, or too many bytes.
        """
        if size > self._largest:
            raise MessageTooLargeError(f"message of {size} bytes; at most {self._largest} are allowed")
        if wait := self._messages.take(1):
            raise RateLimitedError("too many messages", retry_after_s=wait)
        if wait := self._bytes.take(size):
            raise RateLimitedError("too many bytes", retry_after_s=wait)
