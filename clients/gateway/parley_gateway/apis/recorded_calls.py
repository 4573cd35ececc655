"""``/v1/calls``: the calls that the servers have recorded, each for the key that held it."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Annotated, TypeVar, TypeVarTuple

import msgspec
from fastapi import APIRouter, FastAPI, Request
from msgspec import Meta
from starlette.responses import Response

from parley.calls.database import CallInfo, CallScope
from parley.calls.folder import AUDIO, EVENTS, CallFilesMissingError, open_calls
from parley.calls.store import OpenFile
from parley.calls.transcripts import CallTranscript, read_transcript
from parley.errors import CallNotFoundError, ModelLoadingError
from parley.protocol import MAX_AGENT_NAME
from parley_gateway.bodies import read_options
from parley_gateway.errors import (
    CallsUnavailableError,
    GatewaySettingsError,
    NotFoundError,
    RangeNotSatisfiableError,
)
from parley_gateway.failures import answer
from parley_gateway.gateway import Gateway
from parley_gateway.model_limits import ModelLimiter
from parley_gateway.schemas import answers, query
from parley_gateway.security.audit import audit
from parley_gateway.security.principal import Principal
from parley_gateway.streaming import StreamedAnswer, while_connected

CALLS = "/v1/calls"
MAX_EVENTS = 8 * 1024 * 1024
"""Bytes of a call's events that are read for one answer."""
_LISTING, _READING = 2, 4
"""Threads; those that list do not wait for files, which may be in a store."""
_PIECE = 256 * 1024
_RANGE = re.compile(r"bytes=([0-9]{0,15})-([0-9]{0,15})")
_log = logging.getLogger("parley.gateway")
ArgumentsT = TypeVarTuple("ArgumentsT")
ResultT = TypeVar("ResultT")


class CallQuery(msgspec.Struct, frozen=True, kw_only=True):
    """Options of the list."""

    limit: Annotated[int, Meta(ge=1, le=200)] = 50
    """The most calls of one answer."""
    before: Annotated[str, Meta(pattern=r"^([0-9TZ:.-]{4,24}(_[0-9a-f.-]{1,40})?)?$")] = ""
    """`next` of the answer before, or a time such as `2026-05-04T12:00`: only calls that began before it."""
    agent: Annotated[str, Meta(max_length=MAX_AGENT_NAME, pattern="^[a-z0-9_-]*$")] = ""
    """Only calls of this agent."""


class CallList(msgspec.Struct, frozen=True, kw_only=True):
    """Recorded calls, newest first; of a call, fields that are empty are left out."""

    calls: list[CallInfo]
    next: str | None
    """`before` of a request for the calls that follow; null: there are no others."""


class RecordedCall(CallTranscript, frozen=True, kw_only=True):
    """A recorded call."""

    call: CallInfo


