"""``GET /v1/agent``: what a session may ask for here."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from typing import Any

import grpc.aio
import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response
from tritonclient.grpc import service_pb2, service_pb2_grpc

from parley import protocol
from parley.errors import ModelUnavailableError, ParleyError
from parley.waiting import within
from parley_client.channel import error_of
from parley_client.errors import CallLostError, StreamLostError
from parley_gateway.calls import DOUBTFUL
from parley_gateway.errors import NoServerReadyError
from parley_gateway.gateway import Gateway
from parley_gateway.schemas import answers
from parley_gateway.servers import Server

_log = logging.getLogger("parley.gateway")
_TIMEOUT_S = 5.0
# Asking opens a session: however often clients ask, that is done once in so long (seconds).
_KEPT_S = 15.0
_FAILED_S = 1.0
# All servers that are asked, together: less than the page waits.
_ASK_S = 12.0
# After these no server has answered; after other errors one has.
_UNANSWERED = (*DOUBTFUL, CallLostError, StreamLostError)


class Agent(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent behind this gateway has."""

    recognizer: str
    """Name of the model that recognises speech."""
    language_model: str
    synthesizers: list[str]
    """Names of the models that speak."""
    languages: list[str]
    """What a session may be held in: what the agent both understands and speaks."""
    voices: list[str] | None
    """Names of all voices that a session may have, the default first; null: they come and go."""
    tools: list[str]
    """Names of the server's own tools, which no tool of a session may have."""
    examples: list[str]
    """Things that a user may say to this agent; empty: whatever they like."""


class AgentFacts:
    """Asks the servers in turn what their agent has, and keeps the first answer for a while.

    Args:
        gateway: of the process.
    """

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._asking = asyncio.Lock()
        self._known: Agent | None = None
        self._server: Server | None = None
        self._asked_at = 0.0
        self._failure: ParleyError | None = None
        self._failed_at = -math.inf

    async def get(self) -> Agent:
        """What the agent has.

        Raises:
            NoServerReadyError: no server answers.
            ModelUnavailableError: the agents that answer do not tell, as older ones.
            ParleyError: what the last server that answered said instead.
        """
        async with self._asking:
            is_fresh = time.monotonic() - self._asked_at < _KEPT_S
            if self._known is None or self._server is None or not (is_fresh and self._server.is_ready):
                # Those who waited for a server that does not answer must not ask it one after the other.
                if self._failure is not None and time.monotonic() - self._failed_at < _FAILED_S:
                    raise self._failure
                try:
                    self._known, self._server = await self._ask_in_turn()
                    self._asked_at = time.monotonic()
                except ParleyError as error:
                    self._failure, self._failed_at = error, time.monotonic()
                    raise
            return self._known

    async def _ask_in_turn(self) -> tuple[Agent, Server]:
        """The description of the first server that returns one, and that server."""
        servers = self._gateway.servers
        end = time.monotonic() + _ASK_S
        tried: list[Server] = []
        refusal: ParleyError | None = None
        silence: ParleyError | None = None
        while not tried or len(tried) < servers.attempts:
            try:
                lease = servers.lease(excluding=tried)
            except NoServerReadyError:
                if not tried:
                    raise
                break
            with lease:
                # One that hangs leaves the others their part of the time.
                ready = sum(one.is_ready and one not in tried for one in servers.all)
                left = min(ready, max(1, servers.attempts - len(tried)))
                limit_s = max(0.0, end - time.monotonic()) / left
                tried.append(lease.server)
                try:
                    agent = await within(self._ask(lease.server), limit_s, "the agent")
                except _UNANSWERED as error:
                    silence = error
                    if isinstance(error, DOUBTFUL):
                        lease.server.doubt(error)
                except ParleyError as error:
                    refusal = error
                else:
                    if agent is not None:
                        return agent, lease.server
                    refusal = ModelUnavailableError("the agent of this server does not tell what it has")
        raise refusal or NoServerReadyError(f"no server tells what its agent has: {silence}") from silence

    async def _ask(self, server: Server) -> Agent | None:
        described = await self._gateway.calls.describe(server)
        if described is None:
            return None
        return Agent(
            recognizer=described.recognizer,
            language_model=described.language_model,
            synthesizers=described.synthesizers,
            languages=_common(described.languages, await _understood(server, described)),
            voices=described.voices,
            tools=described.tools,
            examples=described.examples,
        )


def routes(gateway: Gateway) -> APIRouter:
    """``/v1/agent``."""
    facts = AgentFacts(gateway)
    router = APIRouter(tags=["sessions"])

    @router.get("/v1/agent", responses=answers(200, Agent, 401, 403, 429, 503))
    async def agent(request: Request) -> Response:
        """What a session may ask for here: languages, and names that its tools may not have."""
        await gateway.guard.admit(request, "agent")
        return Response(msgspec.json.encode(await facts.get()), media_type="application/json")

    return router


async def _understood(server: Server, described: protocol.AgentDescription) -> list[str] | None:
    """The languages of the recogniser, as its configuration names them; None: it does not."""
    stub: Any = service_pb2_grpc.GRPCInferenceServiceStub(server.channel)
    request = service_pb2.ModelConfigRequest(name=described.recognizer)
    try:
        answer = await stub.ModelConfig(request, timeout=_TIMEOUT_S)
    except grpc.aio.AioRpcError as error:
        refusal = error_of(error)
        _log.warning("the configuration of %s is not known: %s", described.recognizer, refusal)
        return None
    named = answer.config.parameters["languages"].string_value.split(",")
    return [name.strip() for name in named if name.strip()] or None


def _common(spoken: list[str], understood: list[str] | None) -> list[str]:
    """Dialects are spoken, and understood as their language."""
    if understood is None:
        return spoken
    return [name for name in spoken if name in understood or name.partition("-")[0] in understood]
