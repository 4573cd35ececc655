"""Sessions by REST, and their streams by WebSocket."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
from fastapi import APIRouter, FastAPI, Request
from starlette.responses import Response
from starlette.websockets import WebSocket

from parley import protocol
from parley.checkpoint import HistoryState
from parley.errors import InvalidMessageError
from parley_client.options import check_size, check_start
from parley_gateway.apis.sessions import design
from parley_gateway.apis.sessions.messages import (
    SessionCreated,
    SessionHistory,
    SessionOptions,
    SessionStatus,
    ToolsAccepted,
    ToolsRequest,
    start_of,
)
from parley_gateway.apis.sessions.registry import RegisteredSession, SessionRegistry
from parley_gateway.apis.sessions.stream import forward, serve_stream
from parley_gateway.bodies import json_answer, read_json
from parley_gateway.errors import (
    ForbiddenError,
    GatewayError,
    NoServerReadyError,
    SessionExpiredError,
    SessionInUseError,
)
from parley_gateway.gateway import Gateway
from parley_gateway.schemas import answers, body, query
from parley_gateway.security.audit import audit
from parley_gateway.security.principal import Principal
from parley_gateway.tracing import with_trace
from parley_gateway.voice_owners import check_voice


class _Rest:
    """Handlers of the REST routes."""

    def __init__(self, gateway: Gateway, registry: SessionRegistry) -> None:
        self._gateway = gateway
        self._registry = registry

    async def create(self, request: Request) -> Response:
        """Create a session that waits for its stream."""
        gateway = self._gateway
        principal = await gateway.guard.admit(request, "agent")
        options = read_json(await request.body() or b"{}", SessionOptions)
        start = with_trace(start_of(options))
        is_design = design.is_chosen(request)
        if is_design:
            start = design.prepare(start, options.encoding)
        check_start(start)
        check_voice(start.voice, principal)
        check_size(protocol.encode(start))
        gateway.calls.check_room(principal)
        if not gateway.servers.is_ready:
            raise NoServerReadyError("no server is ready")
        if options.resume is None:
            principal.check_agent(start.agent)
        await gateway.descriptions.check_start(start, principal.may_call)
        if options.resume is None:
            session = self._registry.create(start, principal, options.encoding)
            audit("session_created", principal, session=session.id)
        else:
            session = await self._take_over(options, principal)
        created = _created(request, gateway, principal, session)
        if is_design:
            created = msgspec.structs.replace(created, stream_url=f"{created.stream_url}?protocol=design")
        return json_answer(created, 201)

    async def _take_over(self, options: Any, principal: Principal) -> RegisteredSession:
        """Go on with a session of another connection, which waits for a stream like a new one."""
        if options != SessionOptions(resume=options.resume, checkpoints=options.checkpoints):
            raise InvalidMessageError("a session that goes on has its options already: update changes them")
        self._registry.check_room(principal)
        try:
            claim = await self._gateway.kept.claim(options.resume.token, principal)
        except GatewayError as error:
            audit("session_not_resumed", principal, code=error.code)
            raise
        start = with_trace(claim.make_start(options.resume))
        session = self._registry.create(start, principal, claim.record.encoding)
        session.go_on(claim)
        audit("session_resumed", principal, session=session.id, first=claim.name, epoch=claim.epoch)
        return session

    async def end(self, request: Request, session_id: str) -> Response:
        """End a session; its stream is closed."""
        session = await self._find(request, session_id)
        if session.claim is not None and session.call is None:
            # Its stream, whose end is the end of it in the store, is not open.
            await self._gateway.kept.end(session.claim)
        if session.call is None:
            self._registry.end(session, "deleted")
        else:
            await session.call.hang_up()
        return Response(status_code=204)

    async def status(self, request: Request, session_id: str) -> Response:
        """The state of a session, also for some time after its end."""
        return json_answer((await self._find(request, session_id)).status)

    async def history(self, request: Request, session_id: str) -> Response:
        """The conversation of an open session, as it was played."""
        session = await self._find(request, session_id)
        if session.state == "over":
            raise SessionExpiredError(f"the session is over: {session.reason}")
        known = session.call.history if session.call is not None else None
        history = known or HistoryState()
        return json_answer(
            SessionHistory(session_id=session.id, messages=history.messages, summary=history.summary)
        )

    async def tools(self, request: Request, session_id: str) -> Response:
        """Answer tool requests, replace the session's tools, or both."""
        session = await self._find(request, session_id)
        wanted = read_json(await request.body(), ToolsRequest)
        if session.state == "over":
            raise SessionExpiredError(f"the session is over: {session.reason}")
        if session.state == "connecting":
            raise SessionInUseError("the session is being connected; try again when it is open")
        responses = [protocol.ToolResponse(**msgspec.structs.asdict(answer)) for answer in wanted.responses]
        # Everything is checked before anything is changed.
        _check_responses(session, responses)
        if wanted.tools is not None:
            _replace_tools(session, wanted.tools)
        for response in responses:
            assert session.call is not None  # only an open session has tool requests
            forward(session.call, response)
            session.on_tool_answered(response.call_id)
        count = None if wanted.tools is None else len(wanted.tools)
        return json_answer(ToolsAccepted(responses=len(wanted.responses), tools=count))

    async def _find(self, request: Request, session_id: str) -> RegisteredSession:
        principal = await self._gateway.guard.admit(request, "agent", session_id=session_id)
        return self._registry.find(session_id, principal)


