"""The telephone calls of one process: dialogs of SIP, each with its audio and its conversation."""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import msgspec

from parley import protocol
from parley.errors import InvalidMessageError, ParleyError
from parley.timeouts import cancel_all, first_to_end, hold_task, is_set_within
from parley_gateway.errors import GatewaySettingsError, NoServerReadyError, NotFoundError, TooManyCallsError
from parley_gateway.gateway import Gateway
from parley_gateway.security.audit import audit
from parley_gateway.security.principal import Principal
from parley_gateway.sip.answering_machine import AnsweredBy
from parley_gateway.sip.call_audio import CallAudio
from parley_gateway.sip.line import OnMachine, PhoneLine
from parley_gateway.sip.session_description import NotAcceptableError
from parley_gateway.sip.settings import SipSettings, is_tls
from parley_gateway.sip.sofia import SipAddress, SipEvent, SofiaStack

_log = logging.getLogger("parley.gateway")
TRUNK = Principal(id="sip", scopes=frozenset({"agent"}), kind="signature", root="signature")
"""Of calls that come in: they were let in by their address."""
_SYSTEM_AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
_SPARE_DIALOGS = 8
"""Dialogs beyond the limit of calls: those that ring, register, or are being ended."""
_REGISTER_AGAIN_S = 30.0
_GOODBYE_S = 5.0
_REMEMBERED = 1_024
_SIPFRAG = re.compile(r"SIP/2\.0 (\d{3})")
_NUMBER = re.compile(r"\+?[0-9]{2,15}")
_OK = 200
_REDIRECTED = 300


class OutgoingCall(msgspec.Struct, frozen=True, kw_only=True):
    """Whom to call, and how."""

    to: str
    start: protocol.Start
    detects: bool = False
    """Whether it is found out who has answered; the agent waits for it."""
    on_machine: OnMachine = "hang_up"
    message: str = ""


class CallStatus(msgspec.Struct, frozen=True, kw_only=True):
    """A call that was made by REST."""

    call_id: str
    to: str
    state: Literal["dialing", "ringing", "talking", "over"] = "dialing"
    answered_by: AnsweredBy | None = None
    """None: not known, or not asked."""
    status: int = 0
    """With ``over``: of SIP, where the call was not answered (486: busy)."""
    reason: str = ""
    """With ``over``: ``hung_up`` (by REST), ``hangup`` (by who was called), ``rejected``, ``no_answer``,
    ``machine``, ``silent_line``, that of ``closed``, or the code of an error."""


@dataclass(eq=False)
class _Dialog:
    """One dialog of SIP, as its events have it."""

    number: int
    caller: str = ""
    called: str = ""
    source: str = ""
    remote_sdp: str = ""
    """The last one that came."""
    status: int = 0
    """With which it was refused."""
    is_taken: bool = False
    is_ringing: asyncio.Event = field(default_factory=asyncio.Event)
    is_answered: asyncio.Event = field(default_factory=asyncio.Event)
    is_over: asyncio.Event = field(default_factory=asyncio.Event)
    referred: asyncio.Queue[int] = field(default_factory=lambda: asyncio.Queue(16))
    """Statuses of a transfer, of SIP."""
    audio: CallAudio | None = None


@dataclass(eq=False)
class _Made:
    """A call that was made by REST, also after its end."""

    status: CallStatus
    owner: str
    hang_up: asyncio.Event = field(default_factory=asyncio.Event)

    def update(self, **changes: Any) -> None:
        self.status = msgspec.structs.replace(self.status, **changes)


