"""What the agent of the servers has: asked of one of them, and shared by all APIs."""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any, TypeAlias

from parley import protocol
from parley.errors import (
    ModelUnavailableError,
    ParleyError,
    UnknownAgentError,
    UnsupportedLanguageError,
    UnsupportedVoiceError,
)
from parley.languages import find_language
from parley.names import suggest_name
from parley.timeouts import cancel_all, failure_of, loop_time, with_timeout
from parley.tts.voice_routing import SEPARATOR
from parley_client.errors import CallLostError, StreamLostError
from parley_gateway.calls import Calls
from parley_gateway.errors import NoServerReadyError
from parley_gateway.moves import DOUBTFUL
from parley_gateway.servers import Servers, TritonServer

_log = logging.getLogger(__name__)
_SEPARATORS = re.compile(r"[-+ ().]")
# A description needs a session on a server; it is cached for this time (seconds).
_CACHE_S = 15.0
_FAILURE_CACHE_S = 1.0
# An agent that a cached description lacks is looked for again in one that is not older: its file may be new.
_RENEW_S = 1.0
# For all servers together: shorter than the page's timeout.
_TOTAL_TIMEOUT_S = 12.0
# How long a request for a session waits for a description (seconds).
_CHECK_S = 1.0
# Errors without an answer of a server.
_UNANSWERED = (*DOUBTFUL, CallLostError, StreamLostError)


MayCall: TypeAlias = Callable[[str], bool]


def _any_agent(name: str) -> bool:  # noqa: ARG001 - one form of MayCall
    return True


class _UndescribedError(ModelUnavailableError):
    """The servers that answer are too old to describe their agent."""


_Answer: TypeAlias = tuple[protocol.AgentDescription, TritonServer]


class _CachedDescription:
    """The description of one agent; one request for it at a time."""

    def __init__(self, ask: Callable[[], Coroutine[Any, Any, _Answer]]) -> None:
        self._ask = ask
        self.asking: asyncio.Task[_Answer] | None = None
        self._answered_at = -math.inf

    @property
    def is_asking(self) -> bool:
        """Whether a request is under way."""
        return self.asking is not None and not self.asking.done()

    def request(self, max_age_s: float | None) -> asyncio.Task[_Answer]:
        """The request that is under way, or the last one while its answer counts; otherwise a new one."""
        asking = self.asking
        max_age_s = _CACHE_S if max_age_s is None else max_age_s
        if asking is None or (asking.done() and not self._counts(asking, max_age_s)):
            asking = self.asking = asyncio.create_task(self._ask(), name="agent-description")
            asking.add_done_callback(self._on_answered)
        return asking

    def _counts(self, asked: asyncio.Task[_Answer], max_age_s: float) -> bool:
        age_s = loop_time() - self._answered_at
        if asked.cancelled() or asked.exception() is not None:
            # Requests that waited for a server without an answer must not each wait for it again.
            return age_s < _FAILURE_CACHE_S
        return age_s < max_age_s and asked.result()[1].is_ready

    def _on_answered(self, asked: asyncio.Task[Any]) -> None:
        self._answered_at = loop_time()
        error = failure_of(asked)
        if isinstance(error, ParleyError):
            _log.debug("agents, languages and voices of sessions are not checked: %s", error.to_log())
        elif error is not None:
            _log.warning("agents, languages and voices of sessions are not checked", exc_info=error)


def digits_of(number: str) -> str:
    """The digits of a telephone number, or of one in a SIP address; empty: it is another address."""
    user = number.partition("@")[0].lower().removeprefix("sips:").removeprefix("sip:")
    digits = _SEPARATORS.sub("", user)
    return digits if digits.isascii() and digits.isdecimal() else ""