def _check_responses(session: RegisteredSession, responses: list[protocol.ToolResponse]) -> None:
    for response in responses:
        session.check_tool_call(response.call_id)
        check_size(protocol.encode(response))
    if len({response.call_id for response in responses}) < len(responses):
        raise InvalidMessageError("a tool request is answered once")


def _replace_tools(session: RegisteredSession, tools: list[protocol.Tool]) -> None:
    if session.call is None:
        start = msgspec.structs.replace(session.start, tools=tools)
        check_size(protocol.encode(start))
        session.start = start
    else:
        forward(session.call, protocol.Update(tools=tools))


def _created(
    request: Request, gateway: Gateway, principal: Principal, session: RegisteredSession
) -> SessionCreated:
    wait_s = gateway.settings.sessions.connect_s
    try:
        token = gateway.guard.grant(principal, ttl_s=wait_s, session_id=session.id, scopes=["agent"]).token
    except ForbiddenError:
        token = None  # a token cannot issue another one
    base = gateway.settings.listen.public_url or str(request.base_url)
    url = f"{base.rstrip('/')}/v1/sessions/{session.id}/stream"
    expires = datetime.now(UTC) + timedelta(seconds=wait_s)
    return SessionCreated(
        session_id=session.id,
        stream_url="ws" + url.removeprefix("http"),
        token=token,
        expires_at=expires.isoformat(timespec="milliseconds"),
        expires_in_s=wait_s,
    )


def routes(gateway: Gateway) -> APIRouter:
    """``/v1/sessions`` and what is below it."""
    registry = SessionRegistry(gateway.settings.sessions, gateway.instance)
    rest = _Rest(gateway, registry)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        registry.close()

    router = APIRouter(prefix="/v1/sessions", tags=["sessions"], lifespan=lifespan)
    router.post(
        "",
        status_code=201,
        openapi_extra=body(SessionOptions, required=False) | query(design.StreamQuery),
        responses=answers(201, SessionCreated, 400, 401, 403, 404, 410, 429, 503),
    )(rest.create)
    router.delete("/{session_id}", status_code=204, responses=answers(204, None, 401, 403, 404, 429, 503))(
        rest.end
    )
    router.get("/{session_id}/status", responses=answers(200, SessionStatus, 401, 403, 404, 429))(rest.status)
    router.get("/{session_id}/history", responses=answers(200, SessionHistory, 401, 403, 404, 410, 429))(
        rest.history
    )
    router.post(
        "/{session_id}/tools",
        openapi_extra=body(ToolsRequest),
        responses=answers(200, ToolsAccepted, 400, 401, 403, 404, 409, 410, 429),
    )(rest.tools)

    @router.websocket("/{session_id}/stream")
    async def stream(websocket: WebSocket, session_id: str) -> None:
        await serve_stream(websocket, session_id, gateway, registry)

    return router