class SipEndpoint:
    """Takes and makes calls while the gateway listens."""

    def __init__(self, gateway: Gateway, settings: SipSettings) -> None:
        self._gateway = gateway
        self._settings = settings
        self._dialogs: dict[int, _Dialog] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._made: dict[str, _Made] = {}
        self._registration = 0
        self._retries: set[asyncio.Task[None]] = set()
        self._registered = gateway.metrics.sip_registered
        self._certificates: tempfile.TemporaryDirectory[str] | None = None
        self._stack: SofiaStack | None = None

    @property
    def _sip(self) -> SofiaStack:
        assert self._stack is not None
        return self._stack

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Take and make calls as long as the block runs; those that are open then are ended.

        Raises:
            GatewaySettingsError: a setting cannot be used.
        """
        settings = self._settings
        try:
            password, folder = self._read_password(), self._write_certificates()
        except OSError as error:
            raise GatewaySettingsError(f"sip: a file cannot be read: {error}") from error
        self._stack = SofiaStack(
            SipAddress(settings.listen, settings.contact, folder, settings.username, password),
            self._on_event,
            admit=settings.admits,
            limit=self._gateway.settings.calls.limit + _SPARE_DIALOGS,
        )
        try:
            await self._stack.start()
            if settings.register:
                self._register()
            yield
        finally:
            await self._close()

    def _read_password(self) -> str:
        file = self._settings.password_file
        return Path(file).read_text(encoding="utf-8").strip() if file else ""

    def _write_certificates(self) -> str:
        """The files under the names that the library wants."""
        settings = self._settings
        if not settings.certificate and not is_tls(settings.trunk):
            return ""
        self._certificates = tempfile.TemporaryDirectory(prefix="parley-sip-")
        folder = Path(self._certificates.name)
        if settings.certificate:
            (folder / "agent.pem").touch(0o600)
            (folder / "agent.pem").write_bytes(Path(settings.certificate).read_bytes())
        authorities = Path(settings.authorities) if settings.authorities else _SYSTEM_AUTHORITIES
        (folder / "cafile.pem").write_bytes(authorities.read_bytes())
        return str(folder)

    async def _close(self) -> None:
        await cancel_all(self._retries)
        for dialog in self._dialogs.values():
            dialog.is_over.set()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=_GOODBYE_S)
        await cancel_all(self._tasks)
        if self._stack is not None:
            if self._registration:
                self._stack.unregister(self._registration)
            await self._stack.close()
        if self._certificates is not None:
            self._certificates.cleanup()

    # --- events --------------------------------------------------------------------------------

    def _on_event(self, event: SipEvent) -> None:
        if event.dialog == self._registration:
            self._on_registration(event)
            return
        if event.name == "invite" and event.dialog not in self._dialogs:
            self._dialogs[event.dialog] = _Dialog(event.dialog, event.caller, event.called, event.source)
        if (known := self._dialogs.get(event.dialog)) is None:
            return
        known.remote_sdp = event.remote_sdp or known.remote_sdp
        match event.name:
            case "state":
                self._on_state(known, event)
            case "notify":
                found = _SIPFRAG.match(event.body)
                self._on_referred(known, int(found[1]) if found else 0)
            case "refer_response" if event.status >= _REDIRECTED:
                self._on_referred(known, event.status)

    def _on_state(self, dialog: _Dialog, event: SipEvent) -> None:
        match event.state:
            case "received" if dialog.is_answered.is_set():
                self._renew(dialog)
            case "received" if not dialog.is_taken:
                dialog.is_taken = True
                hold_task(self._tasks, self._take(dialog), f"sip-{event.dialog}")
            case "proceeding":
                dialog.is_ringing.set()
            case "ready":
                dialog.is_ringing.set()  # also where no response has said so
                dialog.is_answered.set()
            case "terminated":
                dialog.status = event.status
                dialog.is_over.set()
                del self._dialogs[dialog.number]

    def _renew(self, dialog: _Dialog) -> None:
        """The peer changes the session: it holds the call, or sends its audio from elsewhere."""
        if dialog.audio is None:
            return  # the call is ending
        try:
            self._sip.respond(dialog.number, _OK, "OK", dialog.audio.renew(dialog.remote_sdp))
        except NotAcceptableError as error:
            _log.info("a session of SIP stays as it is: %s", error)
            self._sip.respond(dialog.number, 488, "Not Acceptable Here")

    @staticmethod
    def _on_referred(dialog: _Dialog, status: int) -> None:
        with suppress(asyncio.QueueFull):
            dialog.referred.put_nowait(status)

    # --- registration --------------------------------------------------------------------------

    def _register(self) -> None:
        settings = self._settings
        account = f"<sip:{settings.username}@{settings.trunk_host}>"
        self._registration = self._sip.register(settings.trunk, account, settings.register_s)

    def _on_registration(self, event: SipEvent) -> None:
        if event.name != "register_response" or event.status < _OK:
            return
        is_registered = event.status < _REDIRECTED
        self._registered.set(is_registered)
        if not is_registered:
            _log.error("the trunk refuses the registration: %d %s", event.status, event.phrase)
            self._registration = 0
            hold_task(self._retries, self._register_again(), "sip-register")

    async def _register_again(self) -> None:
        await asyncio.sleep(_REGISTER_AGAIN_S)
        self._register()

    # --- calls that come in --------------------------------------------------------------------

    async def _take(self, dialog: _Dialog) -> None:
        """Serve a call, from its INVITE to its end."""
        with self._gateway.calls.attend():
            try:
                async with first_to_end(self._answer(dialog), dialog.is_over.wait()) as (answering, _):
                    if answering.done():
                        answering.result()
            finally:
                await self._end(dialog)

    async def _answer(self, dialog: _Dialog) -> None:
        try:
            self._gateway.calls.check_room(TRUNK)
            start = await self._start_of(dialog)
            async with self._open_audio(dialog) as audio:
                sdp = dialog.remote_sdp
                description = audio.answer(sdp) if sdp else audio.offer(is_late=True)
                self._sip.respond(dialog.number, 180, "Ringing")

                async def connect() -> None:
                    self._sip.respond(dialog.number, _OK, "OK", description)
                    if not sdp:  # the peer's comes with its ACK
                        await dialog.is_answered.wait()
                        audio.connect(dialog.remote_sdp)

                await self._talk(dialog, audio, start, TRUNK, connect=connect)
        except NotAcceptableError as error:
            _log.warning("a call from %s is refused: %s", dialog.source, error)
            self._sip.respond(dialog.number, 488, "Not Acceptable Here")
        except ParleyError as error:
            _log.warning("a call from %s is not served: %s", dialog.source, error.to_log())
            self._gateway.metrics.refused.labels(error.code).inc()
            self._sip.respond(dialog.number, 503 if error.retryable else 480, "Not available")

    async def _start_of(self, dialog: _Dialog) -> protocol.Start:
        called = dialog.called.partition("<")[2].partition(">")[0] or dialog.called
        agent, settings = await self._gateway.descriptions.find_by_number(called), self._settings
        return protocol.Start(
            agent=agent or settings.agent,
            language=protocol.Start().language if agent else settings.language,
            ending=settings.ending,
        )

    async def _talk(
        self,
        dialog: _Dialog,
        audio: CallAudio,
        start: protocol.Start,
        principal: Principal,
        *,
        connect: Callable[[], Awaitable[None]] | None = None,
        outgoing: tuple[OutgoingCall, Callable[[AnsweredBy], None]] | None = None,
    ) -> str:
        """Let the agent talk, until one side has ended the call; returns why."""
        while True:
            start = msgspec.structs.replace(start, output_sample_rate=audio.sample_rate)
            async with self._gateway.calls.open(start, principal=principal, api="sip") as call:
                audit("telephone_call", principal, call=call.id, caller=dialog.caller, called=dialog.called)
                if connect is not None:
                    await connect()
                line = PhoneLine(call, audio.stream, farewell_s=self._settings.farewell_s)
                if outgoing is not None and outgoing[0].detects:
                    request, tell = outgoing
                    line.ask_who_answered(tell, request.on_machine, request.message)
                audio.attach(line)
                reason = await line.run()
                closed = call.closed
            if closed is None or closed.transfer is None or not closed.transfer.to:
                return reason
            if await self._transfer(dialog, closed.transfer.to):
                return reason
            _log.warning("call %s goes back to the agent: its transfer failed", call.id)
            connect = outgoing = None

    async def _transfer(self, dialog: _Dialog, to: str) -> bool:
        """Whether the peer has connected its caller with the target."""
        while not dialog.referred.empty():  # of a transfer that has failed
            dialog.referred.get_nowait()
        self._sip.refer(dialog.number, self._url_of(to, dialog.source))
        with suppress(TimeoutError):
            async with asyncio.timeout(self._settings.transfer_s):
                while (status := await dialog.referred.get()) < _OK:
                    pass
                return status < _REDIRECTED
        return False

    def _url_of(self, to: str, source: str = "") -> str:
        if to.startswith(("sip:", "sips:")):
            return to
        host = self._settings.trunk_host or (f"[{source}]" if ":" in source else source)
        return f"sip:{to}@{host}"

    @asynccontextmanager
    async def _open_audio(self, dialog: _Dialog | None = None) -> AsyncIterator[CallAudio]:
        audio = CallAudio(self._settings, dialog.source if dialog else "")
        if dialog is not None:
            dialog.audio = audio
        try:
            await audio.open()
            yield audio
        finally:
            audio.close()
            if dialog is not None:
                dialog.audio = None

    async def _end(self, dialog: _Dialog) -> None:
        """Hang up, if the peer has not, and wait for its answer."""
        if not dialog.is_over.is_set():
            self._sip.bye(dialog.number)
            await is_set_within(dialog.is_over, _GOODBYE_S)

    # --- calls that are made -------------------------------------------------------------------

    def dial(self, request: OutgoingCall, principal: Principal) -> CallStatus:
        """Call a number; the agent talks when it is answered.

        Raises:
            InvalidMessageError: there is no trunk, or ``to`` is no number.
            NotPermittedError: the client may not call the agent.
            TooManyCallsError, ShuttingDownError, NoServerReadyError: it cannot be served.
        """
        settings = self._settings
        if not settings.trunk:
            raise InvalidMessageError("sip.trunk is empty: no calls are made")
        number = request.to.removeprefix("sip:").removesuffix(f"@{settings.trunk_host}")
        if not _NUMBER.fullmatch(number):
            raise InvalidMessageError(
                f"to is {request.to[:80]!r}; it must be a number, such as +493012345678"
            )
        principal.check_agent(request.start.agent)
        self._gateway.calls.check_room(principal)
        if not self._gateway.servers.is_ready:
            raise NoServerReadyError("no server is ready")
        limits = self._gateway.settings.calls
        if sum(one.status.state != "over" for one in self._made.values()) >= limits.limit:
            raise TooManyCallsError("too many calls are being made", retry_after_s=limits.retry_after_s)
        made = _Made(CallStatus(call_id=f"sip_{secrets.token_hex(12)}", to=number), principal.id)
        over = [name for name, one in self._made.items() if one.status.state == "over"]
        for name in over[: max(0, len(self._made) + 1 - _REMEMBERED)]:
            del self._made[name]
        self._made[made.status.call_id] = made
        audit("telephone_dialed", principal, call=made.status.call_id, to=number)
        hold_task(self._tasks, self._dial(made, request, principal), made.status.call_id)
        return made.status

    def find(self, call_id: str, principal: Principal) -> CallStatus:
        """The state of a call that was made; raises NotFoundError for another client's."""
        return self._find(call_id, principal).status

    def hang_up(self, call_id: str, principal: Principal) -> None:
        """End a call that was made; raises NotFoundError for another client's."""
        self._find(call_id, principal).hang_up.set()

    def _find(self, call_id: str, principal: Principal) -> _Made:
        made = self._made.get(call_id)
        if made is None or made.owner != principal.id:
            raise NotFoundError("there is no such call")
        return made

    async def _dial(self, made: _Made, request: OutgoingCall, principal: Principal) -> None:
        reason = "failed"
        try:
            with self._gateway.calls.attend():
                async with self._open_audio() as audio:
                    reason = await self._reach(made, request, principal, audio)
        except ParleyError as error:
            reason = error.code
            _log.warning("a call to %s has failed: %s", made.status.to, error.to_log())
        finally:
            made.update(state="over", reason=reason)

    async def _reach(self, made: _Made, request: OutgoingCall, principal: Principal, audio: CallAudio) -> str:
        settings = self._settings
        caller = f"<{self._url_of(settings.caller or settings.username or 'parley')}>"
        number = self._sip.invite(
            self._url_of(made.status.to), audio.offer(), caller=caller, route=settings.trunk
        )
        dialog = self._dialogs[number] = _Dialog(number, caller, made.status.to)
        dialog.audio = audio
        talking = self._talk_when_answered(made, request, principal, dialog, audio)
        try:
            async with first_to_end(talking, dialog.is_over.wait(), made.hang_up.wait()) as (work, _, asked):
                if work.done():
                    return str(work.result())
                if asked.done():
                    return "hung_up"
            if dialog.is_answered.is_set():
                return "hangup"
            made.update(status=dialog.status)
            return "rejected"
        finally:
            if not dialog.is_answered.is_set() and not dialog.is_over.is_set():
                self._sip.cancel(number)
                await is_set_within(dialog.is_over, _GOODBYE_S)  # an answer may cross it
            await self._end(dialog)

    async def _talk_when_answered(
        self, made: _Made, request: OutgoingCall, principal: Principal, dialog: _Dialog, audio: CallAudio
    ) -> str:
        try:
            async with asyncio.timeout(self._settings.ring_s):
                await dialog.is_ringing.wait()
                made.update(state="ringing")
                await dialog.is_answered.wait()
        except TimeoutError:
            return "no_answer"
        made.update(state="talking")
        audio.connect(dialog.remote_sdp)
        outgoing = (request, lambda answered_by: made.update(answered_by=answered_by))
        return await self._talk(dialog, audio, request.start, principal, outgoing=outgoing)
