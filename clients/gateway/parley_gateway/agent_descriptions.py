"""What the agent of the servers has: asked of one of them, and shared by all APIs."""

from __future__ import annotations

import asyncio
import logging
import math
import time

from parley import protocol
from parley.errors import (
    ModelUnavailableError,
    ParleyError,
    UnsupportedLanguageError,
    UnsupportedVoiceError,
)
from parley.languages import find_language
from parley.names import suggest_name
from parley.timeouts import with_timeout
from parley.tts.voice_routing import SEPARATOR
from parley_client.errors import CallLostError, StreamLostError
from parley_gateway.calls import Calls
from parley_gateway.errors import NoServerReadyError
from parley_gateway.moves import DOUBTFUL
from parley_gateway.servers import Servers, TritonServer

_log = logging.getLogger(__name__)
# A description needs a session on a server; it is cached for this time (seconds).
_CACHE_S = 15.0
_FAILURE_CACHE_S = 1.0
# For all servers together: shorter than the page's timeout.
_TOTAL_TIMEOUT_S = 12.0
# How long a request for a session waits for a description (seconds).
_CHECK_S = 1.0
# Errors without an answer of a server.
_UNANSWERED = (*DOUBTFUL, CallLostError, StreamLostError)


class AgentDescriptions:
    """Requests the description of the agent from one server after another, and caches the first."""

    def __init__(self, servers: Servers, calls: Calls) -> None:
        self._servers = servers
        self._calls = calls
        self._lock = asyncio.Lock()
        self._known: protocol.AgentDescription | None = None
        self._server: TritonServer | None = None
        self._asked_at = 0.0
        self._failure: ParleyError | None = None
        self._failed_at = -math.inf
        self._asking: asyncio.Task[protocol.AgentDescription] | None = None

    async def aclose(self) -> None:
        """End a request that goes on longer than the sessions which waited for it."""
        if self._asking is not None:
            self._asking.cancel()
            await asyncio.wait([self._asking])

    async def check(self, *, language: str | None, voice: str | None) -> None:
        """Refuse a language or a voice that the agent is known not to have.

        No language is refused while a recogniser does not say what it understands, nor by a server too old to
        report that; no voice is refused where voices are enrolled at run time. Whether a synthesizer that the
        name begins with has the voice, and whether it speaks the session's language, is left to the server.

        Args:
            language: that the agent is to understand and speak; None: it is not checked.
            voice: its name; None: it is not checked.

        Raises:
            UnsupportedLanguageError: the language cannot be had.
            UnsupportedVoiceError: there is no such voice; the text has those that there are.
        """
        if language is None and voice is None:
            return
        described = await self._get_soon()
        if described is None:
            return
        if language is not None:
            _check_language(language, described)
        if voice is not None:
            _check_voice(voice, described)

    async def _get_soon(self) -> protocol.AgentDescription | None:
        """The agent's description; None: no server has described it at once, on which no session depends."""
        asking = self._asking
        if asking is None or asking.done():
            asking = self._asking = asyncio.create_task(self.get(), name="agent-description")
            asking.add_done_callback(_log_failure)
        await asyncio.wait([asking], timeout=_CHECK_S)
        if not asking.done() or asking.cancelled() or asking.exception() is not None:
            return None
        return asking.result()

    async def get(self) -> protocol.AgentDescription:
        """The agent's description, or the error of the last server that answered."""
        async with self._lock:
            is_fresh = time.monotonic() - self._asked_at < _CACHE_S
            if self._known is None or self._server is None or not (is_fresh and self._server.is_ready):
                # Requests that waited for a server without an answer must not each wait for it again.
                if self._failure is not None and time.monotonic() - self._failed_at < _FAILURE_CACHE_S:
                    raise self._failure
                try:
                    self._known, self._server = await self._ask_in_turn()
                    self._asked_at = time.monotonic()
                except ParleyError as error:
                    self._failure, self._failed_at = error, time.monotonic()
                    raise
            return self._known

    async def _ask_in_turn(self) -> tuple[protocol.AgentDescription, TritonServer]:
        """The description of the first server that returns one, and that server."""
        servers = self._servers
        end = time.monotonic() + _TOTAL_TIMEOUT_S
        tried: list[TritonServer] = []
        refusal: ParleyError | None = None
        unanswered: ParleyError | None = None
        while not tried or len(tried) < servers.attempts:
            try:
                lease = servers.lease(excluding=tried, opens_session=False)
            except NoServerReadyError:
                if not tried:
                    raise
                break
            with lease:
                # A server that hangs leaves the others their part of the time.
                ready = sum(one.is_ready and one not in tried for one in servers.all)
                left = min(ready, max(1, servers.attempts - len(tried)))
                limit_s = max(0.0, end - time.monotonic()) / left
                tried.append(lease.server)
                try:
                    agent = await with_timeout(self._calls.describe(lease.server), limit_s, "the agent")
                except _UNANSWERED as error:
                    unanswered = error
                    if isinstance(error, DOUBTFUL):
                        lease.server.doubt(error)
                except ParleyError as error:
                    refusal = error
                else:
                    if agent is not None:
                        return agent, lease.server
                    refusal = ModelUnavailableError("the agent of this server is too old to describe itself")
        raise refusal or NoServerReadyError(f"no server describes its agent: {unanswered}") from unanswered


def common_languages(spoken: list[str], recognized: list[str] | None) -> list[str]:
    """The spoken languages that are recognised; None: the agent does not say which are."""
    if recognized is None:
        return spoken
    return [name for name in spoken if find_language(name, recognized) is not None]


def _check_language(language: str, described: protocol.AgentDescription) -> None:
    if described.recognized_languages is None or described.unavailable_recognizers != []:
        return
    both = common_languages(described.languages, described.recognized_languages)
    if find_language(language, both) is None:
        known = ", ".join(both) or "none"
        raise UnsupportedLanguageError(f"language {language!r} is not one of the agent's: {known}")


def _check_voice(voice: str, described: protocol.AgentDescription) -> None:
    if described.voices is None:
        return
    if voice not in described.voices and voice.partition(SEPARATOR)[2] not in described.voices:
        raise UnsupportedVoiceError(
            f"there is no voice {voice!r}{suggest_name(voice, described.voices)}; "
            f"possible are {', '.join(described.voices)}"
        )


def _log_failure(asking: asyncio.Task[protocol.AgentDescription]) -> None:
    """Retrieve the error of a request that may fail after those that waited for it."""
    if asking.cancelled() or (error := asking.exception()) is None:
        return
    if isinstance(error, ParleyError):
        _log.debug("languages and voices of sessions are not checked: %s", error.to_log())
    else:
        _log.warning("languages and voices of sessions are not checked", exc_info=error)
