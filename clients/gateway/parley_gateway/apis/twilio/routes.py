"""Routes of the API for telephone calls."""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qs

from fastapi import APIRouter, Request
from starlette.responses import Response
from starlette.websockets import WebSocket

from parley.errors import InvalidMessageError, ParleyError
from parley_gateway.apis.twilio.signature import TwilioSignatures
from parley_gateway.apis.twilio.stream import (
    AGENT,
    BUSY,
    NONCE,
    RESUME,
    can_go_on,
    connect_to,
    serve_stream,
)
from parley_gateway.apis.twilio.transfers import (
    DIALLED,
    ENDED,
    HANGUP,
    WHISPER,
    Transfers,
    after_dial,
    whisper,
)
from parley_gateway.errors import NotFoundError
from parley_gateway.gateway import Gateway
from parley_gateway.security.principal import Principal

VOICE = "/v1/twilio/voice"
STREAM = "/v1/twilio/stream"
_MAX_FIELDS = 200
_OVER = frozenset(("completed", "busy", "failed", "no-answer", "canceled"))
_XML: dict[str, Any] = {
    "response_class": Response,
    "responses": {200: {"content": {"application/xml": {}}}},
}


def routes(gateway: Gateway) -> APIRouter:
    """``/v1/twilio/*``; none if no auth token is configured."""
    router = APIRouter(tags=["telephone"])
    settings = gateway.settings.twilio
    if not settings.auth_token_file:
        return router
    signatures = TwilioSignatures(settings.auth_token_file, gateway.settings.listen.public_url)
    transfers = Transfers()

    @router.post(VOICE, **_XML)
    async def voice(request: Request) -> Response:
        """Answer Twilio's webhook for an incoming call with TwiML."""
        principal, form = await _admit(gateway, signatures, request)
        try:
            gateway.calls.check_room(principal)
            agent = await gateway.descriptions.find_by_number(form.get("To", [""])[0])
        except ParleyError:
            # Another agent than that of the number must not answer where none is known.
            return _twiml(BUSY)
        return _twiml(_connect(signatures, agent))

    _route_transfers(router, gateway, signatures, transfers)

    @router.websocket(STREAM)
    async def stream(websocket: WebSocket) -> None:
        await serve_stream(websocket, gateway, settings, signatures, transfers)

    return router


def _route_transfers(
    router: APIRouter, gateway: Gateway, signatures: TwilioSignatures, transfers: Transfers
) -> None:
    @router.post(ENDED, **_XML)
    async def ended(request: Request) -> Response:
        """Answer Twilio's webhook for the end of a stream: the call is transferred, goes on, or ends."""
        _, form = await _admit(gateway, signatures, request)
        call_sid = form.get("CallSid", [""])[0]
        if (twiml := transfers.take(call_sid)) is not None:
            return _twiml(twiml)
        if form.get("CallStatus", [""])[0] not in _OVER and await can_go_on(gateway, signatures, call_sid):
            return _twiml(_connect(signatures, "", is_resumed=True))
        if gateway.guard.addresses.is_passed_on(request):
            raise NotFoundError("no transfer of this call waits here")
        return await gateway.peers.ask_others(request) or _twiml(HANGUP)

    @router.post(WHISPER, **_XML)
    async def whispered(request: Request) -> Response:
        """Answer Twilio's webhook for a person to whom a call is transferred: the summary is spoken."""
        await _admit(gateway, signatures, request)
        return _twiml(whisper(request.query_params.get("text", ""), signatures))

    @router.post(DIALLED, **_XML)
    async def dialled(request: Request) -> Response:
        """Answer Twilio's webhook for the end of a transfer: the call ends, or goes back to the agent."""
        _, form = await _admit(gateway, signatures, request)
        return _twiml(after_dial(form.get("DialCallStatus", [""])[0], signatures.base_url + VOICE))


async def _admit(
    gateway: Gateway, signatures: TwilioSignatures, request: Request
) -> tuple[Principal, dict[str, list[str]]]:
    # The signature covers the form, which is therefore read first.
    await gateway.guard.count(request)
    form = _read_form(await request.body())
    principal = await gateway.guard.admit(
        request, "agent", signature=lambda: signatures.check_request(request, form), is_counted=True
    )
    return principal, form


def _connect(signatures: TwilioSignatures, agent: str, *, is_resumed: bool = False) -> str:
    parameters = {NONCE: signatures.nonce()}
    if agent:
        parameters[AGENT] = agent
    if is_resumed:
        parameters[RESUME] = "1"
    return connect_to(signatures.stream_url + STREAM, signatures.base_url + ENDED, parameters)


def _twiml(content: str) -> Response:
    return Response(content, media_type="application/xml")


def _read_form(body: bytes) -> dict[str, list[str]]:
    try:
        return parse_qs(body.decode(), keep_blank_values=True, max_num_fields=_MAX_FIELDS)
    except (UnicodeDecodeError, ValueError) as error:
        raise InvalidMessageError(f"the form cannot be read: {error}") from error
