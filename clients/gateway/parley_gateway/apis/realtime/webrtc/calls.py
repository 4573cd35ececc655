"""``/v1/realtime/calls``: WebRTC calls, from the offer to the end."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack
from typing import Any

import msgspec
from starlette.datastructures import UploadFile
from starlette.requests import Request
from starlette.responses import Response

from parley.errors import ParleyError
from parley_gateway.apis.realtime.client_events import check_nesting
from parley_gateway.apis.realtime.client_secrets import SecretSessions
from parley_gateway.apis.realtime.places import ConnectionSlots
from parley_gateway.apis.realtime.server_events import (
    ClientEventError,
    answer_refusal,
    error_response,
    new_id,
)
from parley_gateway.apis.realtime.session_config import first_config
from parley_gateway.apis.realtime.webrtc.ice import IceNetwork
from parley_gateway.apis.realtime.webrtc.offers import Offer
from parley_gateway.apis.realtime.webrtc.peer import Peer
from parley_gateway.errors import ForbiddenError, NotFoundError
from parley_gateway.gateway import Gateway
from parley_gateway.security.admission import AdmittedCaller

_END_S = 5.0


class WebRtcCalls:
    """All calls of the process; each has a task until it is over.

    Args:
        gateway: The parts of the process.
        secrets: Settings that clients bring with their secrets.
    """

    def __init__(self, gateway: Gateway, secrets: SecretSessions) -> None:
        self._gateway = gateway
        self._secrets = secrets
        self._places = ConnectionSlots(gateway.settings.calls, "WebRTC calls")
        self._network = IceNetwork.of(gateway.settings.realtime, gateway.settings.listen.host)
        self._peers: dict[str, Peer] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def create(self, request: Request) -> Response:
        """Answer an offer."""
        with ExitStack() as place:
            try:
                principal = await self._gateway.guard.admit(request, "agent")
                # A connection that comes about has its call only then.
                self._gateway.calls.check_room(principal)
                place.enter_context(self._places.take(principal))
                text, session = await _read(request)
                offer = Offer(text, self._network.peers)
                given = {**self._secrets.find(request), **session}
                model = given.get("model") or request.query_params.get("model")
                config = first_config(self._gateway, model, given, webrtc=True)
                admission = AdmittedCaller(self._gateway.guard, principal, "agent")
                peer = Peer(new_id("rtc"), self._gateway, admission, config, self._network)
                answer = await peer.answer(offer)
            except ParleyError as error:
                return error_response(error)
            except ClientEventError as refusal:
                return answer_refusal(refusal)
            self._begin(peer, place.pop_all())
        headers = {"Location": f"/v1/realtime/calls/{peer.id}"}
        return Response(answer, status_code=201, media_type="application/sdp", headers=headers)

    async def hang_up(self, request: Request, call_id: str) -> Response:
        """End a call."""
        try:
            principal = await self._gateway.guard.admit(request, "agent")
            peer = self._peers.get(call_id)
            if peer is None:
                raise NotFoundError(f"there is no call {call_id!r}")
            if peer.principal.id != principal.id:
                raise ForbiddenError("the call belongs to somebody else")
        except ParleyError as error:
            return error_response(error)
        peer.hang_up()
        return Response(status_code=200)

    async def close(self) -> None:
        """End all calls."""
        for peer in self._peers.values():
            peer.hang_up()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_END_S)

    def _begin(self, peer: Peer, place: ExitStack) -> None:
        self._peers[peer.id] = peer
        task = asyncio.create_task(self._run(peer, place), name=peer.id)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, peer: Peer, place: ExitStack) -> None:
        with place:
            try:
                await peer.run()
            finally:
                del self._peers[peer.id]


async def _read(request: Request) -> tuple[str, dict[str, Any]]:
    """The offer, and the settings that come with it.

    Raises:
        Refusal: they cannot be read.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "application/sdp":
        return (await request.body()).decode(errors="replace"), {}
    if kind != "multipart/form-data":
        message = "The offer has to come as application/sdp, or as multipart/form-data with sdp and session."
        raise ClientEventError(message, code="invalid_content_type")
    async with request.form() as form:
        offer = await _text(form.get("sdp"), "sdp")
        raw = await _text(form.get("session"), "session") if "session" in form else "{}"
    try:
        session = msgspec.json.decode(raw, type=dict[str, Any])
    except (msgspec.MsgspecError, UnicodeError, RecursionError) as error:
        raise ClientEventError(f"The session cannot be read: {error}.", param="session") from error
    check_nesting(session, "session")
    return offer, session


async def _text(part: UploadFile | str | None, name: str) -> str:
    if part is None:
        raise ClientEventError(
            f"Missing required parameter: '{name}'.", code="missing_required_parameter", param=name
        )
    return part if isinstance(part, str) else (await part.read()).decode(errors="replace")
