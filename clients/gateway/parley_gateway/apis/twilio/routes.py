"""Routes of the API for telephone calls."""

from __future__ import annotations

from urllib.parse import parse_qs

from fastapi import APIRouter, Request
from starlette.responses import Response
from starlette.websockets import WebSocket

from parley.errors import InvalidMessageError, ShuttingDownError
from parley_gateway.apis.twilio.signature import TwilioSignatures
from parley_gateway.apis.twilio.stream import BUSY, connect_to, serve_stream
from parley_gateway.errors import TooManyCallsError
from parley_gateway.gateway import Gateway

VOICE = "/v1/twilio/voice"
STREAM = "/v1/twilio/stream"
_MAX_FIELDS = 200


def routes(gateway: Gateway) -> APIRouter:
    """``/v1/twilio/voice`` and ``/v1/twilio/stream``; none if no auth token is configured."""
    router = APIRouter(tags=["telephone"])
    settings = gateway.settings.twilio
    if not settings.auth_token_file:
        return router
    signatures = TwilioSignatures(settings.auth_token_file, gateway.settings.listen.public_url)

    @router.post(VOICE, response_class=Response, responses={200: {"content": {"application/xml": {}}}})
    async def voice(request: Request) -> Response:
        """Answer Twilio's webhook for an incoming call with TwiML."""
        # The signature covers the form, which is therefore read first.
        await gateway.guard.count(request)
        form = _read_form(await request.body())
        principal = await gateway.guard.admit(
            request, "agent", signature=lambda: signatures.check_request(request, form), is_counted=True
        )
        try:
            gateway.calls.check_room(principal)
        except (TooManyCallsError, ShuttingDownError):
            return Response(BUSY, media_type="application/xml")
        return Response(
            connect_to(signatures.stream_url + STREAM, signatures.nonce()), media_type="application/xml"
        )

    @router.websocket(STREAM)
    async def stream(websocket: WebSocket) -> None:
        await serve_stream(websocket, gateway, settings, signatures)

    return router


def _read_form(body: bytes) -> dict[str, list[str]]:
    try:
        return parse_qs(body.decode(), keep_blank_values=True, max_num_fields=_MAX_FIELDS)
    except (UnicodeDecodeError, ValueError) as error:
        raise InvalidMessageError(f"the form cannot be read: {error}") from error
