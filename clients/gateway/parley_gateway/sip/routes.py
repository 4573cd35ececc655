"""Calls that are made by REST: ``/v1/sip/calls``."""

from __future__ import annotations

from typing import Annotated

import msgspec
from fastapi import APIRouter, Request
from msgspec import Meta
from starlette.responses import Response

from parley import protocol
from parley.errors import InvalidMessageError
from parley_client.options import check_size, check_start
from parley_gateway.apis import operations
from parley_gateway.apis.sessions.messages import SessionOptions, start_of
from parley_gateway.bodies import json_answer, read_json
from parley_gateway.gateway import Gateway
from parley_gateway.schemas import answers, body
from parley_gateway.sip.endpoint import CallStatus, OutgoingCall, SipEndpoint
from parley_gateway.sip.line import OnMachine
from parley_gateway.voice_owners import check_voice

CALLS = "/v1/sip/calls"


class AnsweringMachine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What happens if a machine answers; the agent waits until that is known."""

    action: OnMachine = "hang_up"
    """``leave_message``: ``message`` is spoken when the machine has. ``go_on``: the agent talks, and the
    state of the call says that it is a machine."""
    message: Annotated[str, Meta(max_length=1_000)] = ""


class CallRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A call to be made."""

    to: Annotated[str, Meta(max_length=100)]
    """The number, which the trunk of the settings calls."""
    session: SessionOptions = SessionOptions()  # type: ignore[valid-type]
    """How the agent talks, as in ``POST /v1/sessions``."""
    answering_machine: AnsweringMachine | None = None
    """None: it is not found out who has answered, and the agent talks at once."""


def routes(gateway: Gateway) -> APIRouter:
    """``/v1/sip/calls``; while the gateway listens, so does SIP."""
    endpoint = SipEndpoint(gateway, gateway.settings.sip)
    gateway.beside.append(endpoint.running)
    router = APIRouter(tags=["telephone"])

    async def create(request: Request) -> Response:
        """Call a number."""
        principal = await gateway.guard.admit(request, "dial")
        wanted = read_json(await request.body(), CallRequest)
        machine = wanted.answering_machine
        if machine is not None and (machine.action == "leave_message") != bool(machine.message.strip()):
            raise InvalidMessageError("answering_machine: leave_message needs message, and the others none")
        options = wanted.session
        if options.resume is not None or options.encoding != "pcm16" or options.output != "audio":
            raise InvalidMessageError("session: a telephone call has no resume, encoding or output")
        start: protocol.Start = start_of(options)
        check_start(start)
        check_size(protocol.encode(start))
        check_voice(start.voice, principal)
        await gateway.descriptions.check_start(start, principal.may_call)
        call = OutgoingCall(to=wanted.to, start=start)
        if machine is not None:
            call = msgspec.structs.replace(
                call, detects=True, on_machine=machine.action, message=machine.message
            )
        return json_answer(endpoint.dial(call, principal), 201)

    async def status(request: Request, call_id: str) -> Response:
        """The state of a call that was made, also after its end."""
        return json_answer(endpoint.find(call_id, await gateway.guard.admit(request, "dial")))

    async def end(request: Request, call_id: str) -> Response:
        """Hang up a call that was made."""
        endpoint.hang_up(call_id, await gateway.guard.admit(request, "dial"))
        return Response(status_code=204)

    router.post(
        CALLS,
        status_code=201,
        openapi_extra=body(CallRequest),
        responses=answers(201, CallStatus, 400, 401, 403, 429, 503),
    )(create)
    router.get(f"{CALLS}/{{call_id}}", responses=answers(200, CallStatus, 401, 403, 404, 429))(status)
    router.delete(f"{CALLS}/{{call_id}}", status_code=204, responses=answers(204, None, 401, 403, 404, 429))(
        end
    )
    return router


APIS = (operations.routes, routes)
"""Of the process that takes telephone calls: a fault of its library ends no other call."""