class AgentDescriptions:
    """Requests descriptions of agents from one server after another, and caches the first of each agent."""

    def __init__(self, servers: Servers, calls: Calls) -> None:
        self._servers = servers
        self._calls = calls
        self._own = _CachedDescription(partial(self._ask_in_turn, ""))
        self._named: dict[str, _CachedDescription] = {}
        """By name, of agents that the last description of the servers' own agent lists."""

    async def aclose(self) -> None:
        """End requests that go on longer than the sessions which waited for them."""
        asking = (one.asking for one in (self._own, *self._named.values()))
        await cancel_all(task for task in asking if task is not None)

    async def check(
        self,
        *,
        language: str | None = None,
        voice: str | None = None,
        agent: str = "",
        may_call: MayCall = _any_agent,
    ) -> None:
        """Refuse an agent that no server is known to define, and a language or a voice that none has.

        No language is refused while a recogniser does not say what it understands, nor by a server too old to
        report that; no voice is refused where voices are enrolled at run time. Whether a synthesizer that the
        name begins with has the voice, and whether it speaks the session's language, is left to the server.

        Args:
            language: that the agent is to understand and speak; None: it is not checked.
            voice: its name; None: it is not checked.
            agent: its name; empty: the servers' own agent.
            may_call: whether the client may call an agent, and so read its name in an error.

        Raises:
            UnknownAgentError: there is no such agent; the text names the nearest.
            UnsupportedLanguageError: the language cannot be had.
            UnsupportedVoiceError: there is no such voice; the text has those that there are.
        """
        if language is None and voice is None and not agent:
            return
        described = await self._get_soon()
        if described is not None and agent and not _defines(described, agent):
            described = await self._get_soon(_RENEW_S)
        if described is None:
            return
        if agent:
            _check_agent(agent, described.agents, may_call)
        if language is not None:
            _check_language(language, described)
        if voice is not None:
            _check_voice(voice, described)

    async def _get_soon(self, max_age_s: float | None = None) -> protocol.AgentDescription | None:
        """The agent's description; None: no server has described it at once, on which no session depends."""
        asking = self._own.request(max_age_s)
        await asyncio.wait([asking], timeout=_CHECK_S)
        if not asking.done() or asking.cancelled() or asking.exception() is not None:
            return None
        return asking.result()[0]

    async def get(self, max_age_s: float | None = None) -> protocol.AgentDescription:
        """The description of the servers' own agent, or the error of the last server that answered.

        Args:
            max_age_s: of a cached description (seconds); None: the default.
        """
        return (await asyncio.shield(self._own.request(max_age_s)))[0]

    async def get_named(
        self, name: str, may_call: MayCall
    ) -> tuple[protocol.AgentSummary, protocol.AgentDescription]:
        """An agent that the servers define, and its description; raises as :meth:`check` and :meth:`get`."""
        await self.check(agent=name, may_call=may_call)
        listed = await self.agents()
        summary = _check_agent(name, listed, may_call)
        names = {agent.name for agent in listed}
        self._named = {known: one for known, one in self._named.items() if known in names or one.is_asking}
        if name not in self._named:
            self._named[name] = _CachedDescription(partial(self._ask_in_turn, name))
        return summary, (await asyncio.shield(self._named[name].request(None)))[0]

    async def agents(self, max_age_s: float | None = None) -> list[protocol.AgentSummary]:
        """The agents that the servers define beside their own; raises as :meth:`get`."""
        try:
            return (await self.get(max_age_s)).agents
        except _UndescribedError:
            return []

    async def find_agent(self, fits: Callable[[protocol.AgentSummary], bool]) -> protocol.AgentSummary | None:
        """The first agent that fits; None: none does. Raises as :meth:`get`."""
        agents = await self.agents()
        if not any(map(fits, agents)):
            agents = await self.agents(_RENEW_S)
        return next(filter(fits, agents), None)

    async def check_start(self, start: protocol.Start, may_call: MayCall) -> None:
        """Check the options of a new call; the default language is not worth a question to a server.

        Raises as :meth:`check`.
        """
        language = None if start.language in ("", protocol.Start().language) else start.language
        await self.check(language=language, voice=start.voice, agent=start.agent, may_call=may_call)

    async def find_by_number(self, number: str) -> str:
        """The name of the agent of a number; empty: the server's own. Raises as :meth:`get`."""
        called = digits_of(number)
        if not called:
            return ""
        agent = await self.find_agent(lambda one: called in map(digits_of, one.numbers))
        return "" if agent is None else agent.name

    async def _ask_in_turn(self, name: str) -> _Answer:
        """The description of an agent by the first server that returns one, and that server."""
        servers = self._servers
        end = loop_time() + _TOTAL_TIMEOUT_S
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
                limit_s = max(0.0, end - loop_time()) / left
                tried.append(lease.server)
                try:
                    agent = await with_timeout(self._calls.describe(lease.server, name), limit_s, "the agent")
                except _UNANSWERED as error:
                    unanswered = error
                    if isinstance(error, DOUBTFUL):
                        lease.server.doubt(error)
                except ParleyError as error:
                    refusal = error
                else:
                    if agent is not None:
                        return agent, lease.server
                    refusal = _UndescribedError("the agent of this server is too old to describe itself")
        raise refusal or NoServerReadyError(f"no server describes its agent: {unanswered}") from unanswered


def common_languages(spoken: list[str], recognized: list[str] | None) -> list[str]:
    """The spoken languages that are recognised; None: the agent does not say which are."""
    if recognized is None:
        return spoken
    return [name for name in spoken if find_language(name, recognized) is not None]


def _check_agent(name: str, agents: list[protocol.AgentSummary], may_call: MayCall) -> protocol.AgentSummary:
    """The agent of a name; raises UnknownAgentError, which names the nearest."""
    for agent in agents:
        if agent.name == name:
            return agent
    known = [agent.name for agent in agents if may_call(agent.name)]
    possible = f"; possible are {', '.join(known)}" if known else ""
    raise UnknownAgentError(f"no agent {name[:80]!r} on this server{suggest_name(name, known)}{possible}")


def _defines(described: protocol.AgentDescription, name: str) -> bool:
    return any(agent.name == name for agent in described.agents)


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