class RecordedCalls:
    """Handlers of the routes. Files are read in threads of its own: their disk may be slow, or elsewhere."""

    def __init__(self, gateway: Gateway, folder: Path) -> None:
        self._gateway = gateway
        self._folder = open_calls(folder)
        self._limiter = ModelLimiter(gateway, "calls")
        self._lists = ThreadPoolExecutor(_LISTING, "lists of calls")
        self._files = ThreadPoolExecutor(_READING, "files of calls")

    def close(self) -> None:
        """End the threads, when what they read now is read."""
        for threads in (self._lists, self._files):
            threads.shutdown(wait=False, cancel_futures=True)

    async def list(self, request: Request) -> Response:
        """The caller's recorded calls, newest first; with the scope `admin` those of all callers."""
        principal, scope = await self._admit(request)
        wanted = read_options(request.query_params, CallQuery)
        with self._limiter.place(principal):
            return _json(await self._run(self._lists, self._list, wanted, scope))

    async def show(self, request: Request, call_id: str) -> Response:
        """What was said and done in a call."""
        principal, scope = await self._admit(request)
        with self._limiter.place(principal):
            return _json(await while_connected(request, self._run(self._files, self._read, call_id, scope)))

    async def audio(self, request: Request, call_id: str) -> Response:
        """The audio of a call, or a range of its bytes: WAV, the caller left and the agent right."""
        principal, scope = await self._admit(request)
        with ExitStack() as resources:
            resources.enter_context(self._limiter.place(principal))
            file, size = await while_connected(request, self._run(self._files, self._open, call_id, scope))
            resources.callback(self._close, file)
            try:
                begin, end = _read_range(request.headers.get("range", ""), size)
            except RangeNotSatisfiableError as error:
                refusal = answer(error)
                refusal.headers["Content-Range"] = f"bytes */{size}"
                return refusal
            headers = {"Accept-Ranges": "bytes", "Content-Length": str(end - begin)}
            if is_part := end - begin < size:
                headers["Content-Range"] = f"bytes {begin}-{end - 1}/{size}"
            return StreamedAnswer(
                b"",
                self._pieces(file, begin, end),
                status=206 if is_part else 200,
                media_type="audio/wav",
                stall_s=self._gateway.settings.stages.stall_s,
                headers=headers,
                resources=resources.pop_all(),
            )

    async def delete(self, request: Request, call_id: str) -> Response:
        """Delete a call, with its files."""
        principal, scope = await self._admit(request)
        with self._limiter.place(principal):
            await self._run(self._files, self._folder.delete, call_id, scope)
        audit("call_deleted", principal, call=call_id)
        return Response(status_code=204)

    async def _admit(self, request: Request) -> tuple[Principal, CallScope]:
        guard = self._gateway.guard
        principal = await guard.identify(request)
        is_admin = "admin" in principal.scopes
        guard.authorize(request, principal, "admin" if is_admin else "calls")
        # Without authentication only this machine is let in (parley_gateway.serving.check_exposure).
        owner = None if is_admin or principal.root == "anonymous" else principal.call_owner
        return principal, CallScope(owner=owner, agents=principal.agents)

    async def _run(
        self, threads: ThreadPoolExecutor, work: Callable[[*ArgumentsT], ResultT], *args: *ArgumentsT
    ) -> ResultT:
        """The result of ``work``, which reads or deletes files.

        Raises:
            CallNotFoundError: the call, or what is to be read of it, does not exist, or not for this caller.
            CallsUnavailableError: the folder cannot be used.
        """
        try:
            return await asyncio.wrap_future(threads.submit(work, *args))
        except CallFilesMissingError as error:
            raise CallNotFoundError("the files of this call cannot be read here, or not yet") from error
        except (CallNotFoundError, FileNotFoundError) as error:  # its text has the folder
            raise CallNotFoundError("there is no such call") from error
        except (OSError, msgspec.MsgspecError) as error:
            _log.exception("recorded calls in %s cannot be used", self._folder.path)
            raise CallsUnavailableError(
                "recorded calls cannot be used now; the gateway's log says why"
            ) from error

    def _list(self, wanted: CallQuery, scope: CallScope) -> bytes:
        started, _, entry = wanted.before.partition("_")
        found = self._folder.entries.newest(wanted.agent, wanted.limit + 1, scope, (started, entry))
        shown = found[: wanted.limit]
        after = f"{shown[-1].started}_{shown[-1].id}" if len(found) > len(shown) else None
        return msgspec.json.encode(CallList(calls=list(map(_without_owner, shown)), next=after))

    def _read(self, call_id: str, scope: CallScope) -> bytes:
        with self._folder.open(call_id, scope, EVENTS) as (info, files):
            read = msgspec.structs.asdict(read_transcript(files, MAX_EVENTS))
        return msgspec.json.encode(RecordedCall(call=_without_owner(info), **read))

    def _open(self, call_id: str, scope: CallScope) -> tuple[OpenFile, int]:
        try:
            return self._folder.open_file(call_id, AUDIO, scope)
        except FileNotFoundError as error:
            raise NotFoundError("the audio of this call was not kept") from error

    def _close(self, file: OpenFile) -> None:
        with suppress(RuntimeError):  # the threads have ended
            self._files.submit(file.close)  # it waits for a read that hangs

    async def _pieces(self, file: OpenFile, at: int, end: int) -> AsyncGenerator[bytes, None]:
        await self._run(self._files, file.seek, at)
        while at < end and (piece := bytes(await self._run(self._files, file.read, min(_PIECE, end - at)))):
            at += len(piece)
            yield piece


def _without_owner(info: CallInfo) -> CallInfo:
    return msgspec.structs.replace(info, owner="")


def _json(content: bytes) -> Response:
    return Response(content, media_type="application/json")


def _read_range(header: str, size: int) -> tuple[int, int]:
    """The bytes of one range, from the first to behind the last; all of them, if it is none (RFC 9110, 14.2).

    Raises:
        RangeNotSatisfiableError: the file has none of them.
    """
    match = _RANGE.fullmatch(header.strip())
    if match is None or not any(match.groups()):
        return 0, size
    first, last = match.groups()
    begin = int(first) if first else max(0, size - int(last))
    end = min(size, int(last) + 1) if first and last else size
    if begin >= size or (not first and not int(last)):
        raise RangeNotSatisfiableError(f"the audio has {size} bytes")
    return (begin, end) if begin < end else (0, size)


def may_read_calls(gateway: Gateway, principal: Principal) -> bool:
    """Whether :func:`routes` answers a client."""
    return bool(gateway.settings.calls.folder) and not principal.scopes.isdisjoint(("calls", "admin"))


def routes(gateway: Gateway) -> APIRouter:
    """``GET /v1/calls``, ``GET`` and ``DELETE /v1/calls/{call_id}``, ``GET /v1/calls/{call_id}/audio``."""
    if not gateway.settings.calls.folder:
        return APIRouter()
    try:
        calls = RecordedCalls(gateway, Path(gateway.settings.calls.folder))
    except ModelLoadingError as error:  # of the store or the list
        raise GatewaySettingsError(str(error)) from error

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        calls.close()

    router = APIRouter(prefix=CALLS, tags=["recorded calls"], lifespan=lifespan)
    errors = (400, 401, 403, 404, 429, 503)
    router.get("", openapi_extra=query(CallQuery), responses=answers(200, CallList, *errors))(calls.list)
    router.get("/{call_id}", responses=answers(200, RecordedCall, *errors))(calls.show)
    router.get("/{call_id}/audio", responses=answers(200, None, 416, *errors))(calls.audio)
    router.delete("/{call_id}", status_code=204, responses=answers(204, None, *errors))(calls.delete)
    return router
