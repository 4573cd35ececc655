"""Posts events of calls to the URLs that an agent's file names.

Each request is signed as `Standard Webhooks <https://www.standardwebhooks.com>`_ describes.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any

import httpx2
import msgspec

from parley.calls.folder import to_iso
from parley.calls.settings import Delivery, WebhookSettings
from parley.timeouts import cancel_all, hold_task
from parley.tools.addresses import GuardedTransport, make_client

MAX_WAITING = 1000
"""Requests of one agent that are under way, or wait to be tried again; further ones are dropped."""
MAX_BYTES = 16 * 1024 * 1024
"""Of their bodies together."""
RETRY_AFTER_S = (1.0, 5.0, 30.0, 120.0)
"""Between attempts."""
LEAST_KEY = 24
"""Bytes of a key."""
_CLOSE_S = 3.0
_AT_ONCE = 16
_MAX_ANSWER = 64 * 1024
_TRY_AGAIN = frozenset({408, 425, 429})
_PREFIX = "whsec_"
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Webhook:
    """One URL, with the key of its signatures."""

    settings: WebhookSettings
    key: bytes


def read_secret(text: str) -> bytes:
    """The key in a file: base64 behind ``whsec_``, or any other text as it is.

    Raises:
        ValueError: it is shorter than :data:`LEAST_KEY` bytes, or not base64.
    """
    text = text.strip()
    key = base64.b64decode(text[len(_PREFIX) :], validate=True) if text.startswith(_PREFIX) else text.encode()
    if len(key) < LEAST_KEY:
        raise ValueError(f"a key has at least {LEAST_KEY} bytes, and this one {len(key)}")
    return key


def sign(key: bytes, message_id: str, timestamp: int, body: bytes) -> str:
    """The value of ``webhook-signature``."""
    signed = b".".join((message_id.encode(), str(timestamp).encode(), body))
    return f"v1,{base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()}"


class Webhooks:
    """The webhooks of one agent. Runs on one event loop.

    Args:
        hosts: that may be connected to.
        private_hosts: those that may have any address.
        on_delivery: called with the outcome of each event at each URL.
    """

    def __init__(
        self,
        webhooks: Sequence[Webhook],
        hosts: Collection[str],
        private_hosts: Collection[str],
        on_delivery: Callable[[Delivery], None],
    ) -> None:
        self._webhooks = webhooks
        self._on_delivery = on_delivery
        self._client = make_client(
            GuardedTransport(hosts, private_hosts, _MAX_ANSWER), timeout=httpx2.Timeout(None)
        )
        self._deliveries: set[asyncio.Task[None]] = set()
        self._bytes = 0
        self._places = asyncio.Semaphore(_AT_ONCE)
        self.on_begin: Callable[[], None] = lambda: None
        """Called before each delivery, and :attr:`on_end` behind it: their owner waits for them."""
        self.on_end: Callable[[], None] = lambda: None

    @property
    def want_summary(self) -> bool:
        """Whether one of them asks for a summary at the end of calls."""
        return any(one.settings.summary and "call.ended" in one.settings.events for one in self._webhooks)

    def post(self, event: str, data: Mapping[str, Any]) -> None:
        """Post an event to those that ask for it; never waits. What has no room is dropped, and logged."""
        message_id, now = f"msg_{secrets.token_hex(16)}", datetime.now(UTC)
        for webhook in self._webhooks:
            if event not in webhook.settings.events:
                continue
            shown = {
                name: value for name, value in data.items() if name != "summary" or webhook.settings.summary
            }
            body = msgspec.json.encode({"type": event, "timestamp": to_iso(now), "data": shown})
            if len(self._deliveries) >= MAX_WAITING or self._bytes + len(body) > MAX_BYTES:
                count = len(self._deliveries)
                _log.error("%s is not posted: %d requests of webhooks wait already", event, count)
                self._on_delivery("dropped")
                continue
            self._bytes += len(body)
            self.on_begin()
            work = self._deliver(webhook, event, message_id, body)
            task = hold_task(self._deliveries, work, f"webhook {event} {message_id}")
            task.add_done_callback(partial(self._on_delivered, len(body)))

    async def close(self) -> None:
        """Wait a few seconds for what is under way, and drop the rest."""
        if self._deliveries:
            _, late = await asyncio.wait(self._deliveries, timeout=_CLOSE_S)
            if late:
                _log.error("%d requests of webhooks are dropped: the server stops", len(late))
            await cancel_all(late)
        await self._client.aclose()

    def _on_delivered(self, size: int, task: asyncio.Task[None]) -> None:
        self._bytes -= size
        self.on_end()
        if task.cancelled():
            self._on_delivery("dropped")
        elif (error := task.exception()) is not None:
            _log.error("%s failed", task.get_name(), exc_info=error)
            self._on_delivery("failed")

    async def _deliver(self, webhook: Webhook, event: str, message_id: str, body: bytes) -> None:
        host = httpx2.URL(webhook.settings.url).host
        for wait_s in (*RETRY_AFTER_S, None):
            async with self._places:
                problem, may_help = await self._attempt(webhook, message_id, body)
            if not problem:
                self._on_delivery("delivered")
                return
            if wait_s is None or not may_help:
                break
            await asyncio.sleep(wait_s)
        _log.error("%s (%s) was not delivered to %s: %s", event, message_id, host, problem)
        self._on_delivery("failed" if may_help else "refused")

    async def _attempt(self, webhook: Webhook, message_id: str, body: bytes) -> tuple[str, bool]:
        """What went wrong, empty if nothing did, and whether to try again."""
        timestamp = int(datetime.now(UTC).timestamp())
        headers = {
            "content-type": "application/json",
            "webhook-id": message_id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": sign(webhook.key, message_id, timestamp, body),
        }
        try:
            async with (
                asyncio.timeout(webhook.settings.timeout_ms / 1000),
                self._client.stream("POST", webhook.settings.url, headers=headers, content=body) as response,
            ):
                status = response.status_code
        except TimeoutError:
            return f"no answer within {webhook.settings.timeout_ms} ms", True
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            # The exception's own text may hold the URL, which may hold a key.
            return type(error).__name__, True
        if 200 <= status < 300:
            return "", False
        return f"HTTP {status}", status >= 500 or status in _TRY_AGAIN
